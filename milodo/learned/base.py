"""What a learned optimizer is beside an Algorithm: networks with weights, and the settings to build them again."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from milodo.algorithms import Algorithm
from milodo.algorithms.base import Space
from milodo.errors import InvalidInput
from milodo.network import Network
from milodo.problems import Problem
from milodo.topology import Topology


class Settings(BaseModel):
    """The numbers that fix an architecture, validated: they may come from anybody's file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Hidden = Annotated[int, Field(ge=1, le=4096)]
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
