"""The only loop: iterate() for every method, in every runtime; and how a run can end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from milodo.algorithms import Algorithm
from milodo.errors import InvalidInput, as_float, quoted, whole
from milodo.network import Network, Observer, StackedObserver, Traffic
from milodo.problems import Problem
from milodo.status import Status
from milodo.types import NodeTensor, Point


GROWTH = 1e6
"""A loss this many times the loss at the start counts as divergence (`too_large`)."""


def check(algorithm: Algorithm, problem: Problem, net: Network) -> None:
    """Refuses what cannot run together, before the first iteration."""
    if problem.n != net.n:
        raise InvalidInput(
            f"the problem has {problem.n} nodes, but {net.topology} holds {net.n} here. "
            f"Choose a topology with {problem.n} nodes, or a problem with n = {net.n}."
        )
    if problem.dtype != net.dtype:
        raise InvalidInput(
            f"the problem is in {problem.dtype} and the network in {net.dtype}. Build both with the same dtype=...: "
            f"mixing them would silently compute {algorithm.label} in the wider one."
        )
    if problem.device.type != net.device.type:
        raise InvalidInput(
            f"the problem is on {problem.device} and the network on {net.device}. Build both with the same device=..."
        )


def iterate(
    algorithm: Algorithm,
    problem: Problem,
    net: Network,
    *,
    x0: NodeTensor | None = None,
    after: tuple[int, Any] | None = None,
) -> Iterator[Any]:
    """States 0, 1, 2, ... without end, or as many as the method can do; x0 is problem.start() unless given.

    With after = (k, state) it goes on where an earlier run was: states k, k + 1, ...
    """
    check(algorithm, problem, net)
    x0 = problem.start() if x0 is None else x0
    shape = (*problem.batch, problem.n, problem.d)
    if x0.dtype != problem.dtype or tuple(x0.shape[-len(shape) :]) != shape:
        raise InvalidInput(f"x0 is {tuple(x0.shape)} in {x0.dtype}, but the problem needs {shape} in {problem.dtype}.")
    if after is None:
        net.iteration, net.first_round = 0, net.traffic.rounds
    first, state = (0, algorithm.init(x0, problem, net)) if after is None else after
    yield state
    for k in itertools.count(first + 1) if algorithm.longest is None else range(first + 1, algorithm.longest + 1):
        net.iteration = k
        state = algorithm.step(state, problem, net)
        yield state


class Keeper(Protocol):
    """Where states are kept, so that a run that was cut short can go on."""

    def last(self, first: Any) -> tuple[int, Any] | None:
        """(k, state) to go on after, if there is one; `first` is the state of iteration 0, for its shape."""
        ...

    def keep(self, k: int, state: Any) -> None:
        """Called after every iteration; keeps what it wants to."""
        ...


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When to end; whichever comes first."""

    steps: int = 1000
    seconds: float | None = None
    tolerance: float | None = None
    """End when every instance is this close to optimal, relative to its own units: see `off_by`."""
    every: int = 10
    """Iterations between two looks at the tolerance and at divergence."""

    def __post_init__(self) -> None:
        whole("steps", self.steps, least=1)
        whole("every", self.every, least=1)
        for name in ("seconds", "tolerance"):
            value = getattr(self, name)
            if value is not None and not (as_float(value) or 0) > 0:
                raise InvalidInput(f"{name} is {quoted(value)}, but it must be a number > 0.")


@dataclass(frozen=True)
class Result:
    x: NodeTensor
    k: int
    status: Status
    objective: torch.Tensor
    """f(x̄) + r(x̄), one number an instance."""
    consensus: torch.Tensor
    """(1/n) Σ ‖x_i - x̄‖, one number an instance."""
    traffic: Traffic = field(default_factory=Traffic)
    """Sent by the nodes held here in this run."""

    def __str__(self) -> str:
        return f"{self.status.name} after {self.k} iterations: {self.status.sentence}."


def mean_point(x: NodeTensor, observer: Observer) -> Point:
    """x̄ = (1/n) Σ x_i."""
    return observer.mean(x, dim=-2)


TOUCH = 1e-6
"""How far beyond a wall of r an average still counts as touching it, relative to the size of what was averaged."""


def judged_point(x: NodeTensor, problem: Problem, observer: Observer) -> Point:
    """x̄ where its loss is taken: averages of points on a wall of r round to beyond it, all the more if they were made in fp32
    and are judged in fp64, and r = ∞ there would look like divergence."""
    x_mean = mean_point(x, observer)
    inside = problem.reg.inside(x_mean)
    if torch.equal(inside, x_mean):
        return x_mean
    size = observer.mean(x.abs(), dim=-2)
    return torch.where((inside - x_mean).abs() <= TOUCH * torch.maximum(size, inside.abs()), inside, x_mean)


