"""Fits on sums: small problems are solved exactly, Newton's steps never lead uphill, walks along penalties are where they say."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from asked import asked
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import KFold

from milodo.errors import InvalidInput
from milodo.fit import Choice, Task, fit_model, fit_path
from milodo.fit.folds import Folds, deal_folds
from milodo.fit.newton import NewtonOnSums
from milodo.fit.path_solvers import MomentsPath, NewtonPath
from milodo.loop import Stop, iterate, solve
from milodo.metrics import Units, optimality_error
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import L1, LeastSquares, LogisticRegression, Softmax, Zero, optimum
from milodo.problems.sampled import Sampled
from milodo.sklearn import DecentralizedLassoCV
from milodo.solvers.prox_newton import sparse_quadratic
from milodo.status import Status

OBSERVER = StackedObserver()


@given(
    st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 6), st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=6),
)  # fmt: skip
def test_a_sparse_quadratic_is_at_its_minimum_however_alike_its_columns_are(seed, rank, d, w):
    """Optimality: the slope is -w sign(z) where z is not 0 and at most w in size where it is. Fewer rows than unknowns, columns
    twice, weights of 0 among others; started from anywhere, where the first model may fall for ever."""
    rng = np.random.default_rng(seed)
    B = rng.integers(-3, 4, (rank, d)).astype(float)
    y, start = rng.integers(-5, 6, rank).astype(float), rng.integers(-2, 3, d).astype(float)
    H, c, w = B.T @ B, B.T @ y, np.array(w[:d])
    z = sparse_quadratic(*(torch.from_numpy(part) for part in (H, c, w, start))).numpy()
    slope = H @ z - c
    size = 1e-8 * (1 + abs(c).max() + w.max() + abs(H).max() * abs(z).max())
    assert (np.where(z != 0, abs(slope + w * np.sign(z)), np.maximum(abs(slope) - w, 0)) <= size).all()


def classes(k: int, seed: int = 0, rows: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((3, rows, 4)) * [1.0, 2.0, 3.0, 4.0]
    scores = A @ rng.standard_normal((4, k)) + 4 * rng.standard_normal((3, rows, k))
    return torch.from_numpy(A), torch.from_numpy(np.eye(k)[scores.argmax(-1)])


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("reg", [Zero(), L1(0.03)], ids=str)
def test_newtons_steps_never_lead_uphill_and_end_at_the_minimum_from_far_away(reg, k):
    """Where the loss is nearly flat a whole step goes many times too far."""
    A, b = classes(k)
    problem = LogisticRegression(A, b[..., 1], reg) if k == 2 else Softmax(A, b, reg)
    net, values, far = StackedNetwork("path(3)"), [], torch.zeros(problem.d, dtype=torch.float64)
    far[:4] = torch.tensor([1.0, -2.0, 1.5, -1.0])
    values.append(float(problem.objective(far, OBSERVER)))

    method, units = NewtonOnSums(), Units.of(problem, OBSERVER)
    stop = Stop(steps=60, tolerance=1e-10, every=1)
    for state in itertools.islice(iterate(method, problem, net, x0=problem.everywhere(far)), 1, 30):
        here = method.evaluated(state)
        assert here is not None
        values.append(float(problem.objective(here.x, OBSERVER)))
        torch.testing.assert_close(here.value, problem.objective(here.x, OBSERVER))
        torch.testing.assert_close(here.gradient, problem.grad(problem.everywhere(here.x)).mean(-2))
    result = solve(method, problem, net, stop, x0=problem.everywhere(far), units=units)
    x, left = result.x[0], float(optimality_error(problem, result.x, OBSERVER, units).worst)
    assert result.status is Status.CONVERGED and left <= 1e-10 and values[0] > 2 * values[-1]
    assert all(later <= before * (1 + 1e-12) for before, later in itertools.pairwise(values))
    if k == 2:
        best = optimum(problem)
        assert bool(best.certified.all()) and float(problem.objective(x, OBSERVER)) <= float(best.value) * (1 + 1e-9)


@pytest.mark.parametrize("count", [2, 5])
def test_sites_of_one_row_fill_all_folds(count):
    net = StackedNetwork(f"ring({2 * count})")
    targets = [torch.tensor([float(node % 2)]) for node in range(net.n)]
    for classed in (False, True):
        dealt = deal_folds(targets, net, count, 0, classes=classed)
        assert sorted(int(fold[0]) for fold in dealt) == sorted(2 * list(range(count)))


def folded(count: int, k: int | None, rows: int = 12) -> tuple[Sampled, Folds, StackedNetwork]:
    """Three sites whose rows are dealt to folds in turn."""
    A, b = classes(k or 2, rows=rows)
    problem = LeastSquares(A, A.sum(-1) + b[..., 1], L1(0.1)) if k is None else LogisticRegression(A, b[..., 1], L1(0.1))
    net = StackedNetwork("path(3)")
    weighed = problem.reweighed(torch.ones(3, rows, dtype=torch.float64))
    dealt = [torch.arange(rows) % count for _ in range(3)]
    return weighed, Folds.of_sites(weighed, dealt, count, net.total, 3, classes=k is not None), net


def test_a_class_that_lies_in_one_fold_is_refused_although_the_other_does_not():
    A, b = classes(2, rows=10)
    b = torch.zeros(3, 10, dtype=torch.float64)
    b[0, :3] = 1
    problem = LogisticRegression(A, b, L1(0.1)).reweighed(torch.ones(3, 10, dtype=torch.float64))
    net = StackedNetwork("path(3)")
    together = [(torch.arange(10) >= 3).long() for _ in range(3)]
    with pytest.raises(InvalidInput, match="all samples of a class lie in fold 1 of 2"):
        Folds.of_sites(problem, together, 2, net.total, 3, classes=True)
    apart = [torch.arange(10) % 2 for _ in range(3)]
    share = Folds.of_sites(problem, apart, 2, net.total, 3, classes=True).share
    assert share.tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("k", [None, 2])
def test_along_penalties_every_model_is_as_exact_as_was_asked_for(k):
    """Also that of all samples but a fold's, which borrows curvature from that of all."""
    problem, folds, net = folded(3, k, rows=30)
    every, x = problem.reweighed(folds.training(problem)), torch.zeros(problem.d, dtype=torch.float64)
    if k is None:
        walk = MomentsPath(problem, folds.inside(problem), folds.share, x, net.total, 3)
    else:
        walk = NewtonPath(every, x, net.total, OBSERVER, 3)
    units = Units.of(every, OBSERVER)
    for lam in (0.5, 0.1, 0.01, 1e-4, 0.2):
        walk.solve(L1(lam), 1e-9)
        assert float(optimality_error(every.under(L1(lam)), walk.x, OBSERVER, units).worst.max()) <= 1e-9
    points = walk.points
    walk.solve(L1(0.5), 1e-9)
    walk.restore(points)
    assert torch.equal(walk.points, points)


