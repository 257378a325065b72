"""How a benchmark is carried out: in a simulation or by several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from pydantic import BaseModel

from milodo.bench.recorder import Recorder, Stopwatch
from milodo.bench.run_file import MethodFacts
from milodo.config import Experiment, MethodTable
from milodo.loop import Keeper
from milodo.network import Network, Observer, StackedObserver

Chunk = tuple[int, int]
"""Instances [from, to) that advance together."""
Shared = TypeVar("Shared", bound=BaseModel)


class Plan(BaseModel):
    """What every process knows before the first iteration."""

    methods: dict[str, MethodFacts]
    """With the parameters that each runs with."""
    done: list[tuple[str, Chunk]]
    """Methods and chunks of instances whose records are complete already."""


class Optima(BaseModel):
    """Certified optimal values of the instances of a chunk; NaN where none was certified."""

    values: list[float]


class Runtime(Protocol):
    """What a Benchmark asks of its surroundings. Facts are shared before the first iteration; data and iterates never are."""

    name: str
    """As run.json calls it."""
    processes: int | None
    """How many, where there are several."""
    writes: bool
    """Whether this process is the one that tunes, certifies and writes; the others receive what it finds."""
    observer: Observer
    """Known once there is a network."""

    def begin(self, experiment: Experiment, net: Network, *, resume: bool, overwrite: bool) -> tuple[bool, bool]:
        """All processes are here and want the same; whether they resume, and whether they overwrite."""
        ...

    def shared(self, what: str, kind: type[Shared], find: Callable[[], Shared]) -> Shared:
        """What the process that writes finds, for all."""
        ...

    def network(self, net: Network) -> Network:
        """The nodes held here, connected to the others; `net` is the simulation of all of them."""
        ...

    def meet(self, where: str) -> None:
        """Returns when all processes have come here."""

    def keeper(self, method: MethodTable, chunk: Chunk, recorder: Recorder, watch: Stopwatch) -> Keeper | None:
        """What keeps the states of a method on a chunk, and puts recorder and watch back to the last one."""

    def finish(self) -> None:
        """All processes have recorded everything."""


class Simulated(Runtime):
    """All nodes are in this process."""

    name, processes, writes = "simulated", None, True
    observer = StackedObserver()

    def begin(self, experiment: Experiment, net: Network, *, resume: bool, overwrite: bool) -> tuple[bool, bool]:
        return resume, overwrite

    def shared(self, what: str, kind: type[Shared], find: Callable[[], Shared]) -> Shared:
        return find()

    def network(self, net: Network) -> Network:
        return net
