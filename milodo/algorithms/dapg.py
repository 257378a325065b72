"""DAPG: decentralised accelerated proximal gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from milodo.algorithms.averages import Averages
from milodo.algorithms.parameters import Choice, Fraction, Space, StepSize
from milodo.network import Network
from milodo.network.exchange import Exchange, Polynomial
from milodo.problems import Problem
from milodo.topology.filters import enough
from milodo.types import NodeTensor, Step

LEFT = 0.3
"""What safe rounds leave of disagreement, at most."""


class Links(NamedTuple):
    """What both ends remember of each of three exchanges."""

    x: Any
    y: Any
    s: Any


class State(NamedTuple):
    x: NodeTensor
    y: NodeTensor
    s: NodeTensor
    """Tracks the average gradient."""
    g: NodeTensor
    """G(Y), kept to save a gradient."""
    links: Links
    """What both ends remember of each of the three, where messages are compressed differences."""


@dataclass(frozen=True, kw_only=True)
class DAPG(Averages):
    """Ye et al. 2020, with S⁰ = G(Y⁰), and A their FastMix or another way to average:

        X⁺ = A prox_{ηr}(Y - ηS)
        Y⁺ = A (X⁺ + (1 - α)/(1 + α) (X⁺ - X))
        S⁺ = A (S + G(Y⁺) - G(Y))

    In theory η = 1/L and α = √(μ/L); where μ = 0, α is a knob.
    """

    eta: Step
    """Step size η."""
    alpha: Step
    """Momentum is (1 - α)/(1 + α): the smaller, the more."""
    K: int = 1
    """Rounds of each of the three A."""
    exchange: Exchange = Polynomial("fastmix")
    """Which A."""

    label: ClassVar[str] = "DAPG"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"eta": StepSize(1 / 8, 8), "alpha": Fraction(0.002, 0.5), "K": Choice((1, 2, 3))}
    State = State

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """η = 1/2L, α = 0.1, and as many rounds as FastMix needs to leave less than a third of disagreement."""
        return cls(eta=0.5 / L, alpha=0.1, K=enough("fastmix", net.mixing, LEFT))

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        g = problem.grad(x0)
        return State(x0, x0, g, g, Links(*(self.exchange.init(x0, net) for _ in range(3))))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        A = self.exchange.average
        momentum = (1 - self.alpha) / (1 + self.alpha)
        x, link_x = A(problem.prox(state.y - self.eta * state.s, self.eta), state.links.x, net)
        y, link_y = A(x + momentum * (x - state.x), state.links.y, net)
        g = problem.grad(y)
        s, link_s = A(state.s + g - state.g, state.links.s, net)
        return State(x, y, s, g, Links(link_x, link_y, link_s))

    def sends(self, d: int) -> tuple[tuple[int, int], ...]:
        return ((d, 0),) * 3
