"""ODAPG: optimal decentralised accelerated proximal gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from milodo.algorithms.averages import Averages
from milodo.algorithms.dapg import LEFT
from milodo.algorithms.parameters import Choice, Fraction, Space, StepSize
from milodo.network import Network
from milodo.network.exchange import Exchange, Polynomial
from milodo.problems import Problem
from milodo.topology.filters import enough
from milodo.types import NodeTensor, Step


class Links(NamedTuple):
    """What both ends remember of each of three exchanges."""

    s: Any
    z: Any
    y: Any


class State(NamedTuple):
    x: NodeTensor
    y: NodeTensor
    z: NodeTensor
    s: NodeTensor
    """Tracks the average gradient."""
    g: NodeTensor
    """G(X), kept to save a gradient."""
    links: Links
    """What both ends remember of each of the three, where messages are compressed differences."""


@dataclass(frozen=True, kw_only=True)
class ODAPG(Averages):
    """Ye and Chang 2023, with S⁰ = G(X⁰), and A their FastMix or another way to average:

        X⁺ = τZ + (1 - τ)Y
        S⁺ = A (S + G(X⁺) - G(X))
        Z⁺ = A prox_{ηr}(Z - ηS⁺)
        Y⁺ = A (τZ⁺ + (1 - τ)Y)

    In theory τ ~ √(μ/L) and η <= 1/(τL), a large step on Z; where μ = 0, τ is a knob.
    """

    eta: Step
    """Step size η of Z."""
    tau: Step
    """Weight τ of Z."""
    K: int = 1
    """Rounds of each of the three A."""
    exchange: Exchange = Polynomial("fastmix")
    """Which A."""

    label: ClassVar[str] = "ODAPG"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"eta": StepSize(1, 256), "tau": Fraction(0.002, 0.5), "K": Choice((1, 2, 3))}
    State = State

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """τ = 0.1, η = 1/2τL, and as many rounds as FastMix needs to leave less than a third of disagreement."""
        return cls(eta=5 / L, tau=0.1, K=enough("fastmix", net.mixing, LEFT))

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        g = problem.grad(x0)
        return State(x0, x0, x0, g, g, Links(*(self.exchange.init(x0, net) for _ in range(3))))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        A = self.exchange.average
        x = self.tau * state.z + (1 - self.tau) * state.y
        g = problem.grad(x)
        s, link_s = A(state.s + g - state.g, state.links.s, net)
        z, link_z = A(problem.prox(state.z - self.eta * s, self.eta), state.links.z, net)
        y, link_y = A(self.tau * z + (1 - self.tau) * state.y, state.links.y, net)
        return State(x, y, z, s, g, Links(link_s, link_z, link_y))

    def sends(self, d: int) -> tuple[tuple[int, int], ...]:
        return ((d, 0),) * 3
