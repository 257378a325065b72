"""PG-EXTRA: the proximal gradient exact first-order algorithm."""

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
    c: NodeTensor
    """What the past still has to say: z̃ - x + ½ lap(x) + γ∇f(x) of the last step."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


@dataclass(frozen=True, kw_only=True)
class PGExtra(Algorithm):
    """Shi et al. 2015b; Appendix E.3 of the paper, PG-EXTRA, from c⁰ = 0:

        z̃⁺ = W x - γ∇f(x) + c
        c⁺ = z̃⁺ - x + ½ lap(x) + γ∇f(x) = c - ½ lap(x)
        x⁺ = prox_{γr}(z̃⁺)

    The paper branches at k = 0 and evaluates the last gradient and the last lap again; carrying c from 0 gives the same
    iterates with one gradient and one round (tests/test_equations.py).
    """

    gamma: Step
    """Step size γ."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "PG-EXTRA"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"gamma": StepSize(1 / 64, 4)}
    State = State

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """γ = 0.9 (1 + λ_min(W))/L, below the (1 + λ_min(W))/L of Shi et al. 2015: W far from I needs smaller steps."""
        return cls(gamma=0.9 * (2 - net.mixing.high) / L)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        return State(x0, x0 * 0, self.exchange.init(x0, net))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        lap, link = self.exchange.lap(state.x, state.link, net)
        z_tilde = state.x - lap - self.gamma * problem.grad(state.x) + state.c
        return State(problem.prox(z_tilde, self.gamma), state.c - lap / 2, link)
