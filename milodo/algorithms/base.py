"""A method is a State plus init and step; what it states about itself is checked by tests/laws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, ClassVar, NamedTuple, Self

from milodo.algorithms.parameters import Space
from milodo.errors import InvalidInput
from milodo.network import Network
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
    needs: ClassVar[str] = ""
    """What it asks of the network beyond links that work now and then."""
    evaluates: ClassVar[bool] = False
    """Whether every node knows f + r and ∇f at x exactly after every step (`evaluated`): then a stopping rule needs no sums."""
    steady: ClassVar[bool] = True
    """Whether it says the same amount in every step."""
    alike: ClassVar[tuple[str, ...]] = ()
    """Parts of its state [*batch, n, *], x among them, that are the same at all nodes, to the bit, if they begin with the same;
    then there is nothing to average."""
    State: ClassVar[type[tuple[Any, ...]]]
    """A NamedTuple, the iterate x first."""
    longest: int | None = None
    """Iterations it can do; None for any number. Unrolled methods end with their last layer."""

    @property
    @abstractmethod
    def rounds(self) -> int | None:
        """Swaps in one step; at most, where a method does not talk the same in every one. None if the graph decides."""

    @property
    def asks(self) -> str:
        """What it needs of the network as it is set up now."""
        return self.needs

    def rounds_on(self, net: Network) -> int:
        """Rounds of one step on this network."""
        assert self.rounds is not None, f"{self.label} must say how many rounds it needs on a graph"
        return self.rounds

    def floats_on(self, net: Network, d: int) -> int:
        """Numbers that all nodes send in one step; at most, like rounds."""
        return self.rounds_on(net) * len(net.topology.arcs) * d

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

    def in_step(self, state: Any, problem: Problem, net: Network) -> Any:
        """The state after a step and its comparison with others: what nodes keep of each other's words must be the same at both
        ends. Only methods that keep any have something to compare (network/replicas.py)."""
        return state

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
        for field in fields(self):  # type: ignore[arg-type]  # every method is a dataclass
            if field.name in self.space:
                self.space[field.name].check(f"{self.label}: {field.name}", getattr(self, field.name))

    @property
    def chosen(self) -> dict[str, Any]:
        """Its parameters, by name: those of its space, and what else is not as it is by itself."""
        given = [
            f.name
            for f in fields(self)  # type: ignore[arg-type]
            if f.default is not MISSING and getattr(self, f.name) != f.default
        ]
        return {name: getattr(self, name) for name in (*self.space, *(name for name in given if name not in self.space))}


class XState(NamedTuple):
    """The state of a method that remembers nothing but its iterate."""

    x: NodeTensor
