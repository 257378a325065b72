"""What is measured of an iterate: where its loss is taken, how far nodes disagree, how far from optimal it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from milodo.network import Observer
from milodo.problems import Problem
from milodo.types import NodeScalar, NodeTensor, Point


def mean_point(x: NodeTensor, observer: Observer) -> Point:
    """x̄ = (1/n) Σ x_i."""
    return observer.mean(x, dim=-2)


TINY = 1e-300
"""What stands for a Lipschitz constant of 0: that of a loss which nothing changes."""
TOUCH = 1e-6
"""How far beyond a wall of r an average still counts as touching it, relative to the size of what was averaged."""


def judged_point(x: NodeTensor, problem: Problem, observer: Observer) -> Point:
    """x̄ where its loss is taken: averages of points on a wall of r round to beyond it, all the more if they were made in fp32
    and are judged in fp64, and r = ∞ there would look like divergence.

    Whether sizes are averaged, too, depends on r alone and never on x: processes that round differently must send the same."""
    if not problem.reg.walled:
        return mean_point(x, observer)
    x_mean, size = observer.mean(torch.cat((x, x.abs()), dim=-1), dim=-2).tensor_split(2, dim=-1)
    inside = problem.reg.project(x_mean)
    return torch.where((inside - x_mean).abs() <= TOUCH * torch.maximum(size, inside.abs()), inside, x_mean)


def consensus_error(x: NodeTensor, observer: Observer) -> torch.Tensor:
    """(1/n) Σ_i ‖x_i - x̄‖₂ (Appendix E.3, Evaluation metric)."""
    x_mean = mean_point(x, observer)
    return observer.mean((x - x_mean.unsqueeze(-2)).norm(dim=-1), dim=-1)


def residual(problem: Problem, x: Point, observer: Observer) -> torch.Tensor:
    """L ‖x - prox_{r/L}(x - ∇f(x)/L)‖₂: zero exactly at the optimum, and ‖∇f‖ where r = 0."""
    L = observer.mean(problem.lipschitz(), dim=-1).clamp(min=TINY).unsqueeze(-1)
    gradient = observer.mean(problem.grad(problem.everywhere(x)), dim=-2)
    return (L * (x - problem.reg.prox(x - gradient / L, 1 / L))).norm(dim=-1)


@dataclass(frozen=True)
class Units:
    """What is much and what is little in a problem, one number an instance: what multiplying the data by 1000 multiplies."""

    value: torch.Tensor
    """The objective of the empty model: ½ the variance of the targets, ln 2 for each of two equal classes."""
    gradient: torch.Tensor
    """(1/n) Σ ‖∇f_i‖ at the start: of what cancels at the optimum."""
    L: torch.Tensor
    """The mean of the Lipschitz constants of ∇f_i."""

    @classmethod
    def of(cls, problem: Problem, observer: Observer, empty: Point | None = None) -> Units:
        """By one sum of four numbers a node, where the empty model is known (`Problem.empty` finds it by others)."""
        start, empty = problem.start(), problem.empty(observer) if empty is None else empty
        own = [losses(problem, start), losses(problem, problem.everywhere(empty)), problem.grad(start).norm(dim=-1)]
        sums = observer.mean(torch.stack((*own, problem.lipschitz().expand_as(own[0])), dim=-1), dim=-2)
        at_start, value, gradient, L = sums.unbind(-1)
        # What an intercept explains to rounding (targets that are all the same) leaves no unit: rounding is one then.
        return cls(value.abs().maximum(torch.finfo(problem.dtype).eps * at_start.abs()), gradient, L.clamp(min=TINY))


def losses(problem: Problem, x: NodeTensor) -> NodeScalar:
    """f_i(x_i) + r(x_i) of every node, r at the nearest point where it is finite."""
    return problem.value(x) + problem.reg.value(problem.reg.project(x))


@dataclass(frozen=True)
class OptimalityError:
    """How far from optimal, in the problem's own units, one number an instance. None of them changes with the units of data."""

    gap: torch.Tensor
    """The proven gap of x̄ / the objective of the empty model; NaN where the problem knows no bound."""
    moved: torch.Tensor
    """‖x̄ - prox(x̄ - ∇f(x̄)/L)‖ / size, the size being ‖x̄‖, or how far the first such step goes if that is more."""
    consensus: torch.Tensor
    """(1/n) Σ ‖x_i - x̄‖ / size."""

    @property
    def worst(self) -> torch.Tensor:
        """The largest of the three."""
        return torch.maximum(torch.maximum(self.moved, self.consensus), self.gap.nan_to_num(nan=0.0))


def optimality_error(problem: Problem, x: NodeTensor, observer: Observer, units: Units) -> OptimalityError:
    x_mean = mean_point(x, observer)
    size = torch.maximum(x_mean.norm(dim=-1), units.gradient / units.L)
    gap = problem.certificate(x_mean, observer)
    return OptimalityError(
        ratio(gap, units.value) if gap is not None else torch.full_like(size, torch.nan),
        ratio(residual(problem, x_mean, observer) / units.L, size),
        ratio(consensus_error(x, observer), size),
    )


def ratio(a: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """a / unit; where there is no unit, 0 if there is nothing to measure either."""
    return torch.where(a == 0, 0.0, a / unit)
