"""Each method against its equations as printed: plain numpy with a dense W."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from milodo.algorithms import ADMM, APAPC, DAPG, ODAPG, PGExtra, PrimalDual, ProxATC, ProxDGD, ProxED
from milodo.loop import iterate
from milodo.network import StackedNetwork
from milodo.network.exchange import Polynomial
from milodo.problems import L1, Lasso, LeastSquares, Zero
from milodo.topology import dense, weights

N, D, LAM = 6, 5, 0.1
STEPS = 50
ROUNDING = 1e-12
"""Fifty contracting steps on numbers of size one: rounding does not build up."""

GRAPHS = ["ring(6)", "star(6)"]


class Numpy:
    """The same instance, in the paper's letters."""

    def __init__(self, graph: str, lam: float) -> None:
        family = Lasso(N, D, 8, lam, reg=L1(lam) if lam else Zero())
        self.problem: LeastSquares = family.sample([0])
        self.net = StackedNetwork(graph)
        self.A, self.b, self.lam = self.problem.A[0].numpy(), self.problem.b[0].numpy(), lam
        self.W = dense(self.net.topology, weights(self.net.topology, "metropolis"))
        self.lap = np.eye(N) - self.W
        self.gamma = 0.5 / max(np.linalg.norm(A, 2) ** 2 / len(A) for A in self.A)
        self.x0 = np.random.default_rng(0).standard_normal((N, D))

    def grad(self, x):
        return np.stack([A.T @ (A @ row - b) / len(b) for A, b, row in zip(self.A, self.b, x, strict=True)])

    def prox(self, v, step):
        return np.sign(v) * np.maximum(np.abs(v) - step * self.lam, 0)

    def ours(self, method, steps=STEPS):
        states = iterate(method, self.problem, self.net, x0=torch.from_numpy(self.x0).unsqueeze(0))
        return list(itertools.islice(states, steps + 1))

    def trajectory(self, method, steps=STEPS):
        return np.stack([state.x[0].numpy() for state in self.ours(method, steps)])


@pytest.fixture(params=GRAPHS)
def lasso(request: pytest.FixtureRequest) -> Numpy:
    return Numpy(request.param, LAM)


@pytest.fixture(params=GRAPHS)
def smooth(request: pytest.FixtureRequest) -> Numpy:
    return Numpy(request.param, 0.0)


def same(ours: np.ndarray, printed: list[np.ndarray]) -> None:
    np.testing.assert_allclose(ours, np.stack(printed), rtol=0, atol=ROUNDING)


def test_prox_dgd_is_the_papers(lasso):
    x, printed = lasso.x0, [lasso.x0]
    for _ in range(STEPS):
        z = x - lasso.gamma * lasso.grad(x)
        x = lasso.prox(lasso.W @ z, lasso.gamma)
        printed.append(x)
    same(lasso.trajectory(ProxDGD(gamma=lasso.gamma)), printed)


def test_prox_atc_is_the_papers(lasso):
    W, x, y_mixed, z = lasso.W, lasso.x0, lasso.x0, lasso.x0
    printed = [x]
    for _ in range(STEPS):
        z_last, z = z, x - lasso.gamma * lasso.grad(x)
        z_tilde = y_mixed - z + z_last
        y = 2 * y_mixed - W @ z_tilde
        y_mixed = W @ y
        x = lasso.prox(y_mixed, lasso.gamma)
        printed.append(x)
    same(lasso.trajectory(ProxATC(gamma=lasso.gamma)), printed)


def test_pg_extra_without_a_branch_is_the_papers_with_one(lasso):
    W, gamma = lasso.W, lasso.gamma
    xs, z_tildes = [lasso.x0], [None]
    for k in range(STEPS):
        z = W @ xs[k] - gamma * lasso.grad(xs[k])
        if k == 0:
            z_tilde = z
        else:
            past = xs[k - 1]
            z_tilde = z + z_tildes[k] - past + lasso.lap @ past / 2 + gamma * lasso.grad(past)
        z_tildes.append(z_tilde)
        xs.append(lasso.prox(z_tilde, gamma))
    same(lasso.trajectory(PGExtra(gamma=gamma)), xs)


def test_prox_ed_is_the_papers(lasso):
    x, y_mixed, z = lasso.x0, lasso.x0, lasso.x0
    printed = [x]
    for _ in range(STEPS):
        z_last, z = z, x - lasso.gamma * lasso.grad(x)
        y = y_mixed + z - z_last
        y_mixed = (np.eye(N) + lasso.W) / 2 @ y
        x = lasso.prox(y_mixed, lasso.gamma)
        printed.append(x)
    same(lasso.trajectory(ProxED(gamma=lasso.gamma)), printed)


def test_prox_atc_without_r_is_atc_gradient_tracking(smooth):
    """x^{k+2} = 2W x^{k+1} - W² x^k - γW² (∇f(x^{k+1}) - ∇f(x^k))."""
    x, W, gamma = smooth.trajectory(ProxATC(gamma=smooth.gamma)), smooth.W, smooth.gamma
    for k in range(STEPS - 1):
        expected = 2 * W @ x[k + 1] - W @ W @ x[k] - gamma * W @ W @ (smooth.grad(x[k + 1]) - smooth.grad(x[k]))
        np.testing.assert_allclose(x[k + 2], expected, rtol=0, atol=ROUNDING)


