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
from milodo.checks import EARLY, Checks, Look, Pace, next_look
from milodo.errors import InvalidInput, as_float, quoted, whole
from milodo.judge import GROWTH, Judge
from milodo.metrics import Units
from milodo.network import Network, Observer, StackedObserver, Traffic
from milodo.problems import Problem
from milodo.status import Status
from milodo.types import NodeScalar, NodeTensor


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

    notes: Callable[[], dict[str, Any]]
    """What else to keep beside a state; set by `solve`."""
    restored: Callable[[dict[str, Any] | None], object]
    """Told by `last` what was kept beside the state; None where there is nothing to go on from. Set by `solve`."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When to end; whichever comes first."""

    steps: int = 1000
    seconds: float | None = None
    tolerance: float | None = None
    """End when every instance is this close to optimal, relative to its own units: see `off_by`."""
    every: int = 10
    """Iterations between two looks at the tolerance, at divergence and at the clock."""
    price: float = 0.0
    """How many iterations a look costs: the more, the further apart they are as a run goes on (`next_look`). Where it is not 0, x
    is looked at closely only where steps, or a guess, say that it may be within the tolerance (`Pace`)."""
    proven: bool = True
    """Whether x must be proven to be within the tolerance; else a guess is enough, where all nodes know a gradient."""

    def __post_init__(self) -> None:
        whole("steps", self.steps, least=1)
        whole("every", self.every, least=1)
        for name in ("seconds", "tolerance"):
            value = getattr(self, name)
            if value is not None and not (as_float(value) or 0) > 0:
                raise InvalidInput(f"{name} is {quoted(value)}, but it must be a number > 0.")
        price = as_float(self.price)
        if price is None or not 0 <= price < math.inf:
            raise InvalidInput(f"price is {quoted(self.price)}, but it must be a finite number >= 0.")


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
    """Sent by the nodes held here in this run, by the method."""
    checks: Traffic = field(default_factory=Traffic)
    """Sent for what the stopping rule looked at, and for this result."""
    look: Look | None = None
    """The last one: where the nodes are on average, and how far from optimal that is, if a tolerance asked for it."""

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
    units: Units | None = None,
    watch: Callable[[NodeTensor], None] | None = None,
) -> Result:
    """Runs a method until a stopping rule says so. `progress` hears of the iteration and of how far it is from optimal (NaN where
    the problem has no units to say it in; between two close looks an estimate). `watch` sees x whenever there is a look. `units`
    need not be summed if they are known."""
    check(algorithm, problem, net, x0)
    stop, observer = stop or Stop(), observer or StackedObserver(net)
    steps = stop.steps if algorithm.longest is None else min(stop.steps, algorithm.longest)
    start, sent, asked = time.perf_counter(), net.traffic.snapshot(), observer.traffic.snapshot()
    x0 = problem.start() if x0 is None else x0
    wanted = stop.tolerance is not None or (progress is not None and problem.knows_lipschitz)
    checks = Checks(problem, observer, (units or Units.of(problem, observer)) if wanted else None, alike=bool(algorithm.alike))
    judge = Judge(
        problem, observer, steps=steps, seconds=stop.seconds, tolerance=stop.tolerance, limit=checks.limit(x0, GROWTH)
    )  # fmt: skip
    guesses = bool(algorithm.alike)
    pace = None if stop.tolerance is None or not stop.price else Pace(stop.tolerance, 1.0 if guesses else EARLY)
    run = _Run(pace)
    if keeper:
        keeper.notes, keeper.restored = run.notes, run.restored
    after = keeper.last(next(iterate(algorithm, problem, net, x0=x0))) if keeper else None
    k, state, look = 0, None, None
    first = after[0] if after else 0
    due = next_look(first - 1, stop.every, stop.price)
    for k, state in enumerate(iterate(algorithm, problem, net, x0=x0, after=after), first):
        run.came_to(state.x)
        if keeper:
            keeper.keep(k, state)
        if k in (due, steps):
            due = next_look(k, stop.every, stop.price)
            if watch and k:
                watch(state.x)
            seen = checks.glance(state.x, run.longest(), time.perf_counter() - start if stop.seconds else None)
            sign, known = float(seen.moved.max()), algorithm.known(state) if pace and checks.alike and (k or after) else None
            if pace and known is not None:
                sign = float(checks.guess(known[0][..., 0, :], known[1][..., 0, :], pace.tolerance).max())
            enough = pace is not None and known is not None and not stop.proven and sign <= pace.tolerance
            close = wanted and not enough and (pace is None or k == steps or pace.due(k, sign))
            look = checks.look(state.x, None if k == steps else stop.tolerance) if close else None
            off = sign if look is None else look.worst
            status = judge(k, seen.loss if look is None else look.objective, seen.seconds, off if look or enough else math.nan)
            if progress:
                progress(k, off if wanted else math.nan)
            if status is not Status.RUNNING:
                break
            if look and pace:
                pace.failed(k, sign, off)
            look = None
    assert state is not None
    look = look or checks.look(state.x, proven=stop.proven)
    checked = (observer.traffic - asked).shared(math.prod(problem.batch))
    return Result(state.x, k, judge.status, look.objective, look.spread, net.traffic - sent, checked, look)


class _Run:
    """How long steps were since the last look, and when to look closely: what a resumed run must know to look where the first
    would have."""

    def __init__(self, pace: Pace | None) -> None:
        self.pace = pace
        self.x: NodeTensor | None = None
        self.steps: NodeScalar | None = None
        self.kept: Any = None
        """`steps` of the iteration that a resumed run begins with."""

    def came_to(self, x: NodeTensor) -> None:
        if self.pace is None:
            return
        if self.x is not None:
            step = (x - self.x).norm(dim=-1)
            self.steps = step if self.steps is None else torch.maximum(self.steps, step)
        elif self.kept is not None:
            if len(self.kept) != x[..., 0].numel():
                raise InvalidInput("the snapshot is of a run with other nodes or instances. Start again without resuming.")
            self.steps, self.kept = torch.tensor(self.kept, dtype=x.dtype, device=x.device).reshape(x.shape[:-1]), None
        self.x = x

    def longest(self) -> NodeScalar | None:
        """‖x_i⁺ - x_i‖ at most since this was asked last; None where there was none."""
        steps, self.steps = self.steps, None
        return steps

    def notes(self) -> dict[str, Any]:
        return {"steps": None if self.steps is None else self.steps.flatten().tolist(), "pace": self.pace and self.pace.to_json()}

    def restored(self, notes: dict[str, Any] | None) -> None:
        if notes is None:
            return
        self.kept = notes.get("steps")
        if self.kept is not None and not (isinstance(self.kept, list) and all(isinstance(step, float) for step in self.kept)):
            raise ValueError("its last steps are no numbers")
        if self.pace:
            self.pace.restore(notes.get("pace"))
