"""Momentum in gossip: the largest β and σ that Accelerated-ED takes are stable, whatever the curvatures are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from milodo.algorithms import AcceleratedED
from milodo.algorithms.accelerated_ed import ENOUGH, SHORTER, State, shorter
from milodo.loop import Stop, iterate, solve
from milodo.network import Levels, StackedNetwork, StackedObserver, degraded
from milodo.network.exchange import Polynomial
from milodo.problems import Lasso, LeastSquares, Zero, optimum
from milodo.topology import EXAMPLES

FULL = 1e9
"""t so late that β is the largest allowed."""


def recurrence(method: AcceleratedED, curvatures: np.ndarray, net: StackedNetwork) -> np.ndarray:
    """The matrix of a step on (x, x₋, y) for f_i = h_i x²/2 and r = 0."""
    n = net.n
    A = torch.from_numpy(np.sqrt(curvatures)).reshape(n, 1, 1)
    problem = LeastSquares(A, torch.zeros(n, 1, dtype=torch.float64), Zero())
    late, calm = torch.full((n, 1), FULL, dtype=torch.float64), torch.zeros(n, 1, dtype=torch.float64)
    columns = []
    for unit in torch.eye(3 * n, dtype=torch.float64):
        x, last, y = unit.reshape(3, n, 1)
        link = method.exchange.init(x, net)
        after = method.step(State(x, last, y, late, calm, calm, torch.zeros_like(x), link), problem, net)
        columns.append(torch.cat((after.x, after.last, after.y)).flatten())
    return torch.stack(columns, dim=1).numpy()


@pytest.mark.parametrize("graph", EXAMPLES)
def test_full_momentum_is_stable_on_any_quadratic_where_it_is_bounded(graph):
    net, rng = StackedNetwork(graph), np.random.default_rng(0)
    by_itself = AcceleratedED.safe(1.2, net)  # γ = 1/L: what is drawn below has L = 1.24
    bounded = 0
    for method in (AcceleratedED(gamma=1.0, K=1), AcceleratedED(gamma=1.0, K=2), by_itself):
        if (method.momentum or method.allowed(net)[0]) == 1:
            continue
        bounded += 1
        draws = [rng.random(net.n) ** power for power in (1, 4)] + [(rng.random(net.n) < share) * 1.0 for share in (0.1, 0.5)]
        for h in [*draws, np.eye(net.n)[0]]:
            matrix = recurrence(method, 1.24 * h, net)
            assert np.abs(np.linalg.eigvals(matrix)).max() < 1 + 1e-7, (method, h)
    if not bounded:
        pytest.skip("momentum is not bounded here: restarts are enough")


@pytest.mark.parametrize("outage", [0.0, 0.3])
@pytest.mark.parametrize("graph", ["path(12)", "tree(15)", "star(9)", "grid(3x3)", "complete(6)", "ring(40)"])
def test_one_round_is_enough_on_any_graph_and_no_step_is_longer_than_its_curvature_allows(graph, outage):
    net = degraded(StackedNetwork(graph), outage=outage)
    method = AcceleratedED.safe(1.0, net)
    tau = np.array(method.steps or (1.0,))
    assert method.K == 1 and (method.gamma * tau).max() <= 1.28
    if Polynomial("minimax", 1).contraction(net.mixing) > ENOUGH:
        shares = np.array(shorter(net.topology.degrees))
        assert np.isclose((1 / shares).mean(), SHORTER) and shares.max() <= 1
        assert np.isclose(1.2 / (method.gamma * tau).reshape(-1), 1 / (shares if method.steps else shares[:1])).all()
        assert (np.argsort(-shares, kind="stable") == np.argsort(net.topology.degrees, kind="stable")).all()
        assert method.dual <= 1 - method.momentum + 1e-15


@pytest.mark.parametrize("graph", ["ring(10)", "path(10)", "grid(3x3)"])
def test_regression_with_fewer_equations_than_unknowns_is_solved(graph):
    """With σ > 1 - β half of the first gap was left after 3,000 iterations on the ring."""
    net = StackedNetwork(graph)
    problem = Lasso(net.n, 300, 10, 0.0).sample([0])
    best = optimum(problem).value
    L = problem.lipschitz()
    method = AcceleratedED.safe(float(L.max()), net, float(L.mean()))
    found = solve(method, problem, net, Stop(steps=600))
    first = problem.objective(problem.start()[..., 0, :], StackedObserver())
    assert float(((found.objective - best) / (first - best)).max()) < 1e-4


@pytest.mark.parametrize("graph", ["ring(6)", "path(6)"])
def test_duals_do_not_drift_in_single_precision(graph):
    """y + σ/γ v rounds the same way in every iteration once v is tiny: after 3,000 without care Σy was 4e-5 of the largest y."""
    problem, net = Lasso(6, 12, 4, 0.1).sample([0, 1], dtype=torch.float32), StackedNetwork(graph, dtype=torch.float32)
    method = AcceleratedED.safe(float(problem.lipschitz().max()), net).compressed(Levels(5))
    *_, state = itertools.islice(iterate(method, problem, net), 3001)
    y = state.inner.y
    assert float(y.double().sum(-2).abs().max()) < 5 * torch.finfo(torch.float32).eps * float(y.abs().max())
