"""Methods that find their momentum or their damping by themselves, against the equations of their docstrings in plain numpy.

Runs are long enough for momentum to restart, for steps to be taken back and for damping to grow and to relax."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from test_equations import Numpy

from milodo.algorithms import AcceleratedED, FloodAPG, TreeAPG, TreeNewton
from milodo.loop import iterate
from milodo.network import StackedNetwork
from milodo.problems import L1, LeastSquares, LogisticRegression, Zero

STEPS, SUMS = 160, 100
"""Iterations of gossip, and of methods on sums, before anything is so near its optimum that rounding decides."""
CLOSE = 1e-9
"""Momentum carries rounding along: about a hundred steps on numbers of size one, none of them near rest."""


def slow(graph: str) -> Numpy:
    """A lasso whose columns differ so much in size that hundreds of iterations are not enough."""
    case = Numpy(graph, 0.02)
    case.A = case.A * 0.3 ** np.arange(case.A.shape[-1])
    case.problem = LeastSquares(torch.from_numpy(case.A)[None], torch.from_numpy(case.b)[None], L1(0.02))
    case.gamma = 0.5 / max(np.linalg.norm(A, 2) ** 2 / len(A) for A in case.A)
    return case


def momentum(t: np.ndarray) -> np.ndarray:
    return (1 + np.sqrt(1 + 4 * t * t)) / 2


@pytest.mark.parametrize(("graph", "most"), [("star(6)", 0.975), ("ring(6)", 1.0), ("path(6)", 0.95), ("complete(6)", 1.0)])
def test_accelerated_ed_is_its_docstring_with_restarts(graph, most):
    case = slow(graph)
    gamma, values = case.gamma, np.linalg.eigvalsh(case.lap)
    A, theta = case.lap / values[-1], 1 - values[1] / values[-1]  # z - A z for one fitted round; what it leaves of disagreement
    sigma = 0.05 + (1 - theta) ** 2 / 2
    sigma = sigma if most == 1 else min(sigma, 1 - most)
    x = last = case.x0
    y, t, trend, calm = np.zeros_like(x), np.ones((6, 1)), np.zeros((6, 1)), np.zeros((6, 1))
    printed, restarts = [x], 0
    for _ in range(STEPS):
        t_next = momentum(t)
        e = x + np.minimum((t - 1) / t_next, most) * (x - last)
        z = case.prox(e - gamma * (case.grad(e) + y), gamma)
        v = A @ z
        y, last, x = y + sigma / gamma * v, x, z - v
        trend = 0.9 * trend + 0.1 * ((e - z) * (x - last)).sum(1, keepdims=True)
        restart = (trend > 0) & (calm >= 30)
        t, calm = np.where(restart, 1.0, t_next), np.where(restart, 0, calm + 1)
        restarts += restart.sum()
        printed.append(x)
    assert restarts >= 4  # else the run says nothing of them
    ours = case.trajectory(AcceleratedED(gamma=gamma, K=1), STEPS)
    np.testing.assert_allclose(ours, np.stack(printed), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("method", [TreeAPG(), FloodAPG()], ids=lambda method: method.label)
def test_accelerated_gradients_on_sums_are_their_docstring_with_restarts_and_steps_that_are_taken_back(method):
    case = slow("ring(6)")
    L = np.mean([np.linalg.norm(A, 2) ** 2 / len(A) for A in case.A])
    f = lambda x: np.mean([((A @ x - b) ** 2).mean() / 2 for A, b in zip(case.A, case.b, strict=True)])  # noqa: E731
    grad = lambda x: case.grad(np.tile(x, (6, 1))).mean(0)  # noqa: E731
    x = last = e = case.x0[0]
    t, calm, gamma, g, kept = 1.0, 10, 6 / L, None, e
    printed, restarts, back = [x], 0, 0
    for k in range(SUMS):
        uphill = k > 0 and (kept - x) @ (x - last) > 0 and calm >= 10
        t = 1.0 if uphill else t
        t_next = momentum(np.array(t)).item()
        e = x + (t - 1) / t_next * (x - last)
        D = f(x) - f(kept) - grad(kept) @ (x - kept) if k else 0.0
        if k == 0 or gamma * L <= 1 or (x - kept) @ (x - kept) / (2 * gamma) >= D:
            gamma = 1.1 * gamma if k else gamma
            g, kept, last, t = grad(e), e, x, t_next
            calm = 0 if uphill else calm + 1
            restarts += uphill
        else:
            gamma, calm, back = max(gamma / 2, 1 / L), calm + 1, back + 1
        x = case.prox(kept - gamma * g, gamma)
        printed.append(x)
    assert restarts >= 2 and back >= 5
    case.x0 = np.tile(case.x0[0], (6, 1))
    ours = case.trajectory(method, SUMS)
    assert (ours == ours[:, :1]).all()
    np.testing.assert_allclose(ours[:, 0], np.stack(printed), rtol=0, atol=CLOSE)


def test_tree_newton_is_its_docstring_and_its_damping_grows_and_relaxes():
    """Logistic regression without a penalty from where the loss is nearly flat: Newton's step by itself goes too far there."""
    rng = np.random.default_rng(2)
    A = rng.standard_normal((4, 30, 3))
    b = (A.sum(-1) + 2 * rng.standard_normal((4, 30)) > 0).astype(float)
    rows, labels = A.reshape(-1, 3), b.ravel()
    p = lambda x: 1 / (1 + np.exp(-rows @ x))  # noqa: E731
    f = lambda x: (np.logaddexp(0, rows @ x) - labels * (rows @ x)).mean()  # noqa: E731
    grad = lambda x: rows.T @ (p(x) - labels) / len(labels)  # noqa: E731
    hessian = lambda x: rows.T @ ((p(x) * (1 - p(x)))[:, None] * rows) / len(labels)  # noqa: E731
    L = np.mean([np.linalg.norm(part, 2) ** 2 / len(part) / 4 for part in A])
    x = at = np.array([3.0, -2.0, 1.5])
    delta, printed, deltas = 0.0, [x], [0.0]
    for k in range(7):  # later ones are so near that rounding decides
        s = x - at
        if k:
            lacking = f(x) - f(at) - grad(at) @ s - s @ hessian(at) @ s / 2
            fine = lacking <= delta * s @ s / 2 or delta >= L
            delta = delta / 4 if fine else min(4 * max(delta, lacking / (s @ s)), L)
            at = x if fine else at
        x = at - np.linalg.solve(hessian(at) + delta * np.eye(3), grad(at))
        printed.append(x)
        deltas.append(delta)
    grown = [later > before for before, later in itertools.pairwise(deltas)]
    relaxed = [0 < later < before for before, later in itertools.pairwise(deltas)]
    assert any(grown) and sum(relaxed) >= 3
    problem = LogisticRegression(torch.from_numpy(A), torch.from_numpy(b), Zero())
    states = iterate(TreeNewton(), problem, StackedNetwork("ring(4)"), x0=torch.from_numpy(np.tile(printed[0], (4, 1))))
    ours = list(itertools.islice(states, 8))
    np.testing.assert_allclose([state.x[0] for state in ours], printed, rtol=0, atol=1e-7)  # the model is minimised by steps
    np.testing.assert_allclose([float(state.delta[0]) for state in ours], deltas, rtol=1e-6, atol=1e-12)
