"""The only loop: advance() and iterate() for every method, in every runtime; solve() until a stopping rule says so."""

from __future__ import annotations

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from milodo.algorithms import Algorithm
from milodo.algorithms.base import requirements
from milodo.checks import EARLY, Checks, Look, Pace, next_look
from milodo.errors import InvalidInput, as_float, quoted, whole
from milodo.metrics import Units
from milodo.network import Network, Observer, StackedObserver, Traffic
from milodo.network.requirement import check as check_requirements
from milodo.problems import Problem
from milodo.status import Status
from milodo.stopping import GROWTH, StoppingCriterion
from milodo.synchronise import after_step, begin, own_state
from milodo.types import NodeScalar, NodeTensor

GAIN = 0.9
"""What a look must have left of how far off x was to count as nearer."""


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
    check_requirements(algorithm.label, requirements(algorithm), replace(net.conditions, hessian=problem.knows_hessian))
    shape = (*problem.batch, problem.n, problem.d)
    if x0 is not None and (x0.dtype != problem.dtype or tuple(x0.shape[-len(shape) :]) != shape):
        raise InvalidInput(f"x0 is {tuple(x0.shape)} in {x0.dtype}, but the problem needs {shape} in {problem.dtype}.")


def advance(algorithm: Algorithm, state: Any, problem: Problem, net: Network, k: int) -> Any:
    """Iteration k: the method sees the problem and the network as they are then. Nobody else calls `step`."""
    problem, net = problem.at_step(k), net.at_step(k)
    return after_step(algorithm, state, algorithm.step(own_state(state), problem, net), problem, net)


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
    first, state = (0, begin(algorithm, x0, problem.at_step(0), net.at_step(0))) if after is None else after
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

    method: str
    """Whose states it keeps; set by `solve`."""
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
    """End when every instance is this close to optimal, relative to its own units: see `optimality_error`."""
    every: int = 10
    """Iterations between two looks at the tolerance, at divergence and at the clock."""
    price: float = 0.0
    """How many iterations a look costs: the more, the further apart they are as a run goes on (`next_look`). Where it is not 0, x
    is looked at closely only where steps, or a guess, say that it may be within the tolerance (`Pace`)."""
    proven: bool = True
    """Whether x must be proven to be within the tolerance; else a guess is enough, where all nodes know a gradient."""

    patience: int | None = None
    """End, as stalled, when so many looks in a row came no tenth nearer, or x stands still."""

    def __post_init__(self) -> None:
        whole("steps", self.steps, least=1)
        if self.patience is not None:
            whole("patience", self.patience, least=1)
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
    the problem has no units to say it in; between two close looks an estimate). `watch` sees x whenever there is a check. `units`
    need not be summed if they are known."""
    check(algorithm, problem, net, x0)
    stop, observer = stop or Stop(), observer or StackedObserver(net)
    steps = stop.steps if algorithm.longest is None else min(stop.steps, algorithm.longest)
    sent, asked = net.traffic.snapshot(), observer.traffic.snapshot()
    x0 = problem.start() if x0 is None else x0
    wanted = stop.tolerance is not None or (progress is not None and problem.knows_lipschitz)
    checks = Checks(problem, observer, (units or Units.of(problem, observer)) if wanted else None, alike=bool(algorithm.alike))
    inspect = (_ByEvaluation if wanted and algorithm.evaluates else _BySums)(algorithm, checks, stop, steps)
    ends = StoppingCriterion(
        problem, observer, steps=steps, seconds=stop.seconds, tolerance=stop.tolerance, limit=inspect.limit(x0)
    )  # fmt: skip
    if keeper:
        keeper.method, keeper.notes, keeper.restored = algorithm.label, inspect.notes, inspect.restored
    after = keeper.last(next(iterate(algorithm, problem, net, x0=x0))) if keeper else None
    first, best, status, state, found = after[0] if after else 0, _Best(stop.patience), Status.RUNNING, None, None
    k, due = first, next_look(first - 1, stop.every, stop.price)
    for k, state in enumerate(iterate(algorithm, problem, net, x0=x0, after=after), first):
        inspect.came_to(state.x)
        if keeper:
            keeper.keep(k, state)
        if k not in (due, steps):
            continue
        due = next_look(k, stop.every, stop.price)
        if watch and k:
            watch(state.x)
        found = inspect(k, state, begun=k > 0 or after is not None)
        if found is None:
            continue
        status = ends(k, found.loss, found.seconds, found.off if found.decides else math.nan)
        if progress:
            progress(k, found.off if wanted else math.nan)
        if status is Status.RUNNING and best.stalls(k, found.look):
            status = Status.STALLED
        if status is not Status.RUNNING:
            break
    assert state is not None
    look = best.look if status is Status.STALLED else None if found is None else found.look
    look = look or checks.look(state.x, proven=stop.proven)
    checked = (observer.traffic - asked).shared(math.prod(problem.batch))
    return Result(state.x, k, status, look.objective, look.spread, net.traffic - sent, checked, look)


@dataclass(frozen=True)
class _Inspection:
    """What is known of an iterate; agreed upon."""

    loss: torch.Tensor
    seconds: float
    off: float
    """How far from optimal the worst instance is, or seems to be."""
    decides: bool
    """Whether that is enough to end by."""
    look: Look | None = None


class _Inspector(ABC):
    """What is found out about the iterates of one run, for the stopping rule."""

    def __init__(self, algorithm: Algorithm, checks: Checks, stop: Stop, steps: int) -> None:
        self.algorithm, self.checks, self.stop, self.steps, self.start = algorithm, checks, stop, steps, time.perf_counter()

    @abstractmethod
    def limit(self, x0: NodeTensor) -> torch.Tensor:
        """A larger loss counts as divergence."""

    @abstractmethod
    def __call__(self, k: int, state: Any, *, begun: bool) -> _Inspection | None:
        """Of the state after k iterations; None where there is nothing to know yet. `begun` says that there was a step."""

    def came_to(self, x: NodeTensor) -> None:  # noqa: B027  # few care
        """Sees every iterate."""

    def notes(self) -> dict[str, Any]:
        """What to keep beside a state."""
        return {}

    def restored(self, notes: dict[str, Any] | None) -> None:  # noqa: B027  # few have notes
        """What was kept beside the state that a run goes on from, if it goes on."""


class _ByEvaluation(_Inspector):
    """Of methods whose nodes know f + r and ∇f at x: no sums but a certificate's."""

    def limit(self, x0: NodeTensor) -> torch.Tensor:
        return self.checks.limit_of_units(GROWTH)

    def __call__(self, k: int, state: Any, *, begun: bool) -> _Inspection | None:
        known = self.algorithm.evaluated(own_state(state))
        if known is None:
            return None
        look = self.checks.look_at(known, self.stop.tolerance)
        seconds = 0.0 if self.stop.seconds is None else self.checks.clock(time.perf_counter() - self.start)
        return _Inspection(look.objective, seconds, look.worst, True, look)


