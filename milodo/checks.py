"""How far a run is from optimal, by as few and as short sums as that takes: what they send is counted (`Observer.traffic`).

A glance is one sum of a few numbers a node: the loss, how far the last steps went, and whether all nodes hold the same x. Where
they do, each knows a gradient, too, as far as messages told it, and can guess how far off it is. Only where the guess is within
the tolerance, or steps have become short enough, is a closer look worth its price: one sum of gradients, and before it one of x
where nodes differ. `Pace` decides when, and by numbers that all processes share: means that went over the tree, and sums of such
numbers that are rounded once (`exact_norm`).
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.metrics import OptimalityError, Units, judged_point, losses, ratio
from milodo.network import Observer
from milodo.problems import Problem
from milodo.types import Evaluation, NodeScalar, NodeTensor, Point

EARLY = 30.0
"""Tolerances to which steps must have shrunk before the first closer look: then it is known how far off such steps are."""
SOON, SHORTER = 3.0, 0.7
"""Times the tolerance that x is expected to be off at the next look, because steps say it roughly only, and a look in vain costs
less than iterations in vain; and what steps must have shrunk to at least."""
LATEST = 500
"""After twice as many iterations without a closer look, or twice as many as at the last one, there is one in any case."""
BITS = 20
"""Of the digest of x: its mean square over 2¹² nodes is a whole number that fp64 holds."""


@dataclass(frozen=True)
class Glance:
    """All of them agreed upon, one number an instance."""

    loss: Tensor
    """(1/n) Σ f_i(x_i) + r(x_i): the objective, where all nodes hold the same x."""
    moved: Tensor
    """(1/n) Σ of the longest step of each node since the last glance, relative to the size of x; infinite where there is none."""
    seconds: float


@dataclass(frozen=True)
class Look:
    """At the point where the nodes are on average, the same in every process."""

    point: Point
    objective: Tensor
    """f + r there, one number an instance."""
    spread: Tensor
    """(1/n) Σ ‖x_i - point‖, one number an instance."""
    off: OptimalityError | None = None
    """How far from optimal, if that was asked for."""
    gradient: Point | None = None
    """∇f there, then."""

    @property
    def worst(self) -> float:
        """How far from optimal the worst instance is."""
        return math.nan if self.off is None else float(self.off.worst.max())


class Checks:
    """Of one run on a problem."""

    def __init__(self, problem: Problem, observer: Observer, units: Units | None, *, alike: bool) -> None:
        """`alike` says that the method keeps the same x at every node: then nothing is averaged, as long as that is true."""
        self.problem, self.observer, self.units, self.alike = problem, observer, units, alike

    def limit(self, x0: NodeTensor, growth: float) -> Tensor:
        """So many times the loss at x0 or at the problem's start, whichever is more: a larger one counts as divergence.

        Where both are 0, the unit of the objective is ‖∇f‖²/L; an objective without L has no unit, and 1 must do. One sum."""
        problem, start = self.problem, self.problem.start()
        own = [losses(problem, x0), losses(problem, start)]
        if problem.knows_lipschitz:
            own += [problem.grad(start).norm(dim=-1), problem.lipschitz().expand_as(own[0])]
        first, at_start, *slope = self._mean(own).unbind(-1)
        unit = torch.maximum(first.abs(), at_start.abs())
        if slope:
            unit = torch.where(unit == 0, slope[0].square() / slope[1], unit)
        return growth * torch.where(unit > 0, unit, 1.0)

    def limit_of_units(self, growth: float) -> Tensor:
        """The same in multiples of the problem's own units, which are known: no sum."""
        assert self.units is not None
        slope = self.units.gradient.square() / self.units.L
        unit = torch.where(self.units.value > 0, self.units.value, slope)
        return torch.where(unit > 0, growth * unit, growth)

    def glance(self, x: NodeTensor, moved: NodeScalar | None, seconds: float | None = None) -> Glance:
        """One sum of three numbers a node and instance, of two more where all should hold the same, and of one for the clock."""
        own = losses(self.problem, x)
        numbers = [own, torch.full_like(own, math.inf) if moved is None else moved, x.norm(dim=-1)]
        if self.alike:
            digest = digests(x)
            numbers += [digest, digest.square()]
        if seconds is not None:
            numbers.append(torch.full_like(own, seconds))
        loss, step, size, *rest = self._mean(numbers).unbind(-1)
        if self.alike:  # whole numbers whose mean square is the square of their mean are all the same
            self.alike = bool((rest[1] == rest[0].square()).all())
        return Glance(loss, ratio(step, self._size(size)), 0.0 if seconds is None else float(rest[-1].flatten()[0]))

    def look(self, x: NodeTensor, tolerance: float | None = None, *, proven: bool = True) -> Look:
        """Where there are units, how far from optimal x̄ is, with the best intercept; its certificate only where the rest is
        within the tolerance, unless that takes no sum of vectors. Where nothing is to be proven, only the objective there."""
        problem, units = self.problem, self.units if proven else None
        point = x[..., 0, :] if self.alike else judged_point(x, problem, self.observer)
        apart = torch.zeros_like(x[..., 0]) if self.alike else (x - problem.everywhere(point)).norm(dim=-1)
        if units is not None and problem.column is not None:
            point = problem.settled(point, self.observer)
        everywhere = problem.everywhere(point)
        if units is None:
            value, slopes = problem.value(everywhere), apart.unsqueeze(-1)[..., :0]
        else:
            value, slopes = problem.value_and_grad_from(problem.look(everywhere))
        numbers = torch.stack((value + problem.reg.value(point).unsqueeze(-1), apart), dim=-1)
        gradient, numbers = self.observer.mean(torch.cat((slopes, numbers), dim=-1), dim=-2).tensor_split((-2,), dim=-1)
        objective, spread = numbers.unbind(-1)
        if units is None:
            return Look(point, objective, spread)
        if not problem.reg.unpenalized or problem.column is not None:
            tolerance = None
        return Look(point, objective, spread, self.off(point, gradient, spread, tolerance), gradient)

    def look_at(self, known: Evaluation, tolerance: float | None) -> Look:
        """A closer look at a point of which all nodes know what is to be known: at most the sums of a certificate."""
        nothing = torch.zeros_like(known.value)
        off = self.off(known.x, known.gradient, nothing, tolerance, known.curvature)
        return Look(known.x, known.value, nothing, off, known.gradient)

    def clock(self, seconds: float) -> float:
        """The same in every process: the mean of all nodes' clocks."""
        return float(self.observer.mean(torch.full((self.problem.n, 1), seconds, dtype=torch.float64), dim=-2))

    def off(
        self, x: Point, gradient: Point, spread: Tensor, tolerance: float | None = None, curvature: Tensor | None = None
    ) -> OptimalityError:
        """Of a point and the gradient there, which all processes share."""
        assert self.units is not None
        moved, consensus, gap = self.step(x, gradient), ratio(spread, self._size(exact_norm(x))), None
        if tolerance is None or float(torch.maximum(moved, consensus).max()) <= tolerance:
            gap = self.problem.certificate(x, self.observer, gradient, curvature)
        part = torch.full_like(moved, math.nan) if gap is None else ratio(gap, self.units.value)
        return OptimalityError(part, moved, consensus)

    def guess(self, x: Point, gradient: Point, tolerance: float) -> Tensor:
        """How far off x would be if this were the gradient there, which messages may have rounded; the certificate is asked for
        where the step is within the tolerance and it takes short sums only. No proof, and no vector is summed."""
        off, problem = self.step(x, gradient), self.problem
        assert self.units is not None
        short = problem.certifies and (not problem.reg.unpenalized or problem.column is not None)
        if short and float(off.max()) <= tolerance:
            guessed = copy(problem)
            guessed.column = None if problem.column is None else 0.0  # as if the intercept were the best already
            gap = guessed.certificate(x, self.observer, gradient)
            assert gap is not None
            off = torch.maximum(off, ratio(gap, self.units.value))
        return off

    def step(self, x: Point, gradient: Point) -> Tensor:
        """‖x - prox(x - ∇f(x)/L)‖ / the size of x, the same in all processes that hold the same x and gradient."""
        assert self.units is not None
        L = self.units.L.unsqueeze(-1)
        return ratio(exact_norm(x - self.problem.reg.prox(x - gradient / L, 1 / L)), self._size(exact_norm(x)))

    def _size(self, norm: Tensor) -> Tensor:
        """Of x: how large it is, or how far the first step would go, if that is more."""
        return norm if self.units is None else torch.maximum(norm, (self.units.gradient / self.units.L).to(norm))

    def _mean(self, own: list[NodeScalar]) -> Tensor:
        """Of numbers of each node [*batch, n], by one sum [*batch, numbers]."""
        return self.observer.mean(torch.stack([each.double() for each in own], dim=-1), dim=-2)


