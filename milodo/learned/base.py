"""What a learned optimizer is beside an Algorithm: networks with weights, and the settings to build them again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from milodo.algorithms import Algorithm
from milodo.algorithms.base import Space
from milodo.errors import InvalidInput
from milodo.learned.slots import Slots
from milodo.network import Network
from milodo.problems import Problem
from milodo.topology import Topology, topology
from milodo.types import NodeTensor


class Settings(BaseModel):
    """The numbers that fix an architecture, validated: they may come from anybody's file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


WIDEST = 4096
"""Numbers that a network sees or remembers at once; a card that asks for more is refused."""
Hidden = Annotated[int, Field(ge=1, le=WIDEST)]
Seed = Annotated[int, Field(ge=0)]


class Learned(nn.Module, Algorithm):
    """An Algorithm whose numbers are trained. What it remembers while it runs lives in its State, never in the module."""

    kind: ClassVar[str]
    """Its name in LEARNED, in experiments and on cards."""
    space: ClassVar[Space] = {}
    topology: Topology
    """The graph it was made for."""

    Settings: ClassVar[type[Settings]]
    """What its card says of its architecture."""

    @abstractmethod
    def settings(self) -> Settings:
        """What `build` needs beside the topology."""

    @classmethod
    @abstractmethod
    def build(cls, graph: Topology, settings: Any) -> Self:
        """An optimizer with these settings, its weights still to be loaded."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights, and of the networks' arithmetic."""
        return next(self.parameters()).dtype

    def check(self, problem: Problem, net: Network) -> None:
        """Refuses what it was not made for, before the first step."""
        self.check_network(net)

    def check_network(self, net: Network) -> None:
        if net.topology != self.topology:
            raise InvalidInput(
                f"{self.label} was made for {self.topology} and cannot run on {net.topology}: its networks belong to nodes. "
                "Train it on this topology (milodo train ...)."
            )


class PerNode(Learned):
    """A learned optimizer whose networks belong to nodes: every parameter has the nodes held here as its first axis."""

    hidden: int
    seed: int
    """Of the first hidden states."""

    def __init__(self, graph: str | Topology, nodes: Sequence[int] | None) -> None:
        super().__init__()
        self.topology = topology(graph)
        self.nodes = tuple(range(self.topology.n)) if nodes is None else tuple(nodes)
        self.slots = Slots(self.topology, self.nodes)

    @classmethod
    @abstractmethod
    def build(cls, graph: Topology, settings: Any, nodes: Sequence[int] | None = None) -> Self: ...

    def first_hidden(self, x0: NodeTensor, net: Network, d: int) -> list[Tensor]:
        """Three pairs h, c [*batch, n, hidden, d] from N(0, 1), keyed by node and the same for all instances."""
        start = net.randn(6, self.hidden, d, seed=self.seed).to(self.dtype)  # [n, 6, hidden, d]
        return [part.expand(*x0.shape[:-2], *part.shape) for part in start.unbind(1)]

    def at(self, nodes: Sequence[int]) -> Self:
        rows = [self.nodes.index(node) for node in nodes]
        part = self.build(self.topology, self.settings(), nodes).to(self.dtype)
        part.load_state_dict({name: value[rows] for name, value in self.state_dict().items()})
        return part.requires_grad_(next(self.parameters()).requires_grad)