def test_prox_ed_without_r_is_milodo_with_constant_weights(smooth):
    """MiLoDo's rules (LEPDO-1 to 3) from y⁰ = 0 with p = γ, p1 = w/(2γ), p2 = w/2: its special initialisation."""
    gamma, lap = smooth.gamma, smooth.lap
    x, y = smooth.x0, np.zeros((N, D))
    printed = [x]
    for _ in range(STEPS):
        z = x - gamma * (smooth.grad(x) + y)
        y = y + lap @ z / (2 * gamma)
        x = z - lap @ z / 2
        printed.append(x)
    same(smooth.trajectory(ProxED(gamma=gamma)), printed)


def test_pg_extra_without_r_is_extra(smooth):
    """x^{k+2} = (I + W) x^{k+1} - (I + W)/2 x^k - γ (∇f(x^{k+1}) - ∇f(x^k)) (Shi et al. 2015a)."""
    x, gamma, once = smooth.trajectory(PGExtra(gamma=smooth.gamma)), smooth.gamma, np.eye(N) + smooth.W
    for k in range(STEPS - 1):
        expected = once @ x[k + 1] - once / 2 @ x[k] - gamma * (smooth.grad(x[k + 1]) - smooth.grad(x[k]))
        np.testing.assert_allclose(x[k + 2], expected, rtol=0, atol=ROUNDING)


def mix_fast(W: np.ndarray, X: np.ndarray, K: int) -> np.ndarray:
    """Liu and Morse 2011."""
    lam = np.sort(np.abs(np.linalg.eigvalsh(W)))[-2]
    eta = (1 - np.sqrt(1 - lam**2)) / (1 + np.sqrt(1 - lam**2))
    before, now = X, X
    for _ in range(K):
        before, now = now, (1 + eta) * W @ now - eta * before
    return now


@pytest.mark.parametrize("K", [1, 2, 3])
def test_dapg_is_its_paper(lasso, K):
    eta, alpha = lasso.gamma, 0.3
    X = Y = lasso.x0
    S = lasso.grad(Y)
    printed = [X]
    for _ in range(STEPS):
        X_last, Y_last = X, Y
        X = mix_fast(lasso.W, lasso.prox(Y - eta * S, eta), K)
        Y = mix_fast(lasso.W, X + (1 - alpha) / (1 + alpha) * (X - X_last), K)
        S = mix_fast(lasso.W, S + lasso.grad(Y) - lasso.grad(Y_last), K)
        printed.append(X)
    same(lasso.trajectory(DAPG(eta=eta, alpha=alpha, K=K)), printed)


@pytest.mark.parametrize("K", [1, 2, 3])
def test_odapg_is_its_paper(lasso, K):
    eta, tau = lasso.gamma, 0.3
    X = Y = Z = lasso.x0
    S = lasso.grad(X)
    printed = [X]
    for _ in range(STEPS):
        X_last, X = X, tau * Z + (1 - tau) * Y
        S = mix_fast(lasso.W, S + lasso.grad(X) - lasso.grad(X_last), K)
        Z = mix_fast(lasso.W, lasso.prox(Z - eta * S, eta), K)
        Y = mix_fast(lasso.W, tau * Z + (1 - tau) * Y, K)
        printed.append(X)
    same(lasso.trajectory(ODAPG(eta=eta, tau=tau, K=K)), printed)


@pytest.mark.parametrize("method", [DAPG(eta=0.1, alpha=0.3, K=2), ODAPG(eta=0.1, tau=0.3, K=2)], ids=lambda m: m.label)
def test_tracked_gradients_keep_the_mean_of_the_gradients(lasso, method):
    for state in lasso.ours(method):
        torch.testing.assert_close(state.s.mean(-2), state.g.mean(-2), rtol=0, atol=ROUNDING)


def test_apapc_is_its_paper_with_a_prox(lasso):
    tau, theta = 0.2, 0.8
    eta, largest = lasso.gamma / tau, np.linalg.eigvalsh(lasso.lap)[-1]
    x = xf = lasso.x0
    z = np.zeros_like(x)
    printed = [xf]
    for _ in range(STEPS):
        xg = tau * x + (1 - tau) * xf
        g = lasso.grad(xg)
        z = z + theta / eta / largest * lasso.lap @ lasso.prox(x - eta * (g + z), eta)
        x_last, x = x, lasso.prox(x - eta * (g + z), eta)
        xf = xg + 2 * tau / (2 - tau) * (x - x_last)
        printed.append(xf)
    same(lasso.trajectory(APAPC(eta=eta, tau=tau, theta=theta)), printed)


