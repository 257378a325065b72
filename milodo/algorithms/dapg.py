"""DAPG: decentralised accelerated proximal gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from milodo.algorithms.base import Algorithm
from milodo.algorithms.fastmix import enough_rounds, fastmix
from milodo.algorithms.parameters import Choice, Fraction, Space, StepSize
from milodo.network import Network
from milodo.problems import Problem
from milodo.types import NodeTensor, Step


class State(NamedTuple):
    x: NodeTensor
    y: NodeTensor
    s: NodeTensor
    """Tracks the average gradient."""
    g: NodeTensor
    """G(Y), kept to save a gradient."""


@dataclass(frozen=True, kw_only=True)
class DAPG(Algorithm):
    """Ye et al. 2020, with S⁰ = G(Y⁰):

        X⁺ = FastMix(prox_{ηr}(Y - ηS))
        Y⁺ = FastMix(X⁺ + (1 - α)/(1 + α) (X⁺ - X))
        S⁺ = FastMix(S + G(Y⁺) - G(Y))

    In theory η = 1/L and α = √(μ/L); where μ = 0, α is a knob.
    """

    eta: Step
    """Step size η."""
    alpha: Step
    """Momentum is (1 - α)/(1 + α): the smaller, the more."""
    K: int = 1
    """Rounds of each of the three FastMix."""

    label: ClassVar[str] = "DAPG"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"eta": StepSize(1 / 8, 8), "alpha": Fraction(0.002, 0.5), "K": Choice((1, 2, 3))}
    State = State

    @property
    def rounds(self) -> int:
        return 3 * self.K

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """η = 1/2L, α = 0.1, and as many rounds as FastMix needs to leave less than a third of disagreement."""
        return cls(eta=0.5 / L, alpha=0.1, K=enough_rounds(net))

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        g = problem.grad(x0)
        return State(x0, x0, g, g)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        momentum = (1 - self.alpha) / (1 + self.alpha)
        x = fastmix(problem.prox(state.y - self.eta * state.s, self.eta), net, self.K)
        y = fastmix(x + momentum * (x - state.x), net, self.K)
        g = problem.grad(y)
        s = fastmix(state.s + g - state.g, net, self.K)
        return State(x, y, s, g)
