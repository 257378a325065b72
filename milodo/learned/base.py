"""What a learned optimizer is beside an Algorithm: networks with weights, and the settings to build them again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from milodo.algorithms import Algorithm
from milodo.algorithms.parameters import Space
from milodo.errors import InvalidInput, quoted
from milodo.network import Network
from milodo.problems import Problem
from milodo.topology import Topology

WIDEST = 4096
"""Numbers that a network sees or remembers at once; a card that asks for more is refused."""
Width = Annotated[int, Field(ge=1, le=WIDEST)]
Seed = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseModel):
    """The numbers that fix an architecture, validated: they may come from anybody's file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    @classmethod
    def given(cls, **values: Any) -> Self:
        """Of what a program says."""
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise InvalidInput(f"{name} is {quoted(first['input'])}, but it must be otherwise: {first['msg']}.", name) from None


class Recipe(Settings, ABC):
    """[training.optimizer] of an experiment: which kind to make, and with which first weights. Every kind brings its own."""

    kind: str

    @property
    def from_scratch(self) -> bool:
        """Whether its first weights are random: then it need not converge before it has learnt to."""
        return False

    @property
    def longest(self) -> int | None:
        """Iterations it can do; None for any number."""
        return None

    @abstractmethod
    def make(self, net: Network, d: int, seed: int) -> Learned:
        """The optimizer with its first weights, for problems with d unknowns on this network."""


class Learned(nn.Module, Algorithm):
    """An Algorithm whose numbers are trained. What it remembers while it runs lives in its State, never in the module."""

    kind: ClassVar[str]
    """Its name in LEARNED, in experiments and on cards."""
    space: ClassVar[Space] = {}
    topology: Topology
    """The graph it was made for."""

    Settings: ClassVar[type[Settings]]
    """What its card says of its architecture."""
    Recipe: ClassVar[type[Recipe]]
    """What an experiment says of how to make it."""

    @abstractmethod
    def settings(self) -> Settings:
        """What `build` needs beside the topology."""

    @classmethod
    @abstractmethod
    def build(cls, graph: Topology, settings: Any) -> Self:
        """An optimizer with these settings, its weights still to be loaded."""

    def fits(self, graph: Topology) -> str | None:
        """Why it cannot run on a graph; None if it can."""
        return None

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights, and of the networks' arithmetic."""
        return next(self.parameters()).dtype

    def check(self, problem: Problem, net: Network) -> None:
        """Refuses what it was not made for, before the first step."""
        self.check_network(net)

    def check_network(self, net: Network) -> None:
        if (why := self.fits(net.topology)) is not None:
            raise InvalidInput(why)
