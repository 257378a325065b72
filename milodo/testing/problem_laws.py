"""What every problem must do: f_i, ∇f_i, L_i and the slices of its nodes and instances."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd import gradcheck

from milodo.network import StackedObserver
from milodo.problems import Problem
from milodo.testing.comparing import near, require, start

Law = Callable[["ProblemCase"], None]
SUMS = 1e-13
"""Sums of some ten products of numbers of size one to ten in fp64."""
PAIRS = 50
"""Of points, between which gradients are compared with the Lipschitz constant."""


@dataclass(frozen=True)
class ProblemCase:
    """A problem, and how each of its instances is made alone."""

    problem: Problem
    alone: Callable[[int], Problem] | None = None
    """Instance k as a batch of one; None where there is no such thing to compare with."""

    def at(self, *extra: int, seed: int = 0) -> Tensor:
        """A point of each node, drawn at random."""
        return start(self.problem, *extra, seed=seed)


def check_problem(problem: Problem, alone: Callable[[int], Problem] | None = None, laws: Iterable[Law] | None = None) -> None:
    """Runs every law on a problem with one axis of instances, in fp64; `alone(k)` is instance k as a batch of one. The first law
    that does not hold raises an AssertionError, whose note names it."""
    case = ProblemCase(problem, alone)
    for law in PROBLEM_LAWS if laws is None else laws:
        try:
            law(case)
        except Exception as error:
            error.add_note(f"{type(problem).__name__} breaks the law {law.__name__}: {law.__doc__}")
            raise


def has_the_gradient_of_its_value(case: ProblemCase) -> None:
    """grad is the derivative of value."""
    x = case.at().requires_grad_()
    (expected,) = torch.autograd.grad(case.problem.value(x).sum(), x)
    near(case.problem.grad(x), expected, SUMS)


def has_the_hessian_of_its_gradient(case: ProblemCase) -> None:
    """hessian_from is the derivative of grad, where it is known."""
    problem, x = case.problem, case.at()
    if not problem.knows_hessian:
        return
    rows, columns = torch.triu_indices(problem.d, problem.d)
    along = torch.eye(problem.d, dtype=x.dtype)
    expected = torch.stack([torch.func.jvp(problem.grad, (x,), (along[k].expand_as(x),))[1] for k in range(problem.d)], dim=-2)
    near(problem.hessian_from(problem.look(x)), expected[..., rows, columns], SUMS)
    if problem.quadratic:
        here, there = (problem.hessian_from(problem.look(at)) for at in (x, 2 * x))
        require(torch.equal(here, there), "it is declared quadratic, and its second derivative differs between two points")


def finds_from_a_linear_predictor_what_it_finds_from_a_point(case: ProblemCase) -> None:
    """value_from and value_and_grad_from of look(x) are value and grad of x, to the bit."""
    problem, x = case.problem, case.at(4)
    u = problem.look(x)
    value, grad = problem.value_and_grad_from(u)
    require(torch.equal(value, problem.value(x)), "value_and_grad_from gives another value than value")
    require(torch.equal(problem.value_from(u), value), "value_from gives another value than value_and_grad_from")
    require(torch.equal(grad, problem.grad(x)), "value_and_grad_from gives another gradient than grad")


def combines_linear_predictors_as_points(case: ProblemCase) -> None:
    """look is linear: of a combination of points it is the combination of theirs."""
    problem, x, y = case.problem, case.at(), case.at(seed=1)
    expected = problem.look(x) + 0.7 * (problem.look(x) - problem.look(y))
    near(problem.look(x + 0.7 * (x - y)), expected, SUMS)


def is_differentiated_through(case: ProblemCase) -> None:
    """The gradient has a derivative itself."""
    gradcheck(case.problem.grad, case.at().requires_grad_(), fast_mode=True)


def treats_each_instance_alone(case: ProblemCase) -> None:
    """A batch is a loop over instances."""
    if case.alone is None:
        return
    problem, x = case.problem, case.at()
    for k in range(problem.batch[0]):
        alone = case.alone(k)
        near(problem.value(x)[k : k + 1], alone.value(x[k : k + 1]), SUMS)
        near(problem.grad(x)[k : k + 1], alone.grad(x[k : k + 1]), SUMS)


def holds_fewer_nodes_alike(case: ProblemCase) -> None:
    """Holding fewer nodes commutes with everything."""
    problem, x, every = case.problem, case.at(), range(case.problem.n)
    for nodes in ([0], [*every][1::2], [*reversed(every)][:2], [*every]):
        if not nodes:
            continue
        part = problem.at(nodes)
        about = (len(nodes), problem.d, problem.batch, problem.reg)
        require((part.n, part.d, part.batch, part.reg) == about, f"its part at the nodes {nodes} has another shape or penalty")
        near(part.value(x[..., nodes, :]), problem.value(x)[..., nodes], SUMS)
        near(part.grad(x[..., nodes, :]), problem.grad(x)[..., nodes, :], SUMS)
        if problem.knows_lipschitz:
            near(part.lipschitz(), problem.lipschitz()[..., nodes], SUMS)


def lets_candidates_share_its_data(case: ProblemCase) -> None:
    """Leading axes of x are candidates on the same data."""
    problem = case.problem
    for extra in ((4,), (2, 3)):
        x = case.at(*extra)
        value, grad = problem.value(x), problem.grad(x)
        require(value.shape == x.shape[:-1] and grad.shape == x.shape, "value or grad lose leading axes of x")
        for k in np.ndindex(extra):
            near(value[k], problem.value(x[k]), SUMS)
            near(grad[k], problem.grad(x[k]), SUMS)


def changes_no_faster_than_it_says(case: ProblemCase) -> None:
    """Gradients change by at most the Lipschitz constant times the distance, where one is known."""
    problem = case.problem
    if not problem.knows_lipschitz:
        return
    for seed in range(PAIRS):
        x, y = case.at(seed=seed), case.at(seed=seed + 1000)
        change, most = (problem.grad(x) - problem.grad(y)).norm(dim=-1), problem.lipschitz() * (x - y).norm(dim=-1)
        require(bool((change <= most * (1 + SUMS)).all()), "a gradient changes faster than lipschitz() says")


def has_the_mean_of_f_plus_r_as_its_objective(case: ProblemCase) -> None:
    """objective(x) is (1/n) Σ f_i(x) + r(x)."""
    problem, x = case.problem, case.at()[:, 0]
    total = torch.stack([problem.at([i]).value(x.unsqueeze(1))[:, 0] for i in range(problem.n)]).sum(0)
    near(problem.objective(x, StackedObserver()), total / problem.n + problem.reg.value(x), SUMS)


def has_zeros_and_copies_of_a_point_for_every_node(case: ProblemCase) -> None:
    """zeros() and everywhere(x) have a row for each node."""
    problem, x = case.problem, case.at()[:, 0]
    zeros, shape = problem.zeros(), (*problem.batch, problem.n, problem.d)
    require(zeros.shape == shape and not zeros.any(), f"zeros() is not zero, or not of the shape {shape}")
    same = all(torch.equal(problem.everywhere(x)[:, i], x) for i in range(problem.n))
    require(same, "everywhere(x) is not x at every node")


PROBLEM_LAWS: tuple[Law, ...] = (
    has_the_gradient_of_its_value, has_the_hessian_of_its_gradient, finds_from_a_linear_predictor_what_it_finds_from_a_point,
    combines_linear_predictors_as_points, is_differentiated_through, treats_each_instance_alone, holds_fewer_nodes_alike,
    lets_candidates_share_its_data, changes_no_faster_than_it_says, has_the_mean_of_f_plus_r_as_its_objective,
    has_zeros_and_copies_of_a_point_for_every_node,
)  # fmt: skip
