"""APAPC: accelerated proximal alternating predictor-corrector, one round and one gradient an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch

from milodo.algorithms.base import Algorithm
from milodo.algorithms.parameters import Factor, Fraction, Space, StepSize
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.types import NodeTensor, Step


class State(NamedTuple):
    x: NodeTensor
    """x_f of the paper, an average of what u has been: here F is judged."""
    u: NodeTensor
    """x of the paper, which takes the large steps."""
    z: NodeTensor
    """Dual variable; sums to zero over the nodes."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


@dataclass(frozen=True, kw_only=True)
class APAPC(Algorithm):
    """Kovalev, Salim and Richtárik 2020 (arXiv 2006.11773), their x being u and their x_f being x, from u⁰ = x⁰, z⁰ = 0:

        x_g = τu + (1 - τ)x
        û   = prox_{ηr}(u - η(∇f(x_g) + z))
        z⁺  = z + θ/(ηλ_max) lap(û)                                         λ_max the largest eigenvalue of I - W
        u⁺  = prox_{ηr}(u - η(∇f(x_g) + z⁺))
        x⁺  = x_g + 2τ/(2 - τ) (u⁺ - u)

    The paper has r = 0; both prox are ours. (With r = 0 and μ > 0 its u⁺ also has a term in ημ, which is left out: μ is unknown
    and mostly 0 here.) Σz = 0, as lap sums to zero. At a fixed point lap(û) = 0, so û = u⁺ = u is the same at all nodes; then
    x = x_g = τu + (1 - τ)x, so x = u; and u = prox_{ηr}(u - η(∇f_i(u) + z_i)), or 0 ∈ ∇f_i(u) + z_i + ∂r(u), at every node,
    of which the sum says that u is the optimum.

    In theory η = 1/4τL and θ = 1. For τ <= 2/3 every x is an average of all u so far, with weights >= 0, and so stays within
    the walls of r.
    """

    eta: Step
    """Step size η of u; of the order of 1/τL."""
    tau: Step
    """Weight τ of u."""
    theta: Step
    """Dual step, in units of 1/(ηλ_max)."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "APAPC"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"eta": StepSize(4, 256), "tau": Fraction(0.01, 0.3), "theta": Factor(0.5, 2)}
    State = State

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """τ = 0.05, η = 1/4τL as in theory, θ = 1."""
        return cls(eta=5 / L, tau=0.05, theta=1.0)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        return State(x0, x0, torch.zeros_like(x0), self.exchange.init(x0, net))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        x_g = self.tau * state.u + (1 - self.tau) * state.x
        v = state.u - self.eta * (problem.grad(x_g) + state.z)
        u_hat = problem.prox(v, self.eta)
        lap, link = self.exchange.lap(u_hat, state.link, net)
        rise = self.theta / (self.eta * (net.mixing.high or 1.0)) * lap  # a single node has no λ_max
        u = problem.prox(v - self.eta * rise, self.eta)
        return State(x_g + 2 * self.tau / (2 - self.tau) * (u - state.u), u, state.z + rise, link)