def test_what_apapc_is_judged_at_is_an_average_of_what_it_visited(lasso):
    """For τ <= 2/3: so it stays within walls."""
    tau, states = 0.6, lasso.ours(APAPC(eta=lasso.gamma, tau=0.6, theta=0.8), 20)
    a, b = 2 * tau / (2 - tau), tau**2 / (2 - tau)
    for k in range(1, 21):
        weights = np.array([(1 - tau) ** (k - 1 - i) * (a * (1 - tau) - b) for i in range(k)] + [a])
        weights[0] = (1 - tau) ** (k - 1) * (1 - tau - b)
        assert weights.min() >= 0 and weights.sum() == pytest.approx(1)
        expected = sum(w * state.u for w, state in zip(weights, states, strict=False))
        torch.testing.assert_close(states[k].x, expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("sigma", [1.0, 1.5])
def test_admm_with_many_inner_steps_is_its_paper_with_exact_solves(smooth, sigma):
    """From a common start, in the printed order: x first, then a."""
    c, degrees = 0.4, np.array(smooth.net.topology.degrees)[:, None]
    neighbours = (smooth.W != 0) & ~np.eye(N, dtype=bool)
    smooth.x0 = np.broadcast_to(smooth.x0[:1], (N, D)).copy()
    x, a = smooth.x0, np.zeros((N, D))
    printed = [x]
    for _ in range(STEPS):
        pulled = c * (degrees * x + neighbours @ x) - a
        x = np.stack([
            np.linalg.solve(A.T @ A / len(b) + 2 * c * d * np.eye(D), A.T @ b / len(b) + p)
            for A, b, d, p in zip(smooth.A, smooth.b, degrees[:, 0], pulled, strict=True)
        ])  # fmt: skip
        a = a + sigma * c * (degrees * x - neighbours @ x)
        printed.append(x)
    same(smooth.trajectory(ADMM(sigma=sigma, gamma=1 / c, inner=300)), printed)


@pytest.mark.parametrize(
    ("method", "dual"), [(APAPC(eta=0.3, tau=0.2, theta=0.8), "z"), (ADMM(sigma=1.0, gamma=2.0, inner=5), "a")],
    ids=lambda value: getattr(value, "label", value),
)  # fmt: skip
def test_duals_sum_to_zero(lasso, method, dual):
    """Also of nodes that start apart, and whose curvatures, and so whose first steps, differ."""
    for state in lasso.ours(method):
        assert getattr(state, dual).sum(-2).abs().max() < ROUNDING


def test_fastmix_keeps_the_mean_and_contracts_disagreement(lasso):
    net, x = lasso.net, torch.from_numpy(lasso.x0)
    mean = x.mean(0)
    disagreement = [(Polynomial("fastmix", K)(x, None, net)[0] - mean).norm() for K in range(1, 40)]
    for K in (1, 2, 5, 39):
        torch.testing.assert_close(Polynomial("fastmix", K)(x, None, net)[0].mean(0), mean, rtol=0, atol=ROUNDING)
    # Liu and Morse: at the rate 1 - √(1 - λ) or better, which plain mixing's λ does not reach.
    rate = 1 - np.sqrt(1 - net.contraction)
    assert rate < net.contraction
    assert disagreement[-1] < 10 * rate**39 * (x - mean).norm()


def test_fastmix_with_one_round_is_not_plain_mixing(lasso):
    x = torch.from_numpy(lasso.x0)
    assert (Polynomial("fastmix", 1)(x, None, lasso.net)[0] - lasso.net.mix(x)).norm() > 0.01


def test_fastmix_counts_its_rounds(lasso):
    Polynomial("fastmix", 3)(torch.from_numpy(lasso.x0), None, lasso.net)
    assert lasso.net.traffic.rounds == 3


def test_primal_dual_is_the_papers(lasso):
    gamma = 0.3
    degrees = np.diag([len(lasso.net.topology.neighbours(i)) for i in range(N)])
    adjacency = (lasso.W != 0) & ~np.eye(N, dtype=bool)
    x, y = lasso.x0, np.zeros((N, D))
    printed, duals = [x], [y]
    for _ in range(STEPS):
        x = lasso.prox(x - gamma / N * (lasso.grad(x) + y), gamma / N)
        y = y + 2 * gamma * (degrees - adjacency) @ x
        printed.append(x)
        duals.append(y)
    states = lasso.ours(PrimalDual(gamma=gamma))
    same(np.stack([state.x[0].numpy() for state in states]), printed)
    same(np.stack([state.y[0].numpy() for state in states]), duals)


def test_primal_dual_prices_sum_to_zero(lasso):
    for state in lasso.ours(PrimalDual(gamma=0.3)):
        assert state.y.sum(-2).abs().max() < ROUNDING


def test_the_first_primal_dual_step_by_hand():
    """Two nodes, one unknown, f_i(x) = ½ (x - b_i)², b = (1, 3), γ = 1: x = ½ b, then y = 2 (x_i - x_j)."""
    problem = LeastSquares(torch.ones(2, 1, 1).double(), torch.tensor([[1.0], [3.0]]).double(), Zero())
    states = list(itertools.islice(iterate(PrimalDual(gamma=1.0), problem, StackedNetwork("path(2)")), 2))
    assert states[1].x.flatten().tolist() == [0.5, 1.5]
    assert states[1].y.flatten().tolist() == [-2.0, 2.0]
