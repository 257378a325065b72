"""f_i, ∇f_i, L_i and the slices of every registered family, and of an objective of one's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from milodo.errors import InvalidInput
from milodo.problems import FAMILIES, L1, CustomProblem, Lasso, LeastSquares, LogisticRegression, Problem, Regularizer, Zero
from milodo.problems.synthetic import SyntheticFamily
from milodo.testing import PROBLEM_LAWS, ProblemCase, check_problem

SYNTHETIC = [kind for kind, family in FAMILIES.items() if issubclass(family, SyntheticFamily)]
KINDS = [*SYNTHETIC, "custom", "softmax"]
OF_VALUES = [law for law in PROBLEM_LAWS if law.__name__.startswith(("has_the_gradient", "has_the_hessian", "treats_each"))]
ROUNDING = 1e-13
"""Sums of some ten products of numbers of size one to ten in fp64."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Every synthetic family, an objective of one's own, and three classes."""
    return request.param


@pytest.fixture(scope="module")
def problem(kind: str, make) -> Problem:
    """Three instances with r = 0.3 ‖x‖₁."""
    return make(kind, L1(0.3))


def point(problem: Problem, *extra: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(
        *extra, *problem.batch, problem.n, problem.d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return x.to(problem.dtype)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=ROUNDING, atol=ROUNDING)


SEEDS = (3, 7, 8)


def case(kind: str, reg: Regularizer, make) -> ProblemCase:
    """Three instances of a kind, and each of them alone."""
    return ProblemCase(make(kind, reg, SEEDS), lambda k: make(kind, reg, SEEDS[k : k + 1]))


@pytest.mark.parametrize("law", PROBLEM_LAWS, ids=lambda law: law.__name__)
def test_every_registered_problem_obeys(kind, law, make):
    law(case(kind, L1(0.3), make))


@pytest.mark.parametrize("law", OF_VALUES, ids=lambda law: law.__name__)
def test_whatever_the_penalty(kind, reg, law, make):
    law(case(kind, reg, make))


def test_every_registered_problem_knows_its_second_derivative_and_is_bounded(problem):
    assert problem.knows_hessian and problem.knows_lipschitz


@pytest.mark.parametrize("kind", [*SYNTHETIC, "softmax"])
def test_lipschitz_of_an_instance_is_its_own(kind, reg, make):
    every, (problem, alone) = make(kind, reg, SEEDS).lipschitz(), (case(kind, reg, make).problem, case(kind, reg, make).alone)
    for k in range(problem.batch[0]):
        close(every[k : k + 1], alone(k).lipschitz())


def test_a_problem_of_ones_own_is_checked_as_a_whole(make):
    check_problem(make("custom", L1(0.3), SEEDS), lambda k: make("custom", L1(0.3), SEEDS[k : k + 1]))


class WrongGradient(LeastSquares):
    """Forgets the 1/N of the mean."""

    def grad(self, x):
        return super().grad(x) * self.samples


class TooFlat(LeastSquares):
    """Says that its gradients change half as fast as they do."""

    def lipschitz(self):
        return super().lipschitz() / 2


class MixesInstances(LeastSquares):
    """The value of one instance depends on another."""

    def value(self, x):
        return super().value(x) + super().value(x).roll(1, 0)


@pytest.mark.parametrize(
    ("kind_of", "broken"),
    [
        (WrongGradient, "has_the_gradient_of_its_value"), (TooFlat, "changes_no_faster_than_it_says"),
        (MixesInstances, "treats_each_instance_alone"),
    ],
)  # fmt: skip
def test_a_problem_that_breaks_a_law_is_told_which(kind_of, broken, make):
    def broken_one(seeds):
        right = make("lasso", Zero(), seeds)
        return kind_of(right.A, right.b, right.reg)

    laws = [law for law in PROBLEM_LAWS if law.__name__ == broken]
    with pytest.raises(AssertionError) as caught:
        check_problem(broken_one(SEEDS), lambda k: broken_one(SEEDS[k : k + 1]), laws=laws)
    assert caught.value.__notes__[0].startswith(f"{kind_of.__name__} breaks the law {broken}: ")


@pytest.mark.parametrize("kind", SYNTHETIC)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lipschitz_is_the_operator_norm_rounded_up(kind, make, dtype):
    problem = make(kind, Zero(), dtype=dtype)
    norms = np.linalg.norm(problem.A.double().numpy(), ord=2, axis=(-2, -1))
    exact = problem.curvature * norms**2 / problem.samples
    bound = problem.lipschitz().double().numpy()
    assert (bound >= exact * (1 - 1e-14)).all()  # numpy's own rounding
    assert (bound <= exact * (1 + 100 * torch.finfo(dtype).eps)).all()


@pytest.fixture(params=[*SYNTHETIC, "softmax"])
def weighted(request, make) -> Problem:
    """Samples that count differently, some of them for nothing."""
    problem = make(request.param, Zero())
    s = torch.rand(*problem.batch, problem.n, problem.samples, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return problem.reweighed(torch.where(s < 0.2, 0.0, 5 * s))


def test_lipschitz_is_the_largest_curvature_of_samples_by_their_weights(weighted):
    """The largest eigenvalue of (curvature/N) Σ_j s_j a_j a_jᵀ, built sample by sample."""
    A, s = weighted.A.numpy(), weighted.weights.numpy()
    mean = sum(s[..., j, None, None] * A[..., j, :, None] * A[..., j, None, :] for j in range(A.shape[-2])) / A.shape[-2]
    np.testing.assert_allclose(weighted.lipschitz(), weighted.curvature * np.linalg.eigvalsh(mean)[..., -1], rtol=1e-13)


def test_what_half_of_the_samples_would_say_is_what_a_node_with_these_alone_says(weighted):
    count, half, trace = weighted.half()
    s, rows = weighted.weights, slice(None, None, 2)
    kept = s[..., rows] * (s.mean(-1) / s[..., rows].mean(-1)).unsqueeze(-1)  # of the same mean weight as all of them
    alone = type(weighted)(weighted.A[..., rows, :], weighted.b[:, :, rows], weighted.reg, kept)
    torch.testing.assert_close(half, alone.lipschitz(), rtol=1e-13, atol=0)
    assert torch.equal(count, (s > 0).sum(-1).double())
    x = weighted.zeros()  # where these losses are most curved
    places = torch.triu_indices(weighted.d, weighted.d)
    diagonal = weighted.hessian_from(weighted.look(x))[..., places[0] == places[1]]
    torch.testing.assert_close(trace, diagonal.sum(-1), rtol=1e-13, atol=0)


@pytest.mark.parametrize("kind", SYNTHETIC)
def test_curvature_bounds_the_second_derivative_and_is_reached(kind, make):
    problem = make(kind, Zero())
    u = torch.linspace(-30, 30, 6001, dtype=torch.float64)[:, None, None, None].expand(-1, *problem.b.shape).requires_grad_()
    slope = problem.loss_slope(u)
    (bend,) = torch.autograd.grad(slope.sum(), u)
    close(problem.loss_curvature(u.detach()), bend)
    assert bend.max().item() == pytest.approx(problem.curvature, abs=1e-12)  # at u = 0, which is on the grid


@pytest.mark.parametrize("kind", [*SYNTHETIC, "softmax"])
def test_fenchel_gap_is_zero_at_the_slope_and_positive_elsewhere(kind, make):
    problem = make(kind, Zero())
    u = problem.predict(point(problem))
    v = problem.loss_slope(u)
    assert problem.fenchel_gap(u, v).abs().max() < 1e-15
    # ℓ(u) + ℓ*(v) - uv with v = ℓ'(t) is ℓ(u) - ℓ(t) - ℓ'(t)(u - t), Bregman's distance.
    t = problem.predict(point(problem, seed=1))
    along = problem.loss_slope(t) * (u - t)
    expected = problem.loss(u) - problem.loss(t) - (along.sum(-1) if kind == "softmax" else along)
    close(problem.fenchel_gap(u, problem.loss_slope(t)), expected)


def test_huge_margins_do_not_overflow():
    A = torch.full((1, 2, 1), 1e4, dtype=torch.float64)
    problem = LogisticRegression(A, torch.tensor([[0.0, 1.0]], dtype=torch.float64), Zero())
    for x in (-1.0, 1.0):
        # ln(1 + exp(±1e4)) is 1e4 for the wrong label and 0 for the right one.
        assert problem.value(torch.full((1, 1), x, dtype=torch.float64)).item() == pytest.approx(5e3, rel=1e-15)


ONES, LABELS = torch.ones(2, 3, 4), torch.ones(2, 3)


@pytest.mark.parametrize("model", [LeastSquares, LogisticRegression])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_data_that_is_not_finite_is_refused(model, value):
    for what, (A, b) in {"A": (ONES.clone(), LABELS), "b": (ONES, LABELS.clone())}.items():
        (A if what == "A" else b)[1, 2] = value
        with pytest.raises(InvalidInput, match=f"{what} contains NaN or Inf. Clean the data first"):
            model(A, b, Zero())


@pytest.mark.parametrize(("A", "b"), [((3, 4), (3,)), ((2, 3, 4), (2, 4)), ((2, 3, 4), (3,)), ((2, 3, 4), (1, 2, 3))])
def test_shapes_that_do_not_fit_are_refused(A, b):
    with pytest.raises(InvalidInput, match="do not fit: expected"):
        LeastSquares(torch.ones(A), torch.ones(b), Zero())


@pytest.mark.parametrize(("A", "b"), [((0, 3, 4), (0, 3)), ((2, 0, 4), (2, 0)), ((2, 3, 0), (2, 3))])
def test_data_without_nodes_samples_or_unknowns_are_refused(A, b):
    with pytest.raises(InvalidInput):
        LeastSquares(torch.ones(A), torch.ones(b), Zero())


def test_data_in_two_precisions_or_in_whole_numbers_are_refused():
    for A, b in [(ONES, LABELS.double()), (ONES.double(), LABELS), (ONES.long(), LABELS.long())]:
        with pytest.raises(InvalidInput):
            LeastSquares(A, b, Zero())


@pytest.mark.parametrize("label", [-1.0, 2.0, 0.5])
def test_labels_other_than_zero_and_one_are_refused(label):
    b = LABELS.clone()
    b[0, 1] = label
    with pytest.raises(InvalidInput, match=f"labels must be 0 or 1, but {label:g} occurs"):
        LogisticRegression(ONES, b, Zero())


def quadratic(x, data):
    return ((x - data["a"]) ** 2).sum() / 2


def test_a_custom_problem_without_lipschitz_says_what_to_do():
    problem = CustomProblem(quadratic, {"a": torch.ones(3, 2)}, 2, L1(0.1))
    assert torch.equal(problem.grad(torch.zeros(3, 2)), -torch.ones(3, 2))
    with pytest.raises(InvalidInput, match=r"Pass lipschitz=\.\.\. to CustomProblem, or give the step size yourself"):
        problem.lipschitz()


@pytest.mark.parametrize("bound", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_lipschitz_constant_that_is_none_is_refused(bound):
    with pytest.raises(InvalidInput, match="lipschitz"):
        CustomProblem(quadratic, {"a": torch.ones(3, 2)}, 2, L1(0.1), lipschitz=bound)


def test_data_of_a_custom_problem_may_be_nested():
    nested = CustomProblem(lambda x, data: quadratic(x, data["node"]), {"node": {"a": torch.ones(3, 2)}}, 2, L1(0.1))
    assert torch.equal(nested.at([1]).grad(torch.zeros(1, 2)), -torch.ones(1, 2))


@pytest.mark.parametrize(
    ("data", "instances", "sentence"),
    [
        ({}, 0, "needs 1 leading axes"),
        ({"a": torch.ones(())}, 0, "needs 1 leading axes"),
        ({"a": torch.ones(3)}, 1, "needs 2 leading axes"),
        ({"a": torch.ones(3, 2), "b": torch.ones(4, 2)}, 0, "disagree about instances and nodes"),
        ({"a": torch.full((3, 2), float("nan"))}, 0, r"data\['a'\] contains NaN or Inf"),
    ],
)
def test_a_custom_problem_with_unfit_data_is_refused(data, instances, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        CustomProblem(quadratic, data, 2, L1(0.1), instances=instances)


def test_a_custom_problem_agrees_with_the_family_it_imitates():
    lasso = Lasso(5, 4, 6, 0.1).sample([0, 1])

    def least_squares(x, data):
        return ((data["A"] @ x - data["b"]) ** 2).mean() / 2

    custom = CustomProblem(least_squares, {"A": lasso.A, "b": lasso.b}, 4, L1(0.1), instances=1)
    x = point(lasso)
    close(custom.value(x), lasso.value(x))
    close(custom.grad(x), lasso.grad(x))
