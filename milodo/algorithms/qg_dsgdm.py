"""QG-DSGDm: momentum from how far the mixed model moved, which unlike data disturb less."""

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

MEMORY = 0.9
"""μ, of the momentum: the share that is kept (Lin et al. 2021)."""


@dataclass(frozen=True, kw_only=True)
class QGDSGDm(Algorithm):
    """Lin, Karimireddy, Stich and Jaggi 2021 (arXiv 2102.04761), quasi-global momentum in Nesterov's form, from m⁰ = 0, with
    β = 1 - α and g = ∇f(x):

        u  = g + β(βm + g)
        x⁺ = prox_{γ(1+β)r}(W(x - γu))
        m⁺ = μm + (1 - μ)(x - x⁺)/γ,   μ = 0.9

    m follows x, which is mixed, and so what all nodes do, where DSGDm's follows each node's own gradients. The published method
    has r = 0; at rest m = 0 and u = (1 + β)g, hence the step of prox. Not exact: it stops where Prox-DGD with step γ(1 + β) does.
    """

    gamma: Step
    """Step size γ."""
    alpha: Step
    """1 - β: the smaller, the more momentum."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "QG-DSGDm"
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
        g, beta = problem.grad(state.x), 1 - self.alpha
        u = g + beta * (beta * state.m + g)
        mixed, link = self.exchange.mix(state.x - self.gamma * u, state.link, net)
        x = problem.prox(mixed, self.gamma * (1 + beta))
        return State(x, MEMORY * state.m + (1 - MEMORY) * (state.x - x) / self.gamma, link)
