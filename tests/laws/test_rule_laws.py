"""The paper's rule apart from its weights: constants, networks, and the extrapolation that vanishes at a fixed point."""

from __future__ import annotations

import itertools

import pytest
import torch

from milodo.algorithms import LEPDO, ProxED
from milodo.learned import MiLoDo, special_initialisation
from milodo.loop import Stop, iterate, solve
from milodo.network import StackedNetwork
from milodo.problems import Lasso, optimum
from milodo.topology import EXAMPLES, topology

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


def test_a_step_is_its_equations_momentum_included():
    """Written here with dense matrices."""
    problem, net = Lasso(5, 4, 6, 0.2).sample([0]), StackedNetwork("star(5)")
    gamma, alpha, c_s, c_u = 0.04, 0.2, 0.3, 1.5
    lap = torch.stack([net.lap(column) for column in torch.eye(5, dtype=torch.float64).unsqueeze(-1)]).squeeze(-1).mT
    x = last = problem.start()
    y = torch.zeros_like(x)
    for k, state in enumerate(iterate(LEPDO(gamma=gamma, alpha=alpha, c_s=c_s, c_u=c_u), problem, net)):
        torch.testing.assert_close(state.x, x, rtol=0, atol=1e-13)
        torch.testing.assert_close(state.y, y, rtol=0, atol=1e-12)
        if k == 25:
            break
        e = x + (1 - alpha) * (x - last)
        z = problem.prox(e - gamma * (problem.grad(e) + y), gamma)
        y, x, last = y + c_s / (2 * gamma) * lap @ z, z - c_u / 2 * lap @ z, x


@pytest.mark.parametrize("constants", [{}, {"alpha": 0.2, "c_s": 0.2}, {"alpha": 0.05, "c_s": 0.05, "c_u": 1.8}], ids=str)
def test_whatever_the_constants_the_limit_is_the_optimum_and_duals_sum_to_zero(constants):
    problem, net = Lasso(6, 8, 30, 0.1).sample([0, 1]), StackedNetwork("ring(6)")
    method = LEPDO(gamma=0.5 / float(problem.lipschitz().max()), **constants)
    result = solve(method, problem, net, Stop(steps=20_000, tolerance=1e-12, every=50))
    assert float((result.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-9
    state = after(method, problem, net, 200)
    assert float(state.y.sum(-2).abs().max()) < ROUNDING * max(1.0, float(state.y.abs().max()))
