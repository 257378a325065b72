"""Several classes: what methods, certificates and intercepts make of a softmax is what they make of its definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression as Theirs
from torch.nn.functional import cross_entropy, one_hot

from milodo.errors import InvalidInput
from milodo.loop import iterate
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import L1, CustomProblem, ElasticNet, LogisticRegression, Regularizer, Softmax, Zero, optimum
from milodo.problems.regularizers import Rescaled, UnpenalizedIntercept
from milodo.sklearn import DecentralizedLogisticRegression

OBSERVER = StackedObserver()
WINE = load_wine()
FEATURES = (WINE.data - WINE.data.mean(0)) / WINE.data.std(0)


def by_definition(problem: Softmax, reg: Regularizer) -> CustomProblem:
    """The same objective, with torch's cross entropy and autograd."""

    def loss(x, data):
        return cross_entropy(data["A"] @ x.reshape(problem.p, problem.k), data["b"])

    class Defined(CustomProblem):
        def lipschitz(self):  # of each node, where a custom problem has one bound for all
            return problem.lipschitz()

    return Defined(loss, {"A": problem.A, "b": problem.b}, problem.d, reg, instances=1, lipschitz=1.0)


def wine(reg: Regularizer, *, intercept: bool = True) -> Softmax:
    """At two uneven sites, the second filled up with samples of weight 0."""
    A = torch.from_numpy(np.column_stack([FEATURES, np.ones(len(FEATURES))]) if intercept else FEATURES)
    b, N = one_hot(torch.from_numpy(WINE.target), 3).double(), 110
    order = torch.randperm(len(A), generator=torch.Generator().manual_seed(0))
    parts, weights = (order[:N], order[N:]), torch.zeros(2, N, dtype=torch.float64)
    rows, classes = torch.zeros(2, N, A.shape[1], dtype=torch.float64), torch.zeros(2, N, 3, dtype=torch.float64)
    for i, part in enumerate(parts):
        rows[i, : len(part)], classes[i, : len(part)], weights[i, : len(part)] = A[part], b[part], 2 * N / len(A)
    return Softmax(rows, classes, UnpenalizedIntercept(reg, 3) if intercept else reg, weights)


