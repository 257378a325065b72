"""DecentLaM: momentum that does not add to the disagreement of unlike data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from milodo.algorithms.base import Algorithm
from milodo.algorithms.dsgdm import State
from milodo.algorithms.parameters import Fraction, Space, StepSize
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.types import NodeTensor, Step


@dataclass(frozen=True, kw_only=True)
class DecentLaM(Algorithm):
    """Yuan et al. 2021 (arXiv 2104.11981), from m⁰ = 0, with β = 1 - α:

        g̃  = (x - W(x - γ∇f(x)))/γ
        m⁺ = βm + g̃
        x⁺ = prox_{γr/α}(x - γm⁺)

    Momentum of a whole step of Prox-DGD, mixing included: at rest g̃ = 0 where r = 0, so it stops where Prox-DGD with step γ does
    and not, as DSGDm, where it does with γ/α. The published method has r = 0; prox has the step that momentum amounts to.
    """

    gamma: Step
    """Step size γ."""
    alpha: Step
    """1 - β: the smaller, the more momentum."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "DecentLaM"
    exact: ClassVar[bool] = False
    space: ClassVar[Space] = {"gamma": StepSize(1 / 256, 4), "alpha": Fraction(0.05, 1)}
    State = State

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """β = 0.9 and γ = 0.1/L (tested on many graphs, proven for none). (Where it ends is not the optimum.)"""
        return cls(gamma=0.1 / L, alpha=0.1)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        return State(x0, torch.zeros_like(x0), self.exchange.init(x0, net))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        mixed, link = self.exchange.mix(state.x - self.gamma * problem.grad(state.x), state.link, net)
        g = (state.x - mixed) / self.gamma
        m = (1 - self.alpha) * state.m + g
        return State(problem.prox(state.x - self.gamma * m, self.gamma / self.alpha), m, link)
