"""Decentralised ADMM: every node solves a problem of its own an iteration, and one vector crosses each edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch

from milodo.algorithms.base import Algorithm
from milodo.algorithms.parameters import Choice, Factor, Space, StepSize
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.solvers.fista import accelerated
from milodo.types import NodeTensor, Step


class State(NamedTuple):
    x: NodeTensor
    a: NodeTensor
    """Dual variable; sums to zero over the nodes."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


@dataclass(frozen=True, kw_only=True)
class ADMM(Algorithm):
    """Shi et al. 2014, with c = 1/γ, d_i the degree of node i, from a = 0 and the same x⁰ at all nodes:

        D  = Σ_j (x_i - x_j)
        a⁺ = a + σcD
        x⁺ = prox_{(f_i + r)/2cd_i}(v),   v = (c Σ_j (x_i + x_j) - a⁺)/2cd_i = x - (D + a⁺/c)/2d_i

    Shi et al. have σ = 1; ADMM also converges with other dual steps, always for σ < (1 + √5)/2 (Glowinski 1984), often up to 2.
    As a sum over neighbours is needed before anything can be computed, a step begins with the round that ended theirs.

    The prox has no formula. It is found by `inner` steps of accelerated proximal gradient from x on f_i + r + cd_i ‖· - v‖²,
    whose strong convexity 2cd_i is known (Nesterov 2004, constant momentum):

        x⁺ = prox_{ρr}(e - ρ(∇f_i(e) + 2cd_i (e - v))),   ρ = 1/(L_i + 2cd_i)
        e⁺ = x⁺ + (√κ - 1)/(√κ + 1) (x⁺ - x),             κ = (L_i + 2cd_i)/2cd_i

    so an iteration costs one vector an edge and `inner` gradients: local work buys rounds. 100 count as exact: on
    LASSO(10,300,10,0.1) 30 need 4 % more iterations, 10 need half as many again. From the minimum these steps do not
    move, however few they are, and from elsewhere they do: at a fixed point x is the minimum. Then D = 0, so all x_i agree,
    v = x - a/2cd_i and 0 ∈ ∇f_i(x) + ∂r(x) + a_i, of which the sum over nodes, Σa = 0, says that x is the optimum.
    """

    sigma: Step
    """Dual step σ, in units of c."""
    gamma: Step
    """γ = 1/c."""
    inner: int
    """Gradients of one iteration: steps towards the local minimum."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "ADMM"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"sigma": Factor(0.5, 1.6), "gamma": StepSize(4, 1024), "inner": Choice((100,))}
    State = State

    @property
    def gradients(self) -> int:
        return self.inner

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """σ = 1, c = L/30, and 20 inner steps; it converges with every c."""
        return cls(sigma=1.0, gamma=30 / L, inner=20)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        return State(x0, torch.zeros_like(x0), self.exchange.init(x0, net))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        # A node alone has no d_i; with 1 in its place it takes steps of the proximal point method.
        degree = net.sum(torch.ones_like(net.w)).clamp(min=1)  # [n, 1]
        mu, L = 2 * degree / self.gamma, problem.lipschitz().unsqueeze(-1)  # 2cd_i, L_i
        dx, link = self.exchange.diff(state.x, state.link, net)  # [*batch, m, d]
        D = net.sum(dx)
        a = state.a + self.sigma / self.gamma * D
        v = state.x - (D / self.gamma + a) / mu

        def gradient(e: NodeTensor) -> NodeTensor:
            return problem.grad(e) + mu * (e - v)

        x = accelerated(state.x, gradient, problem.prox, 1 / (L + mu), 1 + L / mu, self.inner)
        return State(x, a, link)
