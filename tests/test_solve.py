"""The one loop: what it yields, when it stops, how it says so, what it refuses."""

from __future__ import annotations

import itertools

import pytest
import torch

from milodo.algorithms import METHODS, ProxED
from milodo.errors import InvalidInput
from milodo.loop import Result, Stop, check, iterate, solve
from milodo.metrics import consensus_error, judged_point, mean_point, residual
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import Box, CustomProblem, Lasso, LeastSquares, NonNegative, Problem, Zero, optimum
from milodo.status import Status
from milodo.tree import leaves

OBSERVER = StackedObserver()


@pytest.fixture(scope="module")
def problem() -> LeastSquares:
    return Lasso(6, 8, 20, 0.1).sample([0, 1])


@pytest.fixture
def net() -> StackedNetwork:
    return StackedNetwork("ring(6)")


def tensors(state):
    return [leaf for leaf in leaves(state).values() if isinstance(leaf, torch.Tensor)]


def test_iterate_starts_with_what_it_is_given(name, build, problem, net):
    x0 = torch.randn(2, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(next(iterate(build(name, problem), problem, net, x0=x0)).x, x0)
    assert torch.equal(next(iterate(build(name, problem), problem, net)).x, problem.zeros())


def test_iterate_applies_step_again_and_again(name, build, problem, net):
    method = build(name, problem)
    state = method.init(problem.zeros(), problem, net)
    for yielded in itertools.islice(iterate(method, problem, net), 4):
        assert all(torch.equal(a, b) for a, b in zip(tensors(yielded), tensors(state), strict=True))
        state = method.step(state, problem, net)


@pytest.mark.parametrize("steps", [1, 7, 20])
def test_a_run_uses_the_iterations_it_is_given(name, build, problem, net, steps):
    result = solve(build(name, problem), problem, net, Stop(steps=steps))
    assert (result.k, result.status) == (steps, Status.STEPS)
    expected = next(itertools.islice(iterate(build(name, problem), problem, net), steps, None)).x
    assert torch.equal(result.x, expected)
    torch.testing.assert_close(result.objective, problem.objective(expected.mean(-2), OBSERVER), rtol=1e-14, atol=0)
    torch.testing.assert_close(result.consensus, consensus_error(expected, OBSERVER), rtol=1e-14, atol=1e-14)  # a mean rounds


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.exact])
def test_a_run_ends_when_the_tolerance_is_reached(name, build, problem, net):
    result = solve(build(name, problem), problem, net, Stop(steps=5000, tolerance=1e-8, every=7))
    assert result.status is Status.CONVERGED and result.k < 5000 and result.k % 7 == 0
    assert (result.consensus <= 1e-8 * result.x.mean(-2).norm(dim=-1)).all()
    # By convexity the gap is at most a subgradient, which is of the size of the residual, times the distance to the optimum.
    assert (result.objective - optimum(problem).value).abs().max() < 1e-8


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.exact])
def test_an_inexact_method_never_reaches_a_small_tolerance(name, build, problem, net):
    assert solve(build(name, problem), problem, net, Stop(steps=500, tolerance=1e-8)).status is Status.STEPS


def test_the_tolerance_is_for_every_instance(problem, net):
    easy = LeastSquares(problem.A, torch.stack([torch.zeros_like(problem.b[0]), problem.b[1]]), problem.reg)
    result = solve(ProxED(gamma=0.1), easy, net, Stop(steps=20, tolerance=1e-8))  # the first instance starts at its optimum
    assert result.status is Status.STEPS


def test_a_run_ends_when_its_seconds_are_used(problem, net):
    result = solve(ProxED(gamma=0.1), problem, net, Stop(steps=10**9, seconds=1e-9))
    assert result.status is Status.TIME and result.k < 10**9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.space])
def test_divergence_is_a_result(name, build, dtype):
    problem = Lasso(6, 8, 20, 0.1).sample([0, 1], dtype=dtype)
    first = next(iter(METHODS[name].space))
    result = solve(build(name, problem, **{first: 1e3}), problem, StackedNetwork("ring(6)", dtype=dtype), Stop(steps=1000))
    assert result.status is Status.DIVERGED and 0 < result.k < 1000
    assert "diverged" in str(result)


def test_one_diverging_instance_is_enough(problem, net):
    wild = LeastSquares(problem.A * torch.tensor([1.0, 100.0]).double()[:, None, None, None], problem.b, problem.reg)
    assert solve(ProxED(gamma=0.1), wild, net, Stop(steps=1000)).status is Status.DIVERGED


@pytest.mark.parametrize("reg", [Box(-0.1, 0.1), Box(-0.3, 0.7), NonNegative(), NonNegative(0.1)], ids=str)
@pytest.mark.parametrize("n", [3, 10])
def test_touching_a_wall_is_not_divergence(name, build, reg, n):
    """The mean of n copies of 0.1 can be 0.1 and one rounding more."""
    problem = Lasso(n, 8, 20, reg=reg).sample([0, 1, 2])
    result = solve(build(name, problem), problem, StackedNetwork(f"ring({n})"), Stop(steps=200))
    assert result.status is Status.STEPS and result.objective.isfinite().all()


