"""A method is a State plus init and step; what it states about itself is checked by tests/laws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import MISSING, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

from milodo.algorithms.parameters import Space
from milodo.errors import InvalidInput
from milodo.network import Format, Network
from milodo.network.exchange import Cost, Exchange, Gossip
from milodo.network.requirement import Requirement, in_words
from milodo.problems import Problem
from milodo.types import Evaluation, NodeTensor


class Algorithm(ABC):
    """State, init, step. `step` reads like its equations and knows nothing but its state, its problem and its neighbours."""

    label: ClassVar[str]
    """How figures and tables call it."""
    exact: ClassVar[bool]
    """Whether its only fixed point is the optimum."""
    space: ClassVar[Space]
    """What tuning searches."""
    requires: ClassVar[frozenset[Requirement]] = frozenset()
    """Of the problem, beside what its exchange requires of the network."""
    evaluates: ClassVar[bool] = False
    """Whether every node knows f + r and ∇f at x exactly after every step (`evaluated`): then a stopping rule needs no sums."""
    steady: ClassVar[bool] = True
    """Whether it says the same amount in every step."""
    alike: ClassVar[tuple[str, ...]] = ()
    """Parts of its state [*batch, n, *], x among them, that are the same at all nodes, to the bit, if they begin with the same;
    then there is nothing to average."""
    State: ClassVar[type[tuple[Any, ...]]]
    """A NamedTuple, the iterate x first."""
    exchange: Exchange = Gossip()
    """How it brings the nodes together."""
    longest: int | None = None
    """Iterations it can do; None for any number. Unrolled methods end with their last layer."""

    @property
    def needs(self) -> str:
        """All that it and its exchange require, in words."""
        return in_words(requirements(self))

    def sends(self, d: int) -> tuple[tuple[int, int], ...]:
        """Of every application of its exchange in one step: the numbers of a message, and how many of them travel as they are; at
        most, where a method does not send the same in every step."""
        return ((d, 0),)

    def cost(self, net: Network, d: int) -> Cost:
        """Of one step on d unknowns, by all nodes together; at most."""
        first, *others = (self.exchange.cost(net, numbers, exact) for numbers, exact in self.sends(d))
        return sum(others, start=first)

    @property
    def compressor(self) -> Format | None:
        """By which its messages are shortened to differences from what was sent before; None where they travel as they are."""
        return self.exchange.compressor

    def compressed(self, compressor: Format) -> Self:
        """The same, with messages that are compressed differences (`Exchange`)."""
        if self.compressor is not None:
            raise InvalidInput(f"{self.label} sends compressed differences already. Give the method alone, or another.")
        other = copy(self)
        object.__setattr__(other, "exchange", replace(self.exchange, compressor=compressor))  # type: ignore[type-var]
        object.__setattr__(other, "label", f"{self.label}, {compressor}")
        return other

    @property
    def gradients(self) -> int:
        """Gradients that a node takes in one step."""
        return 1

    @abstractmethod
    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> Any:
        """The state before the first step."""

    @abstractmethod
    def step(self, state: Any, problem: Problem, net: Network) -> Any:
        """The next state."""

    def known(self, state: Any) -> tuple[NodeTensor, NodeTensor] | None:
        """A point and ∇f there as far as messages told it, both the same at every node; None where no node knows such."""
        return None

    def evaluated(self, state: Any) -> Evaluation | None:
        """What its nodes know of x, if it evaluates; None before the first step."""
        return None

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """With parameters that converge on this network without tuning; L is the largest Lipschitz constant of a node, `mean` the
        mean of all of them, if that is known."""
        raise InvalidInput(f"{cls.label} does not say which parameters are safe. Give all of them, or tune it.")

    def at(self, nodes: Sequence[int]) -> Self:
        """The part of the method that belongs to these nodes; handcrafted methods are the same everywhere."""
        return self

    def __post_init__(self) -> None:
        if self.compressor is not None:
            object.__setattr__(self, "label", f"{type(self).label}, {self.compressor}")
        for field in fields(self):  # type: ignore[arg-type]  # every method is a dataclass
            if field.name in self.space:
                self.space[field.name].check(f"{self.label}: {field.name}", getattr(self, field.name))

    @property
    def chosen(self) -> dict[str, Any]:
        """Its parameters, by name: those of its space, and what else is not as it is by itself."""
        given = [
            f.name
            for f in fields(self)  # type: ignore[arg-type]
            if f.name != "exchange" and f.default is not MISSING and getattr(self, f.name) != f.default
        ]
        return {name: getattr(self, name) for name in (*self.space, *(name for name in given if name not in self.space))}


def requirements(method: Algorithm | type[Algorithm]) -> frozenset[Requirement]:
    """Of a method and of its exchange; of a class, of the exchange that it has by itself."""
    return method.requires | method.exchange.requires


class XState(NamedTuple):
    """The state of a method that remembers nothing but its iterate."""

    x: NodeTensor
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""
