"""What is asked of a fit: samples, what to fit to them and how, over which network, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from milodo.fit.planning import Plan
from milodo.fit.task import SiteFacts, Task
from milodo.loop import Keeper
from milodo.network import Network, Observer


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Of the nodes held here, and what people call their parts."""

    features: Sequence[Tensor]
    """[N, d] of each node."""
    targets: Sequence[Tensor]
    """[N]; of two classes 0 and 1, and of k classes [N, k], 1 at the class of a sample."""
    columns: tuple[str, ...]
    weights: Sequence[Tensor] | None = None
    """How much each sample counts [N]; 1 unless given."""
    classes: tuple[str, str] | None = None
    """Names of two classes, the second of which is predicted."""
    labels: Sequence[str] = ()
    """Of several classes."""
    sites: Sequence[str] = ()
    """Names of all sites of the network."""


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Who is told what, while a fit runs; nobody unless given."""

    listing: Callable[[Sequence[SiteFacts]], None] | None = None
    """All sites, before anything is computed."""
    caution: Callable[[str], None] | None = None
    """What may be wrong with the data."""
    announce: Callable[[Plan], None] | None = None
    """How the model will be fitted, before it is."""
    along: Callable[[float, str], None] | None = None
    """How much of a path of penalties is done."""
    progress: Callable[[int, float], None] | None = None
    """The iteration, and how far it is from optimal."""


@dataclass(frozen=True)
class Request:
    """The same at every site, but for the samples."""

    samples: Samples
    task: Task
    net: Network
    observer: Observer
    listeners: Listeners = field(default_factory=Listeners)
    keeper: Keeper | None = None
    """Where states are kept, so that a fit that was cut short can go on."""

    def asking(self, **changes: Any) -> Request:
        """The same with another task."""
        return replace(self, task=replace(self.task, **changes))

    def caution(self, sentence: str) -> None:
        if self.listeners.caution:
            self.listeners.caution(sentence)
