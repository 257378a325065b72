"""The primal-dual scheme the paper starts from."""

from __future__ import annotations

import math
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
    y: NodeTensor
    """Dual variable; sums to zero over the nodes."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


@dataclass(frozen=True, kw_only=True)
class PrimalDual(Algorithm):
    """Section 3.1 of the paper, from y⁰ = 0:

    x⁺ = prox_{(γ/n) r}(x - (γ/n)(∇f(x) + y))     (eq. primal-composite, its implicit g ∈ ∂r(x⁺) written as a prox)
    y⁺ = y + 2γ Σ_j (x_i⁺ - x_j⁺)                 (eq. dual-composite)
    """

    gamma: Step
    """Step size γ; the primal step is γ/n."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "Primal-Dual"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"gamma": StepSize(1 / 64, 64)}
    State = State

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """A primal step γ/n <= 1/2L; and 2γ²/n λ <= 1/4, with λ <= 2 (largest degree) the largest eigenvalue of the Laplacian."""
        n, degree = net.topology.n, max(1, *net.topology.degrees)
        return cls(gamma=min(n / (2 * L), math.sqrt(n / (16 * degree))))

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        return State(x0, x0 * 0, self.exchange.init(x0, net))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        gamma_primal = self.gamma / net.topology.n
        x = problem.prox(state.x - gamma_primal * (problem.grad(state.x) + state.y), gamma_primal)
        dx, link = self.exchange.diff(x, state.link, net)  # [*batch, m, d]
        return State(x, state.y + 2 * self.gamma * net.sum(dx), link)