def consensus_error(x: NodeTensor, observer: Observer) -> torch.Tensor:
    """(1/n) Σ_i ‖x_i - x̄‖₂ (Appendix E.3, Evaluation metric)."""
    x_mean = mean_point(x, observer)
    return observer.mean((x - x_mean.unsqueeze(-2)).norm(dim=-1), dim=-1)


def residual(problem: Problem, x: Point, observer: Observer) -> torch.Tensor:
    """L ‖x - prox_{r/L}(x - ∇f(x)/L)‖₂: zero exactly at the optimum, and ‖∇f‖ where r = 0."""
    L = observer.mean(problem.lipschitz(), dim=-1).unsqueeze(-1)
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
    def of(cls, problem: Problem, observer: Observer) -> Units:
        start = problem.start()
        at_start = problem.objective(start[..., 0, :], observer).abs()
        # What an intercept explains to rounding (targets that are all the same) leaves no unit: rounding is one then.
        value = problem.objective(problem.empty(observer), observer).abs().maximum(torch.finfo(problem.dtype).eps * at_start)
        gradient = observer.mean(problem.grad(start).norm(dim=-1), dim=-1)
        return cls(value, gradient, observer.mean(problem.lipschitz(), dim=-1))


@dataclass(frozen=True)
class Off:
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


def off_by(problem: Problem, x: NodeTensor, observer: Observer, units: Units) -> Off:
    x_mean = mean_point(x, observer)
    size = torch.maximum(x_mean.norm(dim=-1), units.gradient / units.L)
    gap = problem.certificate(x_mean, observer)
    return Off(
        _ratio(gap, units.value) if gap is not None else torch.full_like(size, torch.nan),
        _ratio(residual(problem, x_mean, observer) / units.L, size),
        _ratio(consensus_error(x, observer), size),
    )


def _ratio(a: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """a / unit; where there is no unit, 0 if there is nothing to measure either."""
    return torch.where(a == 0, 0.0, a / unit)


def too_large(problem: Problem, observer: Observer, first: torch.Tensor) -> torch.Tensor:
    """A loss above this counts as divergence: GROWTH times that of the first iterate or of the problem's start.

    Where both are 0, the unit of the objective is ‖∇f‖²/L; an objective without L has no unit, and 1 must do.
    """
    start = problem.start()
    unit = torch.maximum(first.abs(), problem.objective(start[..., 0, :], observer).abs())
    if problem.knows_lipschitz and bool((unit == 0).any()):
        gradient = observer.mean(problem.grad(start).norm(dim=-1), dim=-1)
        unit = torch.where(unit == 0, gradient.square() / observer.mean(problem.lipschitz(), dim=-1), unit)
    return GROWTH * torch.where(unit > 0, unit, 1.0)


@torch.no_grad()
def solve(
    algorithm: Algorithm,
    problem: Problem,
    net: Network,
    stop: Stop | None = None,
    *,
    x0: NodeTensor | None = None,
    observer: Observer | None = None,
    keeper: Keeper | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Result:
    """Runs a method until a stopping rule says so. `progress` hears of the iteration and of how far it is from optimal."""
    stop, observer = stop or Stop(), observer or StackedObserver()
    steps = stop.steps if algorithm.longest is None else min(stop.steps, algorithm.longest)
    start, sent = time.perf_counter(), net.traffic.snapshot()
    k, state, status = 0, None, Status.RUNNING
    limit = units = None
    after = keeper.last(next(iterate(algorithm, problem, net, x0=x0))) if keeper else None
    for k, state in enumerate(iterate(algorithm, problem, net, x0=x0, after=after), after[0] if after else 0):
        if keeper:
            keeper.keep(k, state)
        if k % stop.every == 0 or k == steps:
            last = problem.objective(judged_point(state.x, problem, observer), observer)
            limit = too_large(problem, observer, last) if limit is None else limit
            if not torch.isfinite(last).all() or (last > limit).any():
                status = Status.DIVERGED
            elif stop.tolerance is not None or progress:
                units = Units.of(problem, observer) if units is None else units
                worst = off_by(problem, state.x, observer, units).worst.max()
                off = float(observer.mean(worst.expand(problem.n), dim=-1))  # one number for all: they must stop together
                if stop.tolerance is not None and off <= stop.tolerance:
                    status = Status.CONVERGED
                if progress:
                    progress(k, off)
        if status is Status.RUNNING and k >= steps:
            status = Status.STEPS
        if status is Status.RUNNING and stop.seconds is not None and time.perf_counter() - start > stop.seconds:
            status = Status.TIME
        if status is not Status.RUNNING:
            break
    assert state is not None
    objective = problem.objective(judged_point(state.x, problem, observer), observer)
    return Result(state.x, k, status, objective, consensus_error(state.x, observer), net.traffic - sent)
