"""Prox-DGD: decentralised proximal gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from milodo.algorithms.base import Algorithm, XState
from milodo.algorithms.parameters import Space, StepSize
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.types import NodeTensor, Step


@dataclass(frozen=True, kw_only=True)
class ProxDGD(Algorithm):
    """Nedić and Ozdaglar 2009; Appendix E.3 of the paper, Prox-DGD:

        z⁺ = x - γ∇f(x)
        x⁺ = prox_{γr}(W z⁺)

    Not exact: with a constant γ the nodes stop at a distance of order γ from the optimum and from each other.
    """

    gamma: Step
    """Step size γ."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "Prox-DGD"
    exact: ClassVar[bool] = False
    space: ClassVar[Space] = {"gamma": StepSize(1 / 64, 4)}
    State = XState

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """γ = 1/L: a gradient step, W and prox bring no two points further apart. (Where it ends is not the optimum.)"""
        return cls(gamma=1 / L)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> XState:
        return XState(x0, self.exchange.init(x0, net))

    def step(self, state: XState, problem: Problem, net: Network) -> XState:
        z = state.x - self.gamma * problem.grad(state.x)
        mixed, link = self.exchange.mix(z, state.link, net)
        return XState(problem.prox(mixed, self.gamma), link)
