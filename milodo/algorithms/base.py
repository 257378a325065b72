"""A method is a State plus init and step; what it states about itself is checked by tests/laws."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import torch

from milodo.errors import InvalidInput, quoted
from milodo.network import Network
from milodo.problems import Problem
from milodo.types import NodeTensor


@dataclass(frozen=True)
class StepSize:
    """A parameter searched on a logarithmic grid from low/L to high/L, L being the largest Lipschitz constant of a node."""

    low: float
    high: float


@dataclass(frozen=True)
class Fraction:
    """A parameter searched on a logarithmic grid inside (0, 1]."""

    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """A whole number, each value tried in turn."""

    values: tuple[int, ...]


Space = dict[str, StepSize | Fraction | Choice]


class Algorithm(ABC):
    """State, init, step. `step` reads like its equations and knows nothing but its state, its problem and its neighbours."""

    label: ClassVar[str]
    """How figures and tables call it."""
    exact: ClassVar[bool]
    """Whether its only fixed point is the optimum."""
    space: ClassVar[Space]
    """What tuning searches."""
    needs: ClassVar[str] = ""
    """What it asks of the network beyond links that work now and then."""
    State: ClassVar[type[tuple[Any, ...]]]
    """A NamedTuple, the iterate x first."""
    longest: int | None = None
    """Iterations it can do; None for any number. Unrolled methods end with their last layer."""

    @property
    @abstractmethod
    def rounds(self) -> int | None:
        """Swaps in one step; at most, where a method does not talk the same in every one. None if the graph decides."""

    def rounds_on(self, net: Network) -> int:
        """Rounds of one step on this network."""
        assert self.rounds is not None, f"{self.label} must say how many rounds it needs on a graph"
        return self.rounds

    def floats_on(self, net: Network, d: int) -> int:
        """Numbers that all nodes send in one step; at most, like rounds."""
        return self.rounds_on(net) * len(net.topology.arcs) * d

    @abstractmethod
    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> Any:
        """The state before the first step."""

    @abstractmethod
    def step(self, state: Any, problem: Problem, net: Network) -> Any:
        """The next state."""

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """With parameters that converge on this network without tuning; L is the largest Lipschitz constant of a node, `mean` the
        mean of all of them, if that is known."""
        raise InvalidInput(f"{cls.label} does not say which parameters are safe. Give all of them, or tune it.")

    def at(self, nodes: Sequence[int]) -> Self:
        """The part of the method that belongs to these nodes; handcrafted methods are the same everywhere."""
        return self

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # every method is a dataclass
            if field.name in self.space:
                check_parameter(self.label, field.name, self.space[field.name], getattr(self, field.name))


def check_parameter(method: str, name: str, kind: StepSize | Fraction | Choice, value: Any) -> None:
    """One sentence for a parameter that cannot work."""
    if isinstance(kind, Choice):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidInput(f"{method}: {name} is {quoted(value)}, but it must be a whole number >= 1.")
        return
    if not isinstance(value, int | float | torch.Tensor) or isinstance(value, bool):
        raise InvalidInput(f"{method}: {name} is {quoted(value)}, but it must be a number.")
    if isinstance(value, torch.Tensor) and value.numel() == 0:
        raise InvalidInput(f"{method}: {name} is an empty tensor, but it must hold at least one number.")
    numbers = value.detach().flatten().tolist() if isinstance(value, torch.Tensor) else [value]
    for number in numbers:
        if not 0 < number <= sys.float_info.max:  # a whole number may lie beyond
            said = f"{number:g}" if isinstance(number, float) else quoted(number)
            raise InvalidInput(f"{method}: {name} is {said}, but a step size must be a finite number > 0.")
    high = max(numbers)
    if isinstance(kind, Fraction) and high > 1:
        raise InvalidInput(f"{method}: {name} is {high:g}, but it must lie in (0, 1].")


class XState(NamedTuple):
    """The state of a method that remembers nothing but its iterate."""

    x: NodeTensor
