"""The paper's rule apart from its weights: constants, networks, and the extrapolation that vanishes at a fixed point."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from milodo.algorithms import ADMM, LEPDO, ProxED, lepdo
from milodo.errors import InvalidInput
from milodo.learned import MiLoDo, special_initialisation
from milodo.loop import Stop, iterate, solve
from milodo.network import Bits, Levels, Outage, StackedNetwork, StackedObserver
from milodo.problems import L1, CustomProblem, Lasso, LeastSquares, Logistic, optimum
from milodo.topology import EXAMPLES, topology
from milodo.topology.mixing import walk

ROUNDING = 1e-11


def after(method, problem, net, steps):
    with torch.no_grad():
        return next(itertools.islice(iterate(method, problem, net), steps, None))


@pytest.mark.parametrize("graph", EXAMPLES)
@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_special_initialisation_is_the_rule_with_constant_weights(graph, lam):
    if topology(graph).n == 1:
        return
    problem, net = Lasso(topology(graph).n, 6, 12, lam).sample([0, 1]), StackedNetwork(graph)
    optimizer = special_initialisation(MiLoDo(graph, hidden=3).double(), net, 0.05)
    a, b = after(optimizer, problem, net, 40), after(LEPDO(gamma=0.05), problem, net, 40)
    torch.testing.assert_close(a.x, b.x, rtol=0, atol=ROUNDING)
    torch.testing.assert_close(a.y, b.y, rtol=0, atol=ROUNDING * 10)


def test_without_r_constants_of_one_are_exact_diffusion():
    problem, net = Lasso(6, 8, 12, 0.0).sample([0]), StackedNetwork("grid(2x3)")
    a, b = (after(method, problem, net, 80).x for method in (LEPDO(gamma=0.05), ProxED(gamma=0.05)))
    torch.testing.assert_close(a, b, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("ahead", [0.5, 1.0])
def test_a_step_is_its_equations_momentum_included(ahead):
    """Written here with dense matrices, for a lookahead of 1/2 and of 1."""
    problem, net = Lasso(5, 4, 6, 0.2).sample([0]), StackedNetwork("star(5)")
    gamma, alpha, c_s, c_u = 0.04, 0.2, 0.3, 1.5
    lap = torch.stack([net.lap(column) for column in torch.eye(5, dtype=torch.float64).unsqueeze(-1)]).squeeze(-1).mT
    x = last = problem.start()
    y = torch.zeros_like(x)
    for k, state in enumerate(iterate(LEPDO(gamma=gamma, alpha=alpha, c_s=c_s, c_u=c_u, lookahead=ahead), problem, net)):
        torch.testing.assert_close(state.x, x, rtol=0, atol=1e-13)
        torch.testing.assert_close(state.y, y, rtol=0, atol=1e-12)
        if k == 25:
            break
        e, u = x + (1 - alpha) * (x - last), x + ahead * (1 - alpha) * (x - last)
        z = problem.prox(e - gamma * (problem.grad(u) + y), gamma)
        y, x, last = y + c_s / (2 * gamma) * lap @ z, z - c_u / 2 * lap @ z, x


@pytest.mark.parametrize("constants", [{}, {"alpha": 0.2, "c_s": 0.2}, {"alpha": 0.05, "c_s": 0.05, "c_u": 1.8}], ids=str)
def test_whatever_the_constants_the_limit_is_the_optimum_and_duals_sum_to_zero(constants):
    problem, net = Lasso(6, 8, 30, 0.1).sample([0, 1]), StackedNetwork("ring(6)")
    method = LEPDO(gamma=0.5 / float(problem.lipschitz().max()), **constants)
    result = solve(method, problem, net, Stop(steps=20_000, tolerance=1e-12, every=50))
    assert float((result.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-9
    state = after(method, problem, net, 200)
    assert float(state.y.sum(-2).abs().max()) < ROUNDING * max(1.0, float(state.y.abs().max()))


def test_many_local_steps_solve_the_local_problem():
    """z is then the minimum of f_i + r + ⟨y, ·⟩ + ‖· - e‖²/2γ: its prox-gradient step does not move."""
    problem, net = Lasso(5, 8, 4, 0.1).sample([0]), StackedNetwork("star(5)")
    gamma, seen = 8 / float(problem.lipschitz().max()), {}

    class Watched(LEPDO):
        def _nearer(self, z, e, g, y, p, problem):
            torch.testing.assert_close(g, problem.grad(z))
            torch.testing.assert_close(z, seen.get("z", z))
            seen.update(e=e, y=y, z=super()._nearer(z, e, g, y, p, problem))
            return seen["z"]

    after(Watched(gamma=gamma, alpha=0.3, c_s=0.3, c_u=1.5, local_steps=400), problem, net, 5)
    z, step = seen["z"], 0.5 / float(problem.lipschitz().max())
    again = problem.prox(z - step * (problem.grad(z) + seen["y"] + (z - seen["e"]) / gamma), step)
    torch.testing.assert_close(again, z, rtol=0, atol=1e-12)
    assert float((z - seen["e"]).abs().max()) > 1e-3


@pytest.mark.parametrize("graph", ["ring(6)", "star(6)"])
@pytest.mark.parametrize("S", [2, 7])
def test_local_steps_have_the_same_limit_and_are_counted(graph, S):
    problem, net = Lasso(6, 8, 5, 0.1).sample([0, 1]), StackedNetwork(graph)
    L, calls = float(problem.lipschitz().max()), []
    method = LEPDO(gamma=4 / L, alpha=0.3, c_s=0.3, c_u=1.2, local_steps=S)
    own = type(problem).grad
    problem.__class__ = type("Counted", (type(problem),), {"grad": lambda self, x: calls.append(1) or own(self, x)})
    after(method, problem, net, 7)
    assert len(calls) == 7 * method.gradients == 7 * S and net.traffic.rounds == 7 == 7 * method.cost(net, 1).rounds
    last = after(method, problem, net, 1500)
    assert float((last.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-7
    assert float(last.y.sum(-2).abs().max()) < ROUNDING * max(1.0, float(last.y.abs().max()))


def test_local_steps_need_a_curvature_and_a_whole_number():
    data = {"c": torch.ones(4, 3, dtype=torch.float64)}
    problem = CustomProblem(lambda x, own: ((x - own["c"]) ** 4).sum(), data, 3, L1(0.1))
    with pytest.raises(InvalidInput, match="2 local steps are as long as curvature allows, which this problem does not know"):
        next(iterate(LEPDO(gamma=0.01, local_steps=2), problem, StackedNetwork("ring(4)")))
    for wrong in (0, 1.5, True):
        with pytest.raises(InvalidInput, match=r"local_steps is .*, but it must be a whole number >= 1"):
            LEPDO(gamma=0.01, local_steps=wrong)


def test_local_steps_of_a_learned_optimizer_are_lepdos_and_are_learned_through():
    net, drawn = StackedNetwork("ring(6)"), Lasso(6, 8, 20, 0.1).sample([0])
    problem = LeastSquares(drawn.A[:, :1].expand_as(drawn.A).contiguous(), drawn.b, drawn.reg)
    constants, L = {"gamma": 6.0, "alpha": 0.3, "c_s": 0.4, "c_u": 1.5}, float(problem.lipschitz().max())
    optimizer = MiLoDo("ring(6)", hidden=3, inputs="relative", momentum=0.8, reach=8.0, local_steps=4).double()
    special_initialisation(optimizer, net, **constants)
    a = after(optimizer, problem, net, 40)
    b = after(LEPDO(**constants | {"gamma": 6.0 / L}, local_steps=4), problem, net, 40)
    torch.testing.assert_close(a.x, b.x, rtol=0, atol=ROUNDING)
    assert optimizer.gradients == 4 and optimizer.at([0, 1]).local_steps == 4
    next(itertools.islice(iterate(optimizer, problem, net), 5, None)).x.square().mean().backward()
    assert all(float(network.b_2.grad.abs().max()) > 0 for network in (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u))


def test_by_degree_a_step_is_its_equations():
    """Written here with dense matrices, one step of proximal gradient for z."""
    problem, net = Lasso(6, 4, 6, 0.2).sample([0]), StackedNetwork("tree(6)")
    gamma, alpha, c_s, c_u = 0.03, 0.3, 0.4, 0.9
    degree = torch.tensor(net.topology.degrees, dtype=torch.float64).unsqueeze(-1)
    differences = torch.diag(degree.squeeze(-1))
    for i, j in net.topology.edges:
        differences[i, j] = differences[j, i] = -1
    x = last = problem.start()
    y, own = torch.zeros_like(x), gamma / degree
    method = LEPDO(gamma=gamma, alpha=alpha, c_s=c_s, c_u=c_u, lookahead=1.0, by_degree=True)
    for k, state in enumerate(iterate(method, problem, net)):
        torch.testing.assert_close(state.x, x, rtol=0, atol=1e-13)
        torch.testing.assert_close(state.y, y, rtol=0, atol=1e-12)
        if k == 25:
            break
        e = x + (1 - alpha) * (x - last)
        z = problem.prox(e - own * (problem.grad(e) + y), own)
        y, x, last = y + c_s / (2 * gamma) * differences @ z, z - c_u / (2 * degree) * (differences @ z), x


@pytest.mark.parametrize("graph", ["ring(6)", "star(6)", "tree(7)"])
def test_by_degree_constants_of_one_and_local_steps_to_the_end_are_admm(graph):
    problem, net = Lasso(topology(graph).n, 8, 5, 0.1).sample([0]), StackedNetwork(graph)
    gamma = 8 / float(problem.lipschitz().max())
    ours = LEPDO(gamma=gamma, local_steps=400, by_degree=True)
    for steps in (1, 2, 15):
        z, x = after(ours, problem, net, steps).z, after(ADMM(sigma=1.0, gamma=2 * gamma, inner=400), problem, net, steps).x
        torch.testing.assert_close(z, x, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("sigma", "beta", "most"), [lepdo.BOLD, lepdo.SHORT, lepdo.FAILING])
def test_with_exact_local_minima_no_step_is_too_long(sigma, beta, most):
    """Quadratic f alike at all nodes, r = 0: the roots of the recurrence for every mode of the graph and every curvature."""
    curvatures = np.concatenate([1 - np.geomspace(1e-6, 0.5, 40), np.linspace(0.5, 1e-3, 40), [1.0]])
    for p in np.concatenate([np.geomspace(1e-5, 0.1, 30), np.linspace(0.1, most, 60)]):
        for rho in curvatures:
            q = (1 - p) * rho
            roots = np.roots([1, sigma * p * rho - 1 - (1 + beta) * q, (1 + 2 * beta) * q, -beta * q])
            assert np.abs(roots).max() <= 1 + 1e-9


@pytest.mark.parametrize("graph", ["ring(8)", "grid(2x3)", "tree(7)", "star(6)", "complete(5)", "erdos_renyi(8,0.4,seed=1)"])
@pytest.mark.parametrize("family", [Lasso, Logistic])
def test_constants_for_local_steps_need_no_tuning(graph, family):
    n, net = topology(graph).n, StackedNetwork(graph)
    problem = (Lasso(n, 12, 5, 0.05) if family is Lasso else Logistic(n, 5, 12, 0.02)).sample([0, 1])
    method = LEPDO.local(float(problem.lipschitz().max()), net, sums=40.0)
    assert lepdo.FEWEST <= method.gradients <= lepdo.MOST
    assert_solves(method, problem, net, 1e-4, 1e-2)


@pytest.mark.parametrize("graph", ["ring(8)", "tree(7)", "star(6)", "complete(5)"])
@pytest.mark.parametrize("outage", [0.0, 0.3])
def test_local_steps_go_on_with_few_levels_links_that_fail_and_uneven_curvatures(graph, outage):
    n, net = topology(graph).n, StackedNetwork(graph)
    net = net.through(Outage(outage, seed=1)) if outage else net
    even, scale = Lasso(n, 12, 5, 0.05).sample([0, 1]), torch.logspace(0, -1, n, dtype=torch.float64)
    problem = LeastSquares(even.A * scale.reshape(n, 1, 1), even.b * scale.reshape(n, 1), even.reg)
    form = Levels(5) if LEPDO.takes_few_levels(net) else Bits(4)
    L = problem.lipschitz()
    method = LEPDO.local(float(L.max()), net, float(L.mean()), 40.0, short=True)
    state = assert_solves(method.compressed(form), problem, net, 1e-4, 1e-2)
    assert float(state.inner.y.sum(-2).abs().max()) < ROUNDING * max(1.0, float(state.inner.y.abs().max()))


def assert_solves(method, problem, net, gap, apart, steps=400):
    state = after(method, problem, net, steps)
    mean = state.x.mean(-2, keepdim=True)
    off = problem.objective(mean.squeeze(-2), StackedObserver()) - optimum(problem).value
    assert float(off.abs().max()) < gap and float((state.x - mean).abs().max()) < apart
    return state


@pytest.mark.parametrize("graph", ["ring(8)", "star(6)", "tree(7)", "complete(5)", "path(2)"])
def test_the_spectrum_of_a_walk_is_that_of_its_dense_matrix(graph):
    degrees, n = topology(graph).degrees, topology(graph).n
    P = np.eye(n)
    for i, j in topology(graph).arcs:
        P[i, j] = -1 / degrees[i]
    every = np.sort(np.linalg.eigvals(P).real)
    assert walk(topology(graph)) == pytest.approx((every[1], every[-1]), rel=1e-8)


def test_a_node_alone_takes_local_steps_by_itself():
    problem, net = Lasso(1, 6, 12, 0.1).sample([0]), StackedNetwork("ring(1)")
    method = LEPDO.local(float(problem.lipschitz().max()), net)
    assert float((after(method, problem, net, 400).x[..., 0, :] - optimum(problem).x).abs().max()) < 1e-8
