"""DSGDm: a local step with momentum, then mixing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch

from milodo.algorithms.base import Algorithm
from milodo.algorithms.parameters import Fraction, Space, StepSize
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.types import NodeTensor, Step


class State(NamedTuple):
    x: NodeTensor
    m: NodeTensor
    """Momentum, each node's own."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


@dataclass(frozen=True, kw_only=True)
class DSGDm(Algorithm):
    """Assran et al. 2019, Lin et al. 2021 (arXiv 2102.04761), from m⁰ = 0, with β = 1 - α:

        m⁺ = βm + ∇f(x)
        x⁺ = prox_{γr/α}(W(x - γm⁺))

    The published method has r = 0; prox has the step that momentum amounts to, γ/α, so that a node alone stops at its optimum.
    With α = 1 this is Prox-DGD. Not exact: it stops where Prox-DGD with step γ/α does.
    """

    gamma: Step
    """Step size γ."""
    alpha: Step
    """1 - β: the smaller, the more momentum."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "DSGDm"
    exact: ClassVar[bool] = False
    space: ClassVar[Space] = {"gamma": StepSize(1 / 256, 4), "alpha": Fraction(0.05, 1)}
    State = State

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """β = 0.9 and γ = 0.1/L, so that γ/α = 1/L. (Where it ends is not the optimum.)"""
        return cls(gamma=0.1 / L, alpha=0.1)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        return State(x0, torch.zeros_like(x0), self.exchange.init(x0, net))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        m = (1 - self.alpha) * state.m + problem.grad(state.x)
        mixed, link = self.exchange.mix(state.x - self.gamma * m, state.link, net)
        return State(problem.prox(mixed, self.gamma / self.alpha), m, link)
