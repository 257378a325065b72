"""f_i, ∇f_i, L_i and the slices of every registered family, and of an objective of one's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from milodo.errors import InvalidInput
from milodo.network import StackedObserver
from milodo.problems import FAMILIES, L1, CustomProblem, Lasso, LeastSquares, LogisticRegression, Problem, Zero
from milodo.problems.synthetic import SyntheticFamily

SYNTHETIC = [kind for kind, family in FAMILIES.items() if issubclass(family, SyntheticFamily)]
KINDS = [*SYNTHETIC, "custom", "softmax"]
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


def test_grad_is_the_derivative_of_value(kind, reg, make):
    problem = make(kind, reg)
    x = point(problem).requires_grad_()
    (expected,) = torch.autograd.grad(problem.value(x).sum(), x)
    close(problem.grad(x), expected)


def test_hessian_is_the_derivative_of_grad(kind, reg, make):
    problem = make(kind, reg)
    x = point(problem)
    rows, columns = torch.triu_indices(problem.d, problem.d)
    along = torch.eye(problem.d, dtype=x.dtype)
    expected = torch.stack([torch.func.jvp(problem.grad, (x,), (along[k].expand_as(x),))[1] for k in range(problem.d)], dim=-2)
    assert problem.knows_hessian
    close(problem.hessian_from(problem.look(x)), expected[..., rows, columns])
    assert not problem.quadratic or torch.equal(*(problem.hessian_from(problem.look(at)) for at in (x, 2 * x)))


def test_value_and_gradient_from_a_look_are_those_at_the_point(problem):
    x = point(problem, 4)
    u = problem.look(x)
    value, grad = problem.value_and_grad_from(u)
    assert torch.equal(value, problem.value(x)) and torch.equal(problem.value_from(u), value)
    assert torch.equal(grad, problem.grad(x))


def test_looks_combine_as_points_do(problem):
    x, y = point(problem), point(problem, seed=1)
    close(problem.look(x + 0.7 * (x - y)), problem.look(x) + 0.7 * (problem.look(x) - problem.look(y)))


def test_the_gradient_is_differentiated_through(problem):
    x = point(problem).requires_grad_()
    assert gradcheck(problem.grad, x, fast_mode=True)


def test_a_batch_is_a_loop_over_instances(kind, reg, make):
    problem = make(kind, reg, (3, 7, 8))
    x = point(problem)
    for k, seed in enumerate((3, 7, 8)):
        alone = make(kind, reg, (seed,))
        close(problem.value(x)[k : k + 1], alone.value(x[k : k + 1]))
        close(problem.grad(x)[k : k + 1], alone.grad(x[k : k + 1]))
        if kind != "custom":  # whose one bound is over all instances it was given
            close(problem.lipschitz()[k : k + 1], alone.lipschitz())


@pytest.mark.parametrize("nodes", [[0], [1, 3], [4, 2], [0, 1, 2, 3, 4]], ids=str)
def test_holding_fewer_nodes_commutes_with_everything(problem, nodes):
    part, x = problem.at(nodes), point(problem)
    assert (part.n, part.d, part.batch, part.reg) == (len(nodes), problem.d, problem.batch, problem.reg)
    close(part.value(x[..., nodes, :]), problem.value(x)[..., nodes])
    close(part.grad(x[..., nodes, :]), problem.grad(x)[..., nodes, :])
    close(part.lipschitz(), problem.lipschitz()[..., nodes])


@pytest.mark.parametrize("extra", [(4,), (2, 3)])
def test_candidates_share_the_data(problem, extra):
    x = point(problem, *extra)
    value, grad = problem.value(x), problem.grad(x)
    assert value.shape == x.shape[:-1] and grad.shape == x.shape
    for k in np.ndindex(extra):
        close(value[k], problem.value(x[k]))
        close(grad[k], problem.grad(x[k]))


def test_gradients_change_no_faster_than_lipschitz_says(problem):
    for seed in range(50):
        x, y = point(problem, seed=seed), point(problem, seed=seed + 1000)
        change = (problem.grad(x) - problem.grad(y)).norm(dim=-1)
        assert (change <= problem.lipschitz() * (x - y).norm(dim=-1) * (1 + ROUNDING)).all()


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


def test_the_objective_is_the_mean_of_f_plus_r(problem):
    x = point(problem)[:, 0]
    total = torch.stack([problem.at([i]).value(x.unsqueeze(1))[:, 0] for i in range(problem.n)]).sum(0)
    expected = total / problem.n + 0.3 * x.abs().sum(-1)
    close(problem.objective(x, StackedObserver()), expected)


def test_zeros_and_everywhere_have_the_shape_of_the_nodes(problem):
    assert problem.zeros().shape == (3, 5, problem.d) and not problem.zeros().any()
    x = point(problem)[:, 0]
    assert all(torch.equal(problem.everywhere(x)[:, i], x) for i in range(problem.n))


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
