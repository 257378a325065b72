"""Where a race runs: which network carries it, who looks at all nodes, what is kept on the way, and who writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from milodo.bench.recorder import Recorder, Stopwatch
from milodo.config import Experiment, MethodTable
from milodo.loop import Keeper
from milodo.network import Network, Observer, StackedObserver
from milodo.topology import Topology

Chunk = tuple[int, int]
"""Instances [from, to) that advance together."""
Found = dict[str, Any]
"""A few facts, as JSON can hold them; NaN is one."""


class Place(Protocol):
    """What a Benchmark asks of its surroundings. Facts are shared before the first iteration; data and iterates never are."""

    runtime: str
    """As run.json calls it."""
    processes: int | None
    """How many, where there are several."""
    writes: bool
    """Whether this process is the one that tunes, certifies and writes; what it finds, the others are told."""
    observer: Observer
    """Known once there is a network."""

    def begin(self, experiment: Experiment, graph: Topology, *, resume: bool, overwrite: bool) -> tuple[bool, bool]:
        """All are here and want the same; whether they resume, and whether they overwrite."""
        ...

    def shared(self, what: str, find: Callable[[], Found]) -> Found:
        """What the one who writes finds, for all."""
        ...

    def network(self, dtype: torch.dtype) -> Network:
        """The nodes held here, connected to the others."""
        ...

    def meet(self, where: str) -> None:
        """Returns when all have come here."""

    def keeper(self, method: MethodTable, chunk: Chunk, recorder: Recorder, watch: Stopwatch) -> Keeper | None:
        """What keeps the states of a method on a chunk, and puts recorder and watch back to the last one."""

    def finish(self) -> None:
        """All have recorded everything."""


class Simulated(Place):
    """All nodes are in this process."""

    runtime, processes, writes = "simulated", None, True
    observer = StackedObserver()

    def begin(self, experiment: Experiment, graph: Topology, *, resume: bool, overwrite: bool) -> tuple[bool, bool]:
        self.experiment = experiment
        return resume, overwrite

    def shared(self, what: str, find: Callable[[], Found]) -> Found:
        return find()

    def network(self, dtype: torch.dtype) -> Network:
        return self.experiment.network.network(seed=self.experiment.seed, dtype=dtype, device=self.experiment.run.device)