def test_every_method_walks_as_on_the_definition(name, build, make):
    problem = make("softmax", L1(0.01), (0,))
    net, method = StackedNetwork("ring(5)"), build(name, problem)
    other = by_definition(problem, L1(0.01))
    for ours, theirs in itertools.islice(zip(iterate(method, problem, net), iterate(method, other, net), strict=False), 6):
        torch.testing.assert_close(ours.x, theirs.x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("reg", [L1(0.02), ElasticNet(0.01, 0.1), ElasticNet(0.0, 0.05)], ids=str)
@pytest.mark.parametrize("intercept", [True, False])
def test_the_certificate_bounds_what_is_left_and_vanishes_at_the_minimum(reg, intercept):
    problem = wine(reg, intercept=intercept)
    best = optimum(problem)
    least = float(best.value)
    assert 0 <= float(problem.certificate(problem.settled(best.x, OBSERVER), OBSERVER)) < 1e-9
    for seed in range(5):
        away = torch.randn(problem.d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for size in (1e-3, 1e-1, 1.0):
            x = problem.settled(best.x + size * away, OBSERVER)
            gap = problem.certificate(x, OBSERVER)
            assert gap is not None and float(gap) >= float(problem.objective(x, OBSERVER)) - least - 1e-12


def test_settled_intercepts_leave_no_slope_and_are_the_log_shares_of_an_empty_model():
    problem = wine(ElasticNet(0.01, 0.1))
    empty = problem.empty(OBSERVER)
    shares = torch.bincount(torch.from_numpy(WINE.target)).double() / len(WINE.target)
    torch.testing.assert_close(empty[-3:], problem.constant(shares), rtol=0, atol=1e-12)
    x = torch.randn(problem.d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slope = OBSERVER.mean(problem.grad(problem.everywhere(problem.settled(x, OBSERVER))), dim=-2)
    assert float(slope[-3:].abs().max()) < 1e-14


def test_the_optimum_is_scikit_learns():
    M = len(FEATURES)
    best = optimum(wine(ElasticNet(0.0, 1 / M)))
    theirs = Theirs(C=1.0, solver="newton-cholesky", tol=1e-12).fit(FEATURES, WINE.target)
    ours = best.x[:-3].reshape(-1, 3).T.numpy()
    assert ours == pytest.approx(theirs.coef_, abs=1e-6 * np.abs(theirs.coef_).max())


def test_two_classes_are_logistic_regression():
    rng = torch.Generator().manual_seed(0)
    A = torch.randn(3, 8, 4, dtype=torch.float64, generator=rng)
    b = torch.randint(0, 2, (3, 8), generator=rng)
    two, logistic = Softmax(A, one_hot(b, 2).double(), Zero()), LogisticRegression(A, b.double(), Zero())
    x = torch.randn(3, 4, dtype=torch.float64, generator=rng)
    both = torch.stack((-x / 2, x / 2), dim=-1).flatten(-2)
    torch.testing.assert_close(two.value(both), logistic.value(x), rtol=1e-12, atol=0)
    assert torch.equal(two.falling(two.predict(both)), logistic.falling(logistic.predict(x)))


@pytest.mark.parametrize("b", [torch.zeros(1, 2, 3), torch.full((1, 2, 3), 1 / 3), torch.ones(1, 2, 3), -torch.eye(3)[None, :2]])
def test_classes_that_are_none_are_refused(b):
    with pytest.raises(InvalidInput, match="b must be 1 at the class of each sample"):
        Softmax(torch.ones(1, 2, 4), b, Zero())


@pytest.mark.parametrize("b", [torch.ones(1, 2), torch.ones(1, 2, 1), torch.ones(1, 3, 3)])
def test_classes_that_do_not_fit_are_refused(b):
    with pytest.raises(InvalidInput, match="do not fit"):
        Softmax(torch.ones(1, 2, 4), b, Zero())


@pytest.mark.parametrize("spares", [1, 3])
@pytest.mark.parametrize(
    "inner", [L1(0.3), ElasticNet(0.3, 0.5), Rescaled(ElasticNet(0.3, 0.5), torch.arange(1.0, 5), torch.ones(()))]
)
def test_spared_coordinates_are_those_of_no_penalty_and_the_others_those_of_the_penalty(inner, spares):
    reg = UnpenalizedIntercept(inner, spares)
    v = torch.randn(2, 4 + spares, generator=torch.Generator().manual_seed(0))
    rest, free = v[..., :4], v[..., 4:]
    for ours, penalised, spared in (
        (reg.prox(v, 0.7), inner.prox(rest, 0.7), free),
        (reg.each(v), inner.each(rest), torch.zeros_like(free)),
        (reg.slope(v), inner.slope(rest), torch.zeros_like(free)),
        (reg.curvature(v), inner.curvature(rest), torch.zeros_like(free)),
        (reg.distance(v, v), inner.distance(rest, rest), free.abs()),
    ):
        assert torch.equal(ours, torch.cat((penalised, spared), dim=-1))
    assert torch.equal(reg.value(v), inner.value(rest)) and bool(reg.free(v)[..., 4:].all())


@pytest.mark.parametrize("seed", range(4))
def test_newton_does_not_stall_along_the_sum_of_the_intercepts(seed):
    """It changes no probability, and what rounding makes of its curvature must not decide how far to go: steps along it are
    rounding in everything else, and the method stops short of the tolerance."""
    rng = np.random.RandomState(seed)
    X, y, weights = rng.rand(15, 30), np.arange(15) % 3, rng.randint(1, 5, size=15)
    model = DecentralizedLogisticRegression(C=150.0, l1_ratio=1.0).fit(X, y, sample_weight=weights)
    again = DecentralizedLogisticRegression(C=150.0, l1_ratio=1.0).fit(X.repeat(weights, axis=0), y.repeat(weights))
    assert max(model.n_iter_, again.n_iter_) <= 25  # gradients, which would go on, take hundreds
    assert model.decision_function(X) == pytest.approx(again.decision_function(X), rel=1e-6, abs=1e-8)
