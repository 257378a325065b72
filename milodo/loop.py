"""The only loop: advance() and iterate() for every method, in every runtime; solve() until a stopping rule says so."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from milodo.algorithms import Algorithm
from milodo.errors import InvalidInput, as_float, quoted, whole
from milodo.judge import Judge
from milodo.metrics import consensus_error
from milodo.network import Network, Observer, StackedObserver, Traffic
from milodo.problems import Problem
from milodo.status import Status
from milodo.types import NodeTensor


def check(algorithm: Algorithm, problem: Problem, net: Network, x0: NodeTensor | None = None) -> None:
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
    if net.schedule is not None:
        if algorithm.asks:
            raise InvalidInput(
                f"{algorithm.label} needs {algorithm.asks}, and the graph changes with the iteration ({net.schedule}). "
                "Use a method that gossips, e.g. accelerated-ed."
            )
        algorithm.rounds_on(net)  # refuses what is made for one spectrum
    shape = (*problem.batch, problem.n, problem.d)
    if x0 is not None and (x0.dtype != problem.dtype or tuple(x0.shape[-len(shape) :]) != shape):
        raise InvalidInput(f"x0 is {tuple(x0.shape)} in {x0.dtype}, but the problem needs {shape} in {problem.dtype}.")


def advance(algorithm: Algorithm, state: Any, problem: Problem, net: Network, k: int) -> Any:
    """Iteration k: the method sees the problem and the network as they are then. Nobody else calls `step`."""
    problem, net = problem.at_step(k), net.at_step(k)
    return algorithm.in_step(algorithm.step(state, problem, net), problem, net)


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
    check(algorithm, problem, net, x0)
    x0 = problem.start() if x0 is None else x0
    first, state = (0, algorithm.init(x0, problem.at_step(0), net.at_step(0))) if after is None else after
    yield state
    for k in itertools.count(first + 1) if algorithm.longest is None else range(first + 1, algorithm.longest + 1):
        state = advance(algorithm, state, problem, net, k)
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
    """Iterations between two looks at the tolerance, at divergence and at the clock."""

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
    """Runs a method until a stopping rule says so. `progress` hears of the iteration and of how far it is from optimal (NaN where
    the problem has no units to say it in)."""
    check(algorithm, problem, net, x0)
    stop, observer = stop or Stop(), observer or StackedObserver()
    steps = stop.steps if algorithm.longest is None else min(stop.steps, algorithm.longest)
    start, sent = time.perf_counter(), net.traffic.snapshot()
    judge = Judge(problem, observer, steps=steps, seconds=stop.seconds, tolerance=stop.tolerance, x0=x0)
    after = keeper.last(next(iterate(algorithm, problem, net, x0=x0))) if keeper else None
    k, state = 0, None
    for k, state in enumerate(iterate(algorithm, problem, net, x0=x0, after=after), after[0] if after else 0):
        if keeper:
            keeper.keep(k, state)
        if k % stop.every == 0 or k == steps:
            seconds = observer.agreed(torch.tensor(time.perf_counter() - start, dtype=torch.float64)) if stop.seconds else 0.0
            off = judge.off(state.x) if stop.tolerance is not None or progress else math.nan
            status = judge(k, judge.loss(state.x), float(seconds), off)
            if progress:
                progress(k, off)
            if status is not Status.RUNNING:
                break
    assert state is not None
    return Result(state.x, k, judge.status, judge.loss(state.x), consensus_error(state.x, observer), net.traffic - sent)
