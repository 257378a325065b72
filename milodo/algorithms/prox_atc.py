"""Prox-ATC: proximal gradient tracking, adapt-then-combine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from milodo.algorithms.base import Algorithm
from milodo.algorithms.parameters import Space, StepSize
from milodo.errors import InvalidInput
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.types import NodeTensor, Step

SMALLEST = 1 - math.sqrt(2) + 0.01
"""Eigenvalue of W above which Prox-ATC is stable, with a margin."""


class State(NamedTuple):
    x: NodeTensor
    y_mixed: NodeTensor
    """ỹ."""
    z: NodeTensor
    link_z: Any
    """What both ends of every link remember of z̃, where messages are compressed differences."""
    link_y: Any
    """And of y."""


@dataclass(frozen=True, kw_only=True)
class ProxATC(Algorithm):
    """Alghunaim et al. 2020; Appendix E.3 of the paper, Prox-ATC, from x⁰ = ỹ⁰ = z⁰:

        z⁺ = x - γ∇f(x)
        z̃  = ỹ - z⁺ + z
        y  = 2ỹ - z̃ + lap(z̃)
        ỹ⁺ = W y
        x⁺ = prox_{γr}(ỹ⁺)

    With r = 0 this is ATC gradient tracking.
    """

    gamma: Step
    """Step size γ."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "Prox-ATC"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"gamma": StepSize(1 / 64, 4)}
    State = State

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """γ = (1 + λ_min(W))/2L, at most 1/2L (tested on many graphs, proven for none).

        In a coordinate that r holds at a kink z rests and ỹ⁺ = (2W - W²) ỹ: along an eigenvalue of W below 1 - √2 it grows,
        whatever γ is, until it leaves the kink, and so on for ever.
        """
        smallest = 1 - net.mixing.high
        if smallest < SMALLEST:
            raise InvalidInput(
                f"Prox-ATC never comes to rest on {net.topology} with these weights, whatever its step size, because W has an "
                f"eigenvalue {smallest:.2g} below 1 - √2. Use weights = 'lazy', or Prox-ED."
            )
        return cls(gamma=min(1.0, 1 + smallest) / (2 * L))

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        return State(x0, x0, x0, self.exchange.init(x0, net), self.exchange.init(x0, net))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        z = state.x - self.gamma * problem.grad(state.x)
        z_tilde = state.y_mixed - z + state.z
        lap, link_z = self.exchange.lap(z_tilde, state.link_z, net)
        y = 2 * state.y_mixed - z_tilde + lap
        y_mixed, link_y = self.exchange.mix(y, state.link_y, net)
        return State(problem.prox(y_mixed, self.gamma), y_mixed, z, link_z, link_y)

    def sends(self, d: int) -> tuple[tuple[int, int], ...]:
        return ((d, 0), (d, 0))
