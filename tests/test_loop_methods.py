"""The methods of training loops against their published recurrences, written out with a dense W; where they stop, and why."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from milodo.algorithms import DPSGD, Ahead, DecentLaM, DSGDm, GradientTracking, ProxATC, ProxDGD, ProxED, QGDSGDm
from milodo.loop import iterate
from milodo.metrics import consensus_error
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import LeastSquares, Zero
from milodo.problems.synthetic import stream
from milodo.topology import dense

N, D, GAMMA, BETA, STEPS = 6, 4, 0.05, 0.7, 25
NET = StackedNetwork("erdos_renyi(6,0.5,seed=1)")
W = dense(NET.topology, NET.mixing.w)
RNG = stream(7)
A, B = RNG.standard_normal((N, 9, D)), RNG.standard_normal((N, 9))
PROBLEM = LeastSquares(torch.from_numpy(A), torch.from_numpy(B), Zero())
X0 = RNG.standard_normal((N, D))


def grad(x):
    return np.einsum("nij,ni->nj", A, np.einsum("nij,nj->ni", A, x) - B) / A.shape[1]


def d_psgd(x):
    while True:
        yield x
        x = W @ x - GAMMA * grad(x)


def dsgdm(x):
    m = 0 * x
    while True:
        yield x
        m = BETA * m + grad(x)
        x = W @ (x - GAMMA * m)


def qg_dsgdm(x):
    m = 0 * x
    while True:
        yield x
        g = grad(x)
        m_hat = BETA * m + g
        new = W @ (x - GAMMA * (g + BETA * m_hat))
        x, m = new, 0.9 * m + 0.1 * (x - new) / GAMMA


def decentlam(x):
    m = 0 * x
    while True:
        yield x
        m = BETA * m + (x - W @ (x - GAMMA * grad(x))) / GAMMA
        x = x - GAMMA * m


def d_squared(x):
    """x⁺ = W̃(2x - x₋ - γ(g - g₋)), W̃ = (I + W)/2."""
    mixing = (np.eye(N) + W) / 2
    yield x
    last, x = x, mixing @ (x - GAMMA * grad(x))
    while True:
        yield x
        last, x = x, mixing @ (2 * x - last - GAMMA * (grad(x) - grad(last)))


def gradient_tracking(x):
    y = grad(x)
    while True:
        yield x
        new = W @ x - GAMMA * y
        x, y = new, W @ y + grad(new) - grad(x)


CASES = [
    (d_psgd, DPSGD(gamma=GAMMA)),
    (dsgdm, DSGDm(gamma=GAMMA, alpha=1 - BETA)),
    (qg_dsgdm, QGDSGDm(gamma=GAMMA, alpha=1 - BETA)),
    (decentlam, DecentLaM(gamma=GAMMA, alpha=1 - BETA)),
    (d_squared, ProxED(gamma=GAMMA)),
    (gradient_tracking, GradientTracking(gamma=GAMMA)),
]


@pytest.mark.parametrize(("published", "method"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_iterates_are_those_of_the_published_recurrence(published, method):
    states = iterate(method, PROBLEM, NET, x0=torch.from_numpy(X0))
    for state, x in itertools.islice(zip(states, published(X0), strict=False), STEPS):
        torch.testing.assert_close(state.x, torch.from_numpy(x), rtol=1e-11, atol=1e-11)


@torch.no_grad()
def rest(method, steps=2500):
    """Where it comes to rest."""
    return next(itertools.islice(iterate(method, PROBLEM, NET), steps, None)).x


def test_momentum_moves_the_place_where_a_method_stops_as_its_equations_say():
    """DSGDm stops where Prox-DGD with γ/(1 - β) does, DecentLaM where it does with γ, QG-DSGDm with γ(1 + β)."""
    for method, gamma in (
        (DSGDm(gamma=GAMMA, alpha=1 - BETA), GAMMA / (1 - BETA)),
        (DecentLaM(gamma=GAMMA, alpha=1 - BETA), GAMMA),
        (QGDSGDm(gamma=GAMMA, alpha=1 - BETA), GAMMA * (1 + BETA)),
    ):
        torch.testing.assert_close(rest(method), rest(ProxDGD(gamma=gamma)), rtol=1e-7, atol=1e-7)
    apart = [float(consensus_error(rest(m), StackedObserver())) for m in (CASES[3][1], CASES[2][1], CASES[1][1])]
    assert apart == sorted(apart) and apart[0] < 0.5 * apart[2]


def test_both_kinds_of_gradient_tracking_have_one_limit():
    torch.testing.assert_close(rest(GradientTracking(gamma=GAMMA)), rest(ProxATC(gamma=GAMMA)), rtol=1e-7, atol=1e-7)


def test_who_talks_ahead_does_not_need_the_gradient_to_talk():
    for method in (DPSGD(gamma=GAMMA), GradientTracking(gamma=GAMMA)):
        assert isinstance(method, Ahead)
        state = method.init(torch.from_numpy(X0), PROBLEM, NET)
        heard = method.hear(state, NET)  # no problem is given, so none is asked
        assert torch.equal(method.move(state, heard, PROBLEM).x, method.step(state, PROBLEM, NET).x)