class Pace:
    """When a closer look is worth its price: when a sign of how far off x is (a guess, or how long steps are) has become so small
    that, going by the last look, x is within the tolerance.

    Nothing but numbers that all processes share goes in. What it remembers is kept with a snapshot of the run.
    """

    def __init__(self, tolerance: float, early: float = EARLY) -> None:
        self.tolerance, self.target, self.last = tolerance, early * tolerance, LATEST

    def due(self, k: int, sign: float) -> bool:
        return k > 0 and (sign <= self.target or k >= 2 * self.last)

    def failed(self, k: int, sign: float, off: float) -> None:
        """A closer look found x this far off: it is taken to shrink as the sign does."""
        shrinks = min(SOON * self.tolerance / off, SHORTER) if off > self.tolerance else SHORTER
        self.target, self.last = (sign if sign > 0 else -1.0) * shrinks, max(k, self.last)

    def to_json(self) -> dict[str, Any]:
        return {"target": self.target, "last": self.last}

    def restore(self, kept: Any) -> None:
        """What `to_json` gave."""
        try:
            self.target, self.last = float(kept["target"]), int(kept["last"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput("a snapshot that does not say when to look next. Start again without resuming.") from error


def next_look(k: int, every: int, price: float) -> int:
    """The first iteration after k at which there is a look: `every` apart, and √(2 price k) at least. Where a look costs as much
    as `price` iterations, and half of those between two looks are in vain, that is the least of both together."""
    at = 0
    while at <= k:
        at += max(every, math.ceil(math.sqrt(2 * price * at)))
    return at


def exact_norm(x: Tensor) -> Tensor:
    """‖x‖₂ over the last axis with sums that are rounded once: the same in all processes that hold the same x, on whatever
    machine and however many threads."""
    rows = x.detach().double().reshape(-1, x.shape[-1])
    largest = rows.abs().amax(-1, keepdim=True) if x.shape[-1] else rows.new_ones(len(rows), 1)
    power = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent)
    unit = torch.where((largest > 0) & largest.isfinite() & power.isfinite(), power, 1.0)  # so that no square overflows
    small = rows / unit
    squares = zip(unit.flatten().tolist(), (small * small).tolist(), strict=True)  # products are rounded once, powers may not be
    found = [size * math.sqrt(math.fsum(row)) for size, row in squares]
    return torch.tensor(found, dtype=x.dtype, device=x.device).reshape(x.shape[:-1])


def digests(x: NodeTensor) -> NodeScalar:
    """Of the bits of every row, a whole number below 2²⁰: equal for the same x, and hardly ever for another."""
    bits = x.detach().double().contiguous().view(torch.int64)
    odd = 2 * torch.arange(x.shape[-1], device=x.device) + 1
    mixed = ((bits ^ (bits >> 29)) * (odd * 0x9E3779B97F4A7C1)).sum(-1)  # int64 wraps around, in whatever order
    mixed = (mixed ^ (mixed >> 32)) * 0x5851F42D4C957F2D
    return ((mixed >> 43) & ((1 << BITS) - 1)).double()