def test_folds_that_are_like_all_samples_go_the_same_way_with_the_curvature_they_borrow(monkeypatch):
    """Every fold holds the same rows, so that all samples but a fold's have their share of everybody's curvature and gradient."""
    monkeypatch.setattr("milodo.fit.path_solvers.STEPS", 1)
    A, b = classes(2, rows=10)
    problem = LogisticRegression(A.repeat(1, 4, 1), b[..., 1].repeat(1, 4), Zero())
    problem, net = problem.reweighed(torch.ones(3, 40, dtype=torch.float64)), StackedNetwork("path(3)")
    folds = Folds.of_sites(problem, [torch.arange(40) // 10 for _ in range(3)], 4, net.total, 3, classes=True)
    walk = NewtonPath(problem.reweighed(folds.training(problem)), torch.zeros(4, dtype=torch.float64), net.total, OBSERVER, 3)
    walk.solve(Zero(), 1e-9)
    assert bool((walk.points != 0).all())
    torch.testing.assert_close(walk.points, walk.points[:1].expand_as(walk.points), rtol=1e-12, atol=0)


@pytest.mark.parametrize("constant", [1e6 / 3, -7e11 / 9, 0.1, 0.0], ids=str)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_column_that_is_the_same_everywhere_explains_nothing(loss, constant):
    """Its mean is rounded, and what is left of it around that mean is no feature."""
    A, b = classes(2, rows=37)
    sizes, seen = (37, 5, 22), []
    targets = [(A[i, :N].sum(-1) if loss == "squared" else b[i, :N, 1]) for i, N in enumerate(sizes)]
    for extra in (False, True):
        features = [A[i, :N] for i, N in enumerate(sizes)]
        features = [torch.cat((X, torch.full((len(X), 1), constant).double()), dim=1) for X in features] if extra else features
        columns = tuple("abcde"[: features[0].shape[1]])
        task = Task(target="y", loss=loss, l1=0.01)
        seen.append(fit_model(asked(features, targets, task, StackedNetwork("path(3)"), OBSERVER, columns=columns)))
    bare, fit = seen
    assert fit.status is bare.status is Status.CONVERGED and fit.coefficients[-1] == 0
    assert fit.coefficients[:-1] == pytest.approx(bare.coefficients, abs=1e-6 * np.abs(bare.coefficients).max())
    assert fit.objective == pytest.approx(bare.objective, rel=1e-8)


def test_the_mean_over_folds_weighs_them_as_their_rows_weigh():
    rng = np.random.default_rng(0)
    X, cv = rng.standard_normal((60, 4)), KFold(3)
    y, weights = X.sum(1) + rng.standard_normal(60), np.repeat([0.1, 1.0, 5.0], 20)
    found = DecentralizedLassoCV(alphas=6, cv=cv).fit(X, y, sample_weight=weights)
    losses = np.array(found.path_.losses)
    each = [weights[test].sum() for _, test in cv.split(X)]
    assert found.path_.mean == pytest.approx(np.average(losses, axis=1, weights=each), rel=1e-9)
    assert np.abs(losses.mean(1) - found.path_.mean).max() > 1e-3 * losses.max()


def test_a_least_loss_lies_at_the_end_only_where_there_is_a_path_to_go_further():
    A, _ = classes(2, rows=10)
    parts = [*A], [X.sum(-1) for X in A], Task(target="y")
    found = [
        fit_path(asked(*parts, StackedNetwork("path(3)"), OBSERVER, columns=tuple("abcd")), Choice(alphas=alphas, folds=2))[1]
        for alphas in ((0.1,), (1.0, 0.1, 0.01))
    ]
    assert found[0].best == 0 and not found[0].at_end
    assert [replace(found[1], best=best).at_end for best in range(3)] == [False, False, True]
