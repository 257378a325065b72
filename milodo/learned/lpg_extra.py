"""LPG-EXTRA: PG-EXTRA unrolled, its step sizes and thresholds learned layer by layer."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field
from torch import nn

from milodo.errors import InvalidInput, as_float, whole
from milodo.learned.base import Learned, Positive, Recipe, Settings
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.topology import Topology, topology
from milodo.types import NodeTensor

LAYERS = 100
"""More do not fit the memory of training, says the paper (Section 5)."""


class State(NamedTuple):
    x: NodeTensor
    c: NodeTensor
    """As in PG-EXTRA."""
    k: int
    """The layer that comes next."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


Layers = Annotated[int, Field(ge=1, le=LAYERS)]


class LPGExtraSettings(Settings):
    layers: Layers


class LPGExtraRecipe(Recipe):
    kind: Literal["lpg-extra"] = "lpg-extra"
    layers: Layers = LAYERS
    gamma: Positive = 0.02
    """Step size of every layer at the start."""

    @property
    def longest(self) -> int:
        return self.layers

    def make(self, net: Network, d: int, seed: int) -> LPGExtra:
        return LPGExtra(net.topology, layers=self.layers, gamma=self.gamma)


class LPGExtra(Learned):
    """Wang et al. 2021, from c⁰ = 0, with a layer for every iteration; layer k has two scalars that all nodes share:

        z̃⁺ = W x - α_k ∇f(x) + c
        c⁺ = c - ½ lap(x)
        x⁺ = prox_{s_k r}(z̃⁺)

    For r = λ‖·‖₁ the last line is a soft threshold at θ_k = s_k λ, free of α_k. That freedom costs exactness: the fixed point is
    the optimum only where s_k = α_k. PG-EXTRA's c does not depend on the step size, hence needs no change here. Nothing in it
    belongs to a node or an edge: it runs on any graph, whichever it was trained on.
    """

    kind: ClassVar[str] = "lpg-extra"
    Settings: ClassVar = LPGExtraSettings
    Recipe: ClassVar = LPGExtraRecipe
    label: ClassVar[str] = "LPG-EXTRA"
    exact: ClassVar[bool] = False
    exchange: Gossip = Gossip()
    State = State

    def __init__(self, graph: str | Topology, *, layers: int = LAYERS, gamma: float = 0.02) -> None:
        super().__init__()
        if not whole("layers", layers, 1) <= LAYERS or not 0 < (as_float(gamma) or 0) < math.inf:
            raise InvalidInput(f"LPG-EXTRA with {layers} layers, gamma = {gamma!r}: it has 1 to {LAYERS}, and gamma must be > 0.")
        self.topology = topology(graph)
        start = torch.full((layers,), math.log(gamma))
        self.log_alpha, self.log_s = nn.Parameter(start.clone()), nn.Parameter(start.clone())

    @property
    def longest(self) -> int:
        return len(self.log_alpha)

    def settings(self) -> LPGExtraSettings:
        return LPGExtraSettings(layers=self.longest)

    @classmethod
    def build(cls, graph: Topology, settings: LPGExtraSettings) -> Self:
        return cls(graph, layers=settings.layers)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        self.check(problem, net)
        return State(x0, torch.zeros_like(x0), 0, self.exchange.init(x0, net))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        alpha, s = self.log_alpha[state.k].exp().to(state.x.dtype), self.log_s[state.k].exp().to(state.x.dtype)
        lap, link = self.exchange.lap(state.x, state.link, net)
        z_tilde = state.x - lap - alpha * problem.grad(state.x) + state.c
        return State(problem.prox(z_tilde, s), state.c - lap / 2, state.k + 1, link)