class _BySums(_Inspector):
    """Of all others: a glance, and a closer look where that is due (`Pace`). What a resumed run must know to look where the first
    would have is kept with a snapshot: how long steps were since the last look, and when to look closely."""

    def __init__(self, algorithm: Algorithm, checks: Checks, stop: Stop, steps: int) -> None:
        super().__init__(algorithm, checks, stop, steps)
        early = 1.0 if algorithm.alike else EARLY
        self.pace = None if stop.tolerance is None or not stop.price else Pace(stop.tolerance, early)
        self.x: NodeTensor | None = None
        self.moves: NodeScalar | None = None
        self.kept: Any = None
        """`moves` of the iteration that a resumed run begins with."""

    def limit(self, x0: NodeTensor) -> torch.Tensor:
        return self.checks.limit(x0, GROWTH)

    def came_to(self, x: NodeTensor) -> None:
        if self.pace is None:
            return
        if self.x is not None:
            move = (x - self.x).norm(dim=-1)
            self.moves = move if self.moves is None else torch.maximum(self.moves, move)
        elif self.kept is not None:
            if len(self.kept) != x[..., 0].numel():
                raise InvalidInput("the snapshot is of a run with other nodes or instances. Start again without resuming.")
            self.moves, self.kept = torch.tensor(self.kept, dtype=x.dtype, device=x.device).reshape(x.shape[:-1]), None
        self.x = x

    def __call__(self, k: int, state: Any, *, begun: bool) -> _Inspection:
        checks, pace, stop = self.checks, self.pace, self.stop
        moves, self.moves = self.moves, None
        seen = checks.glance(state.x, moves, time.perf_counter() - self.start if stop.seconds else None)
        sign, known = float(seen.moved.max()), self.algorithm.known(own_state(state)) if pace and checks.alike and begun else None
        if pace and known is not None:
            sign = float(checks.guess(known[0][..., 0, :], known[1][..., 0, :], pace.tolerance).max())
        enough = pace is not None and known is not None and not stop.proven and sign <= pace.tolerance
        if checks.units is None or enough or not (pace is None or k == self.steps or pace.due(k, sign)):
            return _Inspection(seen.loss, seen.seconds, sign, enough)
        look = checks.look(state.x, None if k == self.steps else stop.tolerance)
        if pace:
            pace.failed(k, sign, look.worst)
        return _Inspection(look.objective, seen.seconds, look.worst, True, look)

    def notes(self) -> dict[str, Any]:
        moves = None if self.moves is None else self.moves.flatten().tolist()
        return {"steps": moves, "pace": self.pace and self.pace.to_json()}

    def restored(self, notes: dict[str, Any] | None) -> None:
        if notes is None:
            return
        self.kept = notes.get("steps")
        if self.kept is not None and not (isinstance(self.kept, list) and all(isinstance(step, float) for step in self.kept)):
            raise ValueError("its last steps are no numbers")
        if self.pace:
            self.pace.restore(notes.get("pace"))


class _Best:
    """The closest look so far, and whether checks come any nearer."""

    def __init__(self, patience: int | None) -> None:
        self.patience, self.look, self.since = patience, None, 0
        self.last: Look | None = None

    def stalls(self, k: int, look: Look | None) -> bool:
        """Whether x stands still, or `patience` checks in a row came no tenth nearer than the nearest before."""
        if self.patience is None or look is None:
            return False
        rests = self.last is not None and torch.equal(self.last.point, look.point)
        self.last, before = look, math.inf if self.look is None else self.look.worst
        self.since = 0 if look.worst < GAIN * before else self.since + 1
        self.look = look if self.look is None or look.worst < before else self.look
        return rests or self.since >= self.patience
