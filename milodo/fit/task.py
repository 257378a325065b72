"""What to fit, and what came out."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field

import numpy as np

from milodo.algorithms import METHODS
from milodo.algorithms.auto import PAYS
from milodo.errors import InvalidInput, quoted, unknown
from milodo.files import is_file
from milodo.fit.pooled import LOSSES
from milodo.network import Ledger
from milodo.network.formats import message_format
from milodo.status import Status
from milodo.topology import GRAPHS, Topology, topology

LINKS = ("reliable", "lossy")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to fit, and how; the same at every site."""

    target: str
    loss: str = "squared"
    l1: float = 0.0
    l2: float = 0.0
    """The penalty is l1 ‖x‖₁ + l2/2 ‖x‖²; the intercept is spared."""
    graph: str = "ring"
    links: str = "reliable"
    """'reliable', over which sums are exact, or 'lossy', which asks for gossip: losses are simulated, real links have none."""
    pay: str = "bytes"
    """What is to be least: bytes, rounds or seconds."""
    latency: float | None = None
    """Of a link, in seconds; with bandwidth, what seconds depend on. Real links are measured unless both are given."""
    bandwidth: float | None = None
    """In bytes a second."""
    weights: str = "metropolis"
    intercept: bool = True
    standardise: bool = False
    method: str | None = None
    parameters: dict[str, float] = field(default_factory=dict)
    messages: str | None = None
    """Differences in few bits, such as '4-bit', that both ends remember; unless given, what suits the method."""
    optimizer: str | None = None
    """Weights of a learned method."""
    tolerance: float = 1e-8
    """Relative, as `Stop` has it."""
    iterations: int = 200_000

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise unknown("loss", self.loss, LOSSES)
        if self.links not in LINKS:
            raise unknown("kind of links", self.links, LINKS)
        if self.pay not in PAYS:
            raise unknown("price", self.pay, PAYS)
        for name, penalty in (("l1", self.l1), ("l2", self.l2)):
            if not (math.isfinite(penalty) and penalty >= 0):
                raise InvalidInput(f"{name} is {penalty}, but a penalty must be a finite number >= 0.")
        if self.optimizer is not None and self.method is not None:
            raise InvalidInput("a method names a handcrafted one and an optimizer a learned one. Choose one of them.")
        if self.method is not None and self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if self.messages is not None and message_format(self.messages) is None:
            raise InvalidInput(f"messages = {quoted(self.messages)} shortens nothing. Leave it out.")
        if self.messages is not None and self.optimizer is not None:
            raise InvalidInput("a learned optimizer was trained with messages of its own. Leave out messages, or take a method.")

    def topology(self, sites: int) -> Topology:
        """The graph: a full name such as grid(2x3), a file, or a family's name for as many nodes as there are sites."""
        file = is_file(self.graph) and self.graph not in GRAPHS  # a file called ring must not replace the default
        whole = "(" in self.graph or "." in self.graph or "/" in self.graph or file
        graph = topology(self.graph if whole else f"{self.graph}({sites})")
        if graph.n != sites:
            raise InvalidInput(
                f"{graph} has {graph.n} nodes, but there are {sites} sites. Give a graph of {sites}, e.g. ring({sites})."
            )
        return graph


@dataclass(frozen=True)
class SiteFacts:
    """What all sites may know of one, and what is kept with the fit."""

    name: str
    rows: int
    columns: int
    """Features, without the target."""
    classes: dict[str, int] | None = None
    """How many rows each class has, where classes are fitted."""


@dataclass(frozen=True, eq=False)
class Fit:
    """What came out, the same at every site up to the consensus error."""

    columns: tuple[str, ...]
    coefficients: np.ndarray
    """In the units of the data [d]; of k classes [k, d]."""
    intercept: float | np.ndarray
    """Of k classes [k]."""
    standardised: np.ndarray | None
    """Coefficients of the standardised features, where those were asked for."""
    classes: tuple[str, str] | None
    samples: int
    method: str
    why: str
    parameters: dict[str, float]
    objective: float
    unit: float
    """The objective of the model without features."""
    gap: float
    """By how much the objective can exceed its minimum (duality), relative to that of the model without features; NaN without a
    penalty."""
    residual: float
    """How far one more proximal step of 1/L goes, relative to the size of x."""
    consensus: float
    """How far sites are from their mean, relative to its size."""
    iterations: int
    status: Status
    rounds: int
    """Of all that travelled: set-up, method and checks."""
    bytes: int
    """Sent by all sites together, likewise."""
    seconds: float
    traffic: Ledger = field(default_factory=Ledger)
    """Rounds and bytes by what they were for: set-up, method, checks."""
    sites: tuple[SiteFacts, ...] = ()
    """Of whose rows it is the model, where they are known by name."""
    warnings: tuple[str, ...] = ()
    """Sentences about data that may not be what they should: columns in other units at a site, classes that are separated."""

    @property
    def sha256(self) -> str:
        """Of the names of the columns and the bits of coefficients and intercept: equal where the models are."""
        numbers = np.concatenate([np.ravel(self.coefficients), np.ravel(self.intercept)]).astype("<f8")
        return hashlib.sha256(json.dumps(self.columns).encode() + numbers.tobytes()).hexdigest()