def test_a_start_outside_the_walls_is_not_divergence(name, build):
    problem = Lasso(6, 8, 20, reg=Box(0.5, 1.0)).sample([0])
    assert solve(build(name, problem), problem, StackedNetwork("ring(6)"), Stop(steps=200)).status is Status.STEPS


def test_every_status_is_a_sentence():
    for status in Status:
        assert status.sentence and status.sentence[0].islower() and "\n" not in status.sentence
    assert len({status.sentence for status in Status}) == len(Status)
    result = Result(torch.zeros(1, 1), 3, Status.STEPS, torch.zeros(()), torch.zeros(()))
    assert str(result) == f"STEPS after 3 iterations: {Status.STEPS.sentence}."


def test_the_residual_is_zero_at_the_optimum_and_only_there(kind, reg, make):
    if kind == "logistic" and reg in (Zero(), NonNegative()):
        pytest.skip("separable labels: there is no optimum")
    problem = make(kind, reg)
    x = optimum(problem, 1e-13).x
    # A gap of 1e-13 leaves a gradient of about its root.
    assert residual(problem, x, OBSERVER).max() < 1e-6
    assert residual(problem, x + 0.1, OBSERVER).min() > 1e-3


def test_the_residual_without_r_is_the_norm_of_the_gradient():
    problem = Lasso(6, 8, 20, 0).sample([0, 1])
    x = torch.ones(2, 8, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(problem.objective(x, OBSERVER).sum(), x)
    torch.testing.assert_close(residual(problem, x.detach(), OBSERVER), gradient.norm(dim=-1), rtol=1e-12, atol=0)


def test_means_and_consensus_errors_are_those_of_a_loop():
    x = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = sum(x[:, i] for i in range(5)) / 5
    error = sum((x[:, i] - mean).square().sum(-1).sqrt() for i in range(5)) / 5
    torch.testing.assert_close(mean_point(x, OBSERVER), mean, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(consensus_error(x, OBSERVER), error, rtol=1e-14, atol=0)


def refused(problem: Problem, net: StackedNetwork, sentence: str) -> None:
    for enter in (check, solve, lambda *args: next(iterate(*args))):
        with pytest.raises(InvalidInput, match=sentence) as error:
            enter(ProxED(gamma=0.1), problem, net)
        assert "\n" not in str(error.value)


def test_a_problem_and_a_network_of_different_sizes_are_refused(problem):
    refused(problem, StackedNetwork("ring(5)"), r"6 nodes, but ring\(5\) holds 5 here.*Choose a topology with 6 nodes")


def test_a_problem_and_a_network_of_different_precision_are_refused(problem):
    refused(problem, StackedNetwork("ring(6)", dtype=torch.float32), "torch.float64 and the network in torch.float32.*same dtype")


@pytest.mark.parametrize(
    "x0", [torch.zeros(2, 6, 8), torch.zeros(2, 5, 8).double(), torch.zeros(2, 6, 7).double(), torch.zeros(3, 6, 8).double()]
)
def test_a_start_that_does_not_fit_is_refused(problem, net, x0):
    with pytest.raises(InvalidInput):
        solve(ProxED(gamma=0.1), problem, net, Stop(steps=1), x0=x0)


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"every": 0}, {"seconds": 0.0}, {"seconds": -1.0}, {"tolerance": 0.0}, {"tolerance": float("nan")}]
)
def test_a_stopping_rule_that_cannot_stop_is_refused(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))}.* must be"):
        Stop(**wrong)


def test_a_problem_without_lipschitz_constant_runs_without_tolerance():
    problem = CustomProblem(
        lambda x, data: ((x - data["a"]) ** 2).sum() / 2, {"a": torch.arange(6.0).double().reshape(3, 2)}, 2, Zero()
    )
    result = solve(ProxED(gamma=0.5), problem, StackedNetwork("ring(3)"), Stop(steps=200))
    torch.testing.assert_close(result.x, problem.data["a"].mean(0).expand(3, 2), rtol=0, atol=1e-12)


def test_solving_leaves_no_graph_behind(problem, net):
    gamma = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    assert not solve(ProxED(gamma=gamma), problem, net, Stop(steps=3)).x.requires_grad


def test_an_average_beyond_a_wall_by_rounding_is_judged_on_it_and_one_further_out_is_not():
    reg, observer = Box(0.0, 0.3), StackedObserver()
    problem = Lasso(3, 2, 5, reg=reg).sample([0])
    rounded = torch.full((1, 3, 2), 0.3, dtype=torch.float32).double()  # 0.3 in fp32 is above 0.3
    assert bool((rounded > 0.3).all())
    assert torch.isfinite(problem.objective(judged_point(rounded, problem, observer), observer)).all()
    far = torch.full((1, 3, 2), 0.31, dtype=torch.float64)
    assert torch.isinf(problem.objective(judged_point(far, problem, observer), observer)).all()
