"""ODAPG: optimal decentralised accelerated proximal gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from milodo.algorithms.dapg import LEFT
from milodo.algorithms.over import OverAverage
from milodo.algorithms.parameters import Choice, Fraction, Space, StepSize
from milodo.network import Network
from milodo.network.averaging import enough
from milodo.problems import Problem
from milodo.types import NodeTensor, Step


class State(NamedTuple):
    x: NodeTensor
    y: NodeTensor
    z: NodeTensor
    s: NodeTensor
    """Tracks the average gradient."""
    g: NodeTensor
    """G(X), kept to save a gradient."""


@dataclass(frozen=True, kw_only=True)
class ODAPG(OverAverage):
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
    over: str = "fastmix"
    """Which A (milodo/network/averaging.py)."""

    label: ClassVar[str] = "ODAPG"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"eta": StepSize(1, 256), "tau": Fraction(0.002, 0.5), "K": Choice((1, 2, 3))}
    averages: ClassVar[int] = 3
    State = State

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """τ = 0.1, η = 1/2τL, and as many rounds as FastMix needs to leave less than a third of disagreement."""
        return cls(eta=5 / L, tau=0.1, K=enough("fastmix", net, LEFT).rounds)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        g = problem.grad(x0)
        return State(x0, x0, x0, g, g)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        A = self.A(net)
        x = self.tau * state.z + (1 - self.tau) * state.y
        g = problem.grad(x)
        s = A(state.s + g - state.g, net)
        z = A(problem.prox(state.z - self.eta * s, self.eta), net)
        y = A(self.tau * z + (1 - self.tau) * state.y, net)
        return State(x, y, z, s, g)
