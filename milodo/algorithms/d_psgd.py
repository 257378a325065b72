"""D-PSGD: neighbours' models are averaged while the gradient is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from milodo.algorithms.ahead import Ahead
from milodo.algorithms.base import XState
from milodo.algorithms.parameters import Space, StepSize
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.types import NodeTensor, Step


@dataclass(frozen=True, kw_only=True)
class DPSGD(Ahead):
    """Lian et al. 2017 (arXiv 1705.09056), with a prox that is ours:

        x⁺ = prox_{γr}(W x - γ∇f(x))

    Prox-DGD with the gradient taken before mixing, so that both can be done at once. Not exact, like it.
    """

    gamma: Step
    """Step size γ."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "D-PSGD"
    exact: ClassVar[bool] = False
    space: ClassVar[Space] = {"gamma": StepSize(1 / 64, 4)}
    State = XState

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """γ = (1 + λ_min(W))/2L: below (1 + λ_min)/L it descends on Σ f_i + ‖x‖²_{I-W}/2γ. (Where it ends is not the optimum.)"""
        return cls(gamma=(2 - net.mixing.high) / (2 * L))

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> XState:
        return XState(x0, self.exchange.init(x0, net))

    def hear(self, state: XState, net: Network) -> tuple[NodeTensor, Any]:
        """x - W x, and the link after it."""
        return self.exchange.lap(state.x, state.link, net)

    def move(self, state: XState, heard: tuple[NodeTensor, Any], problem: Problem) -> XState:
        lap, link = heard
        return XState(problem.prox(state.x - lap - self.gamma * problem.grad(state.x), self.gamma), link)
