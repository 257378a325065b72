"""Prox-ED: proximal Exact Diffusion (also known as NIDS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from milodo.algorithms.base import Algorithm
from milodo.algorithms.parameters import Space, StepSize
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.types import NodeTensor, Step


class State(NamedTuple):
    x: NodeTensor
    y_mixed: NodeTensor
    """ỹ."""
    z: NodeTensor
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


@dataclass(frozen=True, kw_only=True)
class ProxED(Algorithm):
    """Yuan et al. 2018, Li et al. 2019; Appendix E.3 of the paper, Prox-ED, from x⁰ = ỹ⁰ = z⁰:

    z⁺ = x - γ∇f(x)
    y  = ỹ + z⁺ - z
    ỹ⁺ = y - ½ lap(y)
    x⁺ = prox_{γr}(ỹ⁺)
    """

    gamma: Step
    """Step size γ."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "Prox-ED"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"gamma": StepSize(1 / 64, 4)}
    State = State

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """γ = 1/L; it converges for γ < 2/L on every graph (Li et al. 2019)."""
        return cls(gamma=1 / L)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        return State(x0, x0, x0, self.exchange.init(x0, net))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        z = state.x - self.gamma * problem.grad(state.x)
        y = state.y_mixed + z - state.z
        lap, link = self.exchange.lap(y, state.link, net)
        y_mixed = y - lap / 2
        return State(problem.prox(y_mixed, self.gamma), y_mixed, z, link)
