"""What an exchange is: how nodes are brought together, with what both ends remember, what it requires and what it costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network.base import Network
from milodo.network.channels import Format
from milodo.network.requirement import Requirement, check
from milodo.network.wire import longest
from milodo.topology.mixing import Mixing
from milodo.types import NodeTensor


@dataclass(frozen=True)
class Cost:
    """Of one application, by all nodes together."""

    rounds: int
    messages: int
    numbers: int
    bytes: int
    """At most, where messages vary in length."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.rounds + other.rounds,
            self.messages + other.messages,
            self.numbers + other.numbers,
            self.bytes + other.bytes,
        )


class Exchange(ABC):
    """A frozen dataclass. With a compressor only compressed differences travel: of what each end has sent so far both ends keep a
    replica ẑ (difference compression, as in CHOCO-SGD, DIANA, EF21 and LEAD),

        q = Q(z - ẑ)      is sent
        ẑ⁺ = ẑ + q        at both ends, and is what both use in place of z

    Where z comes to rest so does ẑ, whatever Q rounds away: q is relative to what is still to be said, so a few bits lose nothing
    in the end. Everything the graph adds up is made of ẑ_i - ẑ_j, the same at both ends but for its sign, so what summed to zero
    over the nodes (duals, tracked gradients) still does. A message that is lost changes neither replica; whether both ends still
    have the same is compared now and then (network/replicas.py).

    `init` gives the replicas, None without a compressor; every application takes them and returns new ones.
    """

    compressor: Format | None

    @property
    def requires(self) -> frozenset[Requirement]:
        """Of the network."""
        return frozenset()

    @abstractmethod
    def init(self, x: Tensor, net: Network) -> Any:
        """What both ends remember before the first application: of messages shaped like x, nothing yet."""

    @abstractmethod
    def __call__(self, x: NodeTensor, state: Any, net: Network) -> tuple[Tensor, Any]:
        """What this exchange is for; and what both ends remember now."""

    @abstractmethod
    def average(self, x: NodeTensor, state: Any, net: Network) -> tuple[NodeTensor, Any]:
        """A x, with A symmetric: it leaves consensus alone and shrinks disagreement."""

    @abstractmethod
    def residual(self, x: NodeTensor, state: Any, net: Network) -> tuple[NodeTensor, Any]:
        """x - A x, which sums to zero over the nodes."""

    @abstractmethod
    def rounds(self, mixing: Mixing) -> int:
        """Of one application on this graph."""

    def messages(self, mixing: Mixing) -> int:
        """That all nodes send in one application."""
        return self.rounds(mixing) * len(mixing.topology.arcs)

    @abstractmethod
    def contraction(self, mixing: Mixing) -> float:
        """θ: what A leaves of disagreement, at most, in magnitude."""

    @abstractmethod
    def noise_gain(self, mixing: Mixing) -> float:
        """How large errors of size one in every message can arrive in A x."""

    def cost(self, net: Network, d: int, exact: int = 0) -> Cost:
        """Of messages of d numbers, the last `exact` of which travel as they are."""
        form, messages = self.compressor or net.format, self.messages(net.mixing)
        numbers = d if form is None else form.numbers(d - exact) + exact
        return Cost(self.rounds(net.mixing), messages, messages * numbers, messages * longest(form, d, exact, net.dtype))

    def check(self, net: Network) -> None:
        """Refuses networks on which it cannot do what it is for."""
        check(self, self.requires, net.conditions)
        if self.compressor is not None and net.format is not None:
            raise InvalidInput(
                f"messages are shortened to {net.format} already, and this exchange sends differences in {self.compressor}. "
                "Give one of them: messages of the network, or of the method."
            )
