"""The only loop: iterate() for every method, in every runtime; and how a run can end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import torch

from milodo.algorithms import Algorithm
from milodo.errors import InvalidInput
from milodo.network import Network, Observer, StackedObserver, Traffic
from milodo.problems import Problem
from milodo.types import NodeTensor, Point


class Status(Enum):
    """How a run ended. Divergence is a result, not an exception."""

    RUNNING = "still running"
    CONVERGED = "reached the tolerance asked for"
    STEPS = "used all the iterations it was given"
    TIME = "used all the seconds it was given"
    DIVERGED = "diverged: the loss is no longer finite, or has grown a million times"
    INTERRUPTED = "stopped by the user; what was recorded is kept"

    @property
    def sentence(self) -> str:
        return self.value


GROWTH = 1e6
"""A loss this many times the loss at the start counts as divergence."""


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
    """End when every instance satisfies ‖x̄ - prox(x̄ - ∇f(x̄)/L)‖ L <= tolerance and its consensus error is as small."""
    every: int = 10
    """Iterations between two looks at the tolerance and at divergence."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.every < 1:
            raise InvalidInput(f"steps is {self.steps} and every is {self.every}; both must be at least 1.")
        for name in ("seconds", "tolerance"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"{name} is {value}, but it must be > 0.")


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
"""How far beyond a wall of r an average still counts as touching it, relative to its size."""


def judged_point(x: NodeTensor, problem: Problem, observer: Observer) -> Point:
    """x̄ where its loss is taken: averages of points on a wall of r round to beyond it, all the more if they were made in fp32
    and are judged in fp64, and r = ∞ there would look like divergence."""
    x_mean = mean_point(x, observer)
    inside = problem.reg.inside(x_mean)
    return torch.where((inside - x_mean).abs() <= TOUCH * (1 + x_mean.abs()), inside, x_mean)


def consensus_error(x: NodeTensor, observer: Observer) -> torch.Tensor:
    """(1/n) Σ_i ‖x_i - x̄‖₂ (Appendix E.3, Evaluation metric)."""
    x_mean = mean_point(x, observer)
    return observer.mean((x - x_mean.unsqueeze(-2)).norm(dim=-1), dim=-1)


def residual(problem: Problem, x: Point, observer: Observer) -> torch.Tensor:
    """L ‖x - prox_{r/L}(x - ∇f(x)/L)‖₂: zero exactly at the optimum, and ‖∇f‖ where r = 0."""
    L = observer.mean(problem.lipschitz(), dim=-1).unsqueeze(-1)
    gradient = observer.mean(problem.grad(problem.everywhere(x)), dim=-2)
    return (L * (x - problem.reg.prox(x - gradient / L, 1 / L))).norm(dim=-1)


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
    first = last = None
    after = keeper.last(next(iterate(algorithm, problem, net, x0=x0))) if keeper else None
    for k, state in enumerate(iterate(algorithm, problem, net, x0=x0, after=after), after[0] if after else 0):
        if keeper:
            keeper.keep(k, state)
        if k % stop.every == 0 or k == steps:
            last = problem.objective(judged_point(state.x, problem, observer), observer)
            first = last if first is None else first
            if not torch.isfinite(last).all() or (last > GROWTH * first.abs().clamp(min=1)).any():
                status = Status.DIVERGED
            elif stop.tolerance is not None or progress:
                off = distance_from_optimal(problem, state.x, observer)
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


def distance_from_optimal(problem: Problem, x: NodeTensor, observer: Observer) -> float:
    """The larger of residual and consensus error, of the worst instance."""
    optimality = residual(problem, mean_point(x, observer), observer)
    worst = torch.maximum(optimality, consensus_error(x, observer)).max()
    return float(observer.mean(worst.expand(problem.n), dim=-1))  # one number for all processes: they must stop together
