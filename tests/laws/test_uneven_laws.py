"""Steps of each node's own: what they may not break, and when they are worth it."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from test_algorithm_laws import close, run, start

from milodo.algorithms import AcceleratedED
from milodo.algorithms.auto import choose, everybodys, gossips, learn, made
from milodo.algorithms.uneven import LONGER, priced, uneven
from milodo.bench.run_file import MethodFacts
from milodo.errors import InvalidInput
from milodo.loop import iterate
from milodo.network import Bits, StackedNetwork, degraded
from milodo.network.exchange import Polynomial, named
from milodo.problems import Lasso, LeastSquares, optimum
from milodo.topology import EXAMPLES, Topology, topology
from milodo.tree import tree_map

LINKS = {"perfect": (0.0, None), "bits": (0.0, Bits(8)), "lossy": (0.4, None), "lossy bits": (0.4, Bits(8))}


def uneven_problem(n: int, spread: float, d: int = 8, N: int = 20) -> LeastSquares:
    """One site as curved as `spread` others."""
    lasso = Lasso(n, d, N, 0.1).sample([0, 1])
    scale = torch.ones(n, 1).double()
    scale[n // 2] = spread**0.5
    scale = scale / scale.square().mean().sqrt()
    return LeastSquares(lasso.A * scale.unsqueeze(-1), lasso.b * scale, lasso.reg)


def own_steps(problem: LeastSquares, K: int = 1, longer: float = 8.0) -> AcceleratedED:
    L = problem.lipschitz().amax(0)
    return AcceleratedED(gamma=1.2 / float(L.max()), K=K, steps=tuple((L.max() / L).clamp(max=longer).tolist()))


@pytest.mark.parametrize("graph", EXAMPLES)
def test_mixing_is_that_of_the_matrix_it_says_and_keeps_the_weighted_sum(graph):
    """A dense matrix built entry by entry has the same product and, beside that of consensus, the same eigenvalues."""
    net = StackedNetwork(graph)
    rng = np.random.default_rng(0)
    tau = tuple((10 ** rng.random(net.n)).tolist())
    M = np.zeros((net.n, net.n))
    for (i, j), w in zip(net.arcs, net.w64.flatten().tolist(), strict=True):
        M[i, j] = -w * 2 * tau[i] / (tau[i] + tau[j])
        M[i, i] -= M[i, j]
    x, on = torch.from_numpy(rng.standard_normal((net.n, 3))), net.weighing(tau)
    torch.testing.assert_close(on.lap(x), torch.from_numpy(M) @ x, rtol=1e-12, atol=1e-12)
    others = np.sort(np.linalg.eigvals(M).real)[1:]
    assert np.allclose(on.mixing.eigenvalues, others, atol=1e-10)
    assert net.n == 1 or others.max() <= 2 * float(net.sum(net.w64).max()) + 1e-12  # as derived
    for K in (1, 2, 3):
        defect = Polynomial("minimax", K).residual(x, None, on)[0]
        assert float((defect / torch.tensor(tau, dtype=torch.float64).unsqueeze(-1)).sum(0).abs().max()) < 1e-12 * net.n
    assert torch.equal(net.weighing((1.0,) * net.n).w, net.w)


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("K", [1, 2])
def test_duals_sum_to_zero_at_every_step(links, K):
    outage, form = LINKS[links]
    problem, net = uneven_problem(10, 100.0), degraded(StackedNetwork("erdos_renyi(10,0.4,seed=1)"), outage=outage)
    method = own_steps(problem, K) if form is None else own_steps(problem, K).compressed(form)
    for state in itertools.islice(iterate(method, problem, net), 60):
        y = state.y if form is None else state.inner.y
        assert float(y.sum(-2).abs().max()) < 1e-11 * (1 + float(y.abs().max()))


@pytest.mark.parametrize("links", ["perfect", "bits", "lossy bits"])
@pytest.mark.parametrize("graph", ["ring(6)", "star(7)", "grid(3x3)"])
def test_the_optimum_is_the_fixed_point_and_is_reached(graph, links):
    outage, form = LINKS[links]
    problem, net = uneven_problem(topology(graph).n, 100.0), degraded(StackedNetwork(graph), outage=outage)
    method = own_steps(problem) if form is None else own_steps(problem).compressed(form)
    best = optimum(problem).x.unsqueeze(-2)
    looks = itertools.islice(iterate(method, problem, net), 0, 4001, 1000)
    first, _, *later = [(state.x - best).norm(dim=-1).max().item() for state in looks]
    # Curvatures that differ 100 times take their time; what counts is that it goes on falling, at one rate.
    assert later[2] < 0.5 * later[1] < 0.25 * later[0] < 0.1 * first


@pytest.mark.parametrize("graph", ["ring(6)", "star(7)", "grid(3x3)"])
def test_at_the_optimum_with_its_duals_nobody_moves(graph):
    problem, net = uneven_problem(topology(graph).n, 100.0), StackedNetwork(graph)
    best, method = problem.everywhere(optimum(problem).x), own_steps(problem)
    g = problem.grad(best)
    at = method.init(best, problem, net)._replace(y=g.mean(-2, keepdim=True) - g)  # -(∇f_i + y_i) ∈ ∂r at every node
    after = method.step(at, problem, net)
    torch.testing.assert_close(after.x, best, rtol=0, atol=1e-9)
    torch.testing.assert_close(after.y, at.y, rtol=0, atol=1e-7 * float(g.abs().max()))


def test_steps_that_are_all_alike_are_one_step():
    problem, net = uneven_problem(6, 10.0), StackedNetwork("star(6)")
    L = float(problem.lipschitz().max())
    one, two = (run(AcceleratedED(gamma=1.2 / L, K=2, steps=steps), problem, net, 50) for steps in (None, (1.0,) * 6))
    close(one, two)


def test_relabelling_nodes_relabels_the_trajectory():
    problem, net = uneven_problem(6, 100.0), StackedNetwork("erdos_renyi(6,0.5,seed=1)")
    order = (3, 0, 5, 1, 4, 2)
    back = [order.index(i) for i in range(6)]
    state = run(own_steps(problem), problem, net, 20, start(problem))
    renamed, moved = Topology.from_edges((order[i], order[j]) for i, j in net.topology.edges), problem.at(back)
    other = run(own_steps(moved), moved, StackedNetwork(renamed), 20, start(problem)[..., back, :])
    close(other, tree_map(lambda leaf: leaf[..., back, :], state))


def test_everybody_learns_everybodys_curvature_only_where_they_differ():
    even, odd = uneven_problem(9, 1.0), uneven_problem(9, 100.0)
    net = StackedNetwork("grid(3x3)")
    assert learn(even, net).curvatures is None
    told = learn(odd, net).curvatures
    assert told == pytest.approx(odd.lipschitz().amax(0).tolist()) == everybodys(odd.lipschitz(), net)
    assert learn(odd, net, reliable=False).curvatures is None


def test_auto_considers_them_and_makes_what_it_says():
    problem, net = uneven_problem(25, 100.0, d=30, N=5), StackedNetwork("grid(5x5)")
    facts = learn(problem, net)
    names = [candidate.name for candidate in gossips("bytes", facts, net, 30, None)]
    assert sum("own steps" in name for name in names) == 1
    chosen = choose("rounds", facts, net, 30)
    own = next(c for c in (chosen.best, *chosen.others) if "own steps" in c.name)
    others = (c for c in (chosen.best, *chosen.others) if "Accelerated" in c.name and c is not own)
    alike = min(others, key=lambda c: c.cost("rounds"))
    assert own.cost("rounds") < alike.cost("rounds")
    method = made(own.parameters)
    best = uneven(facts.curvatures, net)
    assert best is not None and method == best.method.compressed(method.compressor)
    kept = MethodFacts.model_validate(json.loads(json.dumps({"parameters": own.parameters}))).parameters
    assert kept is not None and made(kept) == method  # as a run's file has it
    # And it is cheaper: rounds until all nodes are within 1e-4 of the optimum.
    best = optimum(problem).x.unsqueeze(-2)

    def rounds(method):
        for k, state in enumerate(itertools.islice(iterate(method, problem, net), 5000)):
            if float((state.x - best).norm(dim=-1).max()) < 1e-4 * float(best.norm()):
                return k * method.cost(net, 1).rounds
        raise AssertionError("it did not converge")

    assert rounds(method) < rounds(made(alike.parameters))


def test_no_step_is_longer_than_its_node_allows():
    net = StackedNetwork("grid(3x3)")
    L = np.array([1.0, 3.0, 100.0, 7.0, 50.0, 0.1, 0.0, 20.0, 90.0])
    for longer in LONGER:
        found = priced(L, net, longer)
        assert found is not None
        tau = np.ones(9) if found.method.steps is None else np.array(found.method.steps)
        assert (tau * L <= 100 * (1 + 1e-6)).all() and tau.min() == 1 and tau.max() <= longer


def test_what_cannot_be_is_refused_in_a_sentence():
    with pytest.raises(InvalidInput, match="need a polynomial"):
        AcceleratedED(gamma=0.1, K=1, exchange=named("tree"), steps=(1.0, 2.0))
    problem = uneven_problem(6, 10.0)
    with pytest.raises(InvalidInput, match="steps of 2 nodes"):
        run(AcceleratedED(gamma=0.1, K=1, steps=(1.0, 2.0)), problem, StackedNetwork("ring(6)"), 1)
