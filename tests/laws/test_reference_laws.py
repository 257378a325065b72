"""The reference optimum: certified, and agreed to by solvers that share no line with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from sklearn.linear_model import Lasso as SklearnLasso
from sklearn.linear_model import LogisticRegression as SklearnLogistic

from milodo.errors import InvalidInput
from milodo.network import StackedObserver
from milodo.problems import (
    L1,
    Box,
    Lasso,
    LeastSquares,
    LinearModel,
    Logistic,
    NonNegative,
    Problem,
    Reference,
    Zero,
    optimum,
)
from milodo.solvers.certificates import Certifier

OBSERVER = StackedObserver()


@pytest.fixture(scope="module")
def lasso() -> tuple[LinearModel, Reference]:
    """The paper's LASSO(10,300,10,0.1): 100 equations, 300 unknowns."""
    problem = Lasso(10, 300, 10, 0.1).sample([0, 1, 2])
    return problem, optimum(problem)


@pytest.fixture(scope="module")
def logistic() -> tuple[LinearModel, Reference]:
    """The paper's Logistic(10,50,100,0.1)."""
    problem = Logistic(10, 50, 100, 0.1).sample([0, 1])
    return problem, optimum(problem, 1e-12)


def pooled(problem: LinearModel, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Data of all nodes together: [n N, d] and [n N]."""
    return problem.A[k].flatten(0, 1).numpy(), problem.b[k].flatten().numpy()


def test_lasso_is_certified_to_rounding(lasso):
    _, reference = lasso
    assert reference.kind == "duality gap"
    assert (reference.certificate < 1e-14).all()


def test_logistic_is_certified_to_rounding(logistic):
    _, reference = logistic
    assert reference.kind == "duality gap"
    assert (reference.certificate < 1e-12).all()


@pytest.fixture
def solvable(kind, reg, make) -> Problem:
    if kind == "logistic" and reg in (Zero(), NonNegative()):
        pytest.skip("thirty labels made by a plane are separable: x runs away, and there is no minimum")
    return make(kind, reg)


def test_every_problem_is_certified(solvable):
    reference = optimum(solvable, 1e-12)
    assert (reference.certificate < 1e-12).all()
    torch.testing.assert_close(reference.value, solvable.objective(reference.x, OBSERVER), rtol=1e-14, atol=0)


@pytest.mark.parametrize("box", [Box(0.5, 1.0), Box(-2.0, -1.0)], ids=str)
def test_a_box_far_from_zero_is_certified_too(kind, make, box):
    reference = optimum(make(kind, box), 1e-12)
    assert reference.value.isfinite().all() and (reference.certificate < 1e-12).all()


def test_lasso_agrees_with_scikit_learn(lasso):
    problem, reference = lasso
    for k in range(3):
        A, b = pooled(problem, k)
        found = SklearnLasso(alpha=0.1, fit_intercept=False, tol=1e-12, max_iter=1_000_000).fit(A, b).coef_
        theirs = ((A @ found - b) ** 2).sum() / (2 * len(b)) + 0.1 * np.abs(found).sum()
        # Its tolerance is a duality gap relative to ‖b‖²/M, and ‖b‖²/M is about 100 here.
        assert theirs - reference.value[k].item() == pytest.approx(0, abs=1e-9)
        assert reference.value[k].item() <= theirs * (1 + 1e-13)


def test_logistic_agrees_with_scikit_learn(logistic):
    problem, reference = logistic
    for k in range(2):
        A, b = pooled(problem, k)
        model = SklearnLogistic(
            l1_ratio=1.0, C=1 / (0.1 * len(b)), fit_intercept=False, solver="liblinear", tol=1e-10, max_iter=100_000
        )
        found = model.fit(A, b).coef_[0]
        u = A @ found
        theirs = np.logaddexp(0, np.where(b == 1, -u, u)).mean() + 0.1 * np.abs(found).sum()
        # liblinear stops at a relative gradient of 1e-10; in the value that is squared, and rounding remains.
        assert reference.value[k].item() == pytest.approx(theirs, rel=1e-10)
        assert reference.value[k].item() <= theirs * (1 + 1e-13)


@pytest.mark.parametrize("samples", [3, 20])
def test_linear_regression_is_least_squares(samples):
    """Over- and underdetermined."""
    problem = Lasso(4, 30, samples, 0).sample([0])
    reference = optimum(problem)
    A, b = pooled(problem, 0)
    solution = torch.linalg.lstsq(torch.from_numpy(A), torch.from_numpy(b).unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
    # An underdetermined value is 0: the square of a rounded residual.
    theirs = problem.objective(solution.unsqueeze(0), OBSERVER)
    torch.testing.assert_close(reference.value, theirs, rtol=1e-12, atol=1e-20)
    if samples == 20:
        torch.testing.assert_close(reference.x[0], solution, rtol=0, atol=1e-12)


def test_non_negative_least_squares_agrees_with_scipy():
    problem = Lasso(4, 10, 8, reg=NonNegative()).sample([0, 1])
    reference = optimum(problem, 1e-13)
    for k in range(2):
        solution, _ = nnls(*pooled(problem, k))
        np.testing.assert_allclose(reference.x[k].numpy(), solution, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "family", [Lasso(4, 6, 10, 0.1), Logistic(4, 6, 10, 0.1), Lasso(4, 6, 10, reg=Box(-0.2, 0.3))], ids=lambda f: f.name
)
def test_the_certificate_bounds_what_is_left_to_gain(family):
    problem = family.sample([0, 1])
    best = optimum(problem)
    generator = torch.Generator().manual_seed(0)
    for scale in (1e-6, 1e-4, 1e-2, 1.0, 10.0):
        for _ in range(20):
            x = best.x + scale * torch.randn(best.x.shape, dtype=torch.float64, generator=generator)
            x = problem.reg.prox(x, 1e-3)  # inside the box, and with some exact zeros
            value = problem.objective(x, OBSERVER)
            certificate = Certifier(problem)(x, enough=torch.inf)
            assert set(certificate.kinds) == {"duality gap"}
            # value and best.value are rounded at 1e-16 of themselves
            assert (value - best.value <= (certificate.bound + 1e-15) * value.abs()).all()


def test_no_step_from_the_optimum_gains(solvable):
    best = optimum(solvable, 1e-12)
    generator = torch.Generator().manual_seed(0)
    for scale in (1e-6, 1e-3, 1e-1):
        x = best.x + scale * torch.randn(100, *best.x.shape, dtype=torch.float64, generator=generator)
        assert (solvable.objective(x, OBSERVER) >= best.value * (1 - 1e-11)).all()


def test_instances_in_a_batch_are_solved_as_each_alone(kind, make):
    problem = make(kind, L1(0.3), (5, 6, 7))
    together = optimum(problem, 1e-13)
    for k, seed in enumerate((5, 6, 7)):
        alone = optimum(make(kind, L1(0.3), (seed,)), 1e-13)
        torch.testing.assert_close(together.value[k : k + 1], alone.value, rtol=1e-13, atol=0)
        torch.testing.assert_close(together.x[k : k + 1], alone.x, rtol=0, atol=1e-7)  # 1e-13 in value is 1e-7 in x


def test_a_problem_without_instances_axis_is_solved():
    batch = Lasso(4, 6, 10, 0.1).sample([0])
    alone = LeastSquares(batch.A[0], batch.b[0], batch.reg)
    torch.testing.assert_close(optimum(alone).value, optimum(batch).value[0], rtol=1e-13, atol=0)


def test_a_zero_solution_is_found_at_once():
    # λ above ‖∇f(0)‖_∞ leaves nothing in x.
    problem = Lasso(4, 6, 10, 100.0).sample([0])
    assert not optimum(problem).x.any()


def test_single_precision_is_refused():
    problem: Problem = Lasso(4, 6, 10).sample([0], dtype=torch.float32)
    with pytest.raises(InvalidInput, match=r"needs float64, but the problem is in torch\.float32"):
        optimum(problem)


@pytest.mark.parametrize("family", [Lasso(4, 60, 10, 0.1), Logistic(4, 20, 30, 0.1)], ids=lambda family: family.name)
@pytest.mark.parametrize("weighted", [False, True])
def test_large_problems_are_solved_with_the_curvature_of_all_data(family, weighted, monkeypatch):
    """Where products of all rows are too many to compute, it is found by products with vectors."""
    problem = family.sample([0, 1])
    if weighted:
        weights = torch.rand(problem.b.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        problem = type(problem)(problem.A, problem.b, problem.reg, weights)
    together = problem.pooled()
    expected = optimum(problem)
    monkeypatch.setattr("milodo.problems.linear.GRAM_LIMIT", 0)
    ratio = together.mean_lipschitz() / together.lipschitz()
    assert bool((ratio > 1).all()) and bool((ratio < 1.03).all())
    found = optimum(problem)
    assert bool(found.certified.all())
    torch.testing.assert_close(found.value, expected.value, rtol=1e-12, atol=0)
