"""Accelerated proximal gradient on sums over a spanning tree: what a good engineer does where links hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from milodo.algorithms.base import Algorithm
from milodo.algorithms.parameters import Space
from milodo.network import Network
from milodo.problems import Problem
from milodo.types import NodeTensor

SHRINK, GROW = 0.5, 1.1
"""By how much a step that went too far is shortened, and the one after a good step lengthened: curvature differs from place to
place, and that of logistic regression falls by orders of magnitude on the way."""
SLACK = 10.0
"""Roundings by which two sides of the test may differ."""
CLEAR = 100.0
"""By how much the test must be clear of rounding for a step to be lengthened."""
APART = 10
"""Iterations between two restarts, at least."""


class State(NamedTuple):
    x: NodeTensor
    """x⁺, on trial: the next sum says whether the step was short enough."""
    last: NodeTensor
    """The iterate before."""
    e: NodeTensor
    """Where the gradient was taken."""
    g: NodeTensor
    """ḡ there."""
    f: Tensor
    """f̄ there [*batch, n, 1], like all that follow."""
    t: Tensor
    gamma: Tensor
    """0 before the first step."""
    calm: Tensor
    """Iterations since the last restart."""


@dataclass(frozen=True, kw_only=True)
class TreeAPG(Algorithm):
    """FISTA (Beck and Teboulle 2009) with restarts (O'Donoghue and Candès 2015), as if the data were pooled, from e = x⁰, t = 1:

    e  = x + (t - 1)/t⁺ (x - x₋),   t⁺ = (1 + √(1 + 4t²))/2;   t = 1 where ⟨e₋ - x, x - x₋⟩ > 0
    ḡ, f̄(e), f̄(x), L̄ = (1/n) Σ_j ∇f_j(e), f_j(e), f_j(x), L_j          one sum over the tree (Network.total)
    x⁺ = prox_{γr}(e - γḡ), γ a tenth longer                              where f̄(x) <= f̄(e₋) + ⟨ḡ₋, x - e₋⟩ + ‖x - e₋‖²/2γ
    x⁺ = prox_{γr}(e₋ - γḡ₋), γ halved                                    where not: the step to x is taken back

    γ begins at n/L̄, the longest that a mean of n convex functions can allow everywhere, and never falls below 1/L̄, which all
    allow. Every node holds the same x: there is no consensus error, no dual and nothing to tune. It needs links that hold, and
    2 · height rounds.
    """

    label: ClassVar[str] = "Tree-APG"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {}
    needs: ClassVar[str] = "links that hold (a lost message breaks a sum) and a spanning tree; its rounds grow with the diameter"
    rounds: ClassVar[int | None] = None
    State = State

    def rounds_on(self, net: Network) -> int:
        return 2 * net.topology.tree.height

    def floats_on(self, net: Network, d: int) -> int:
        return 2 * (net.topology.n - 1) * (d + 3)

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """It finds its step by itself."""
        return cls()

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        zero = torch.zeros_like(x0[..., :1])
        return State(x0, x0, x0, torch.zeros_like(x0), zero, zero + 1, zero, zero + APART)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        x, last = state.x, state.last
        uphill = (dot(state.e - x, x - last) > 0) & (state.calm >= APART)
        t = torch.where(uphill, 1.0, state.t)
        t_next = (1 + (1 + 4 * t * t).sqrt()) / 2
        e = x + (t - 1) / t_next * (x - last)
        own = (problem.grad(e), problem.value(e).unsqueeze(-1), problem.value(x).unsqueeze(-1))
        L_own = problem.lipschitz().unsqueeze(-1).expand_as(own[1])
        mean = net.total(torch.cat((*own, L_own), dim=-1)) / net.topology.n
        g, f_e, f_x, L = mean.split((x.shape[-1], 1, 1, 1), dim=-1)
        gamma = torch.where(state.gamma == 0, net.topology.n / L, state.gamma)
        moved = x - state.e
        room, rounding = dot(moved, moved) / (2 * gamma), SLACK * torch.finfo(x.dtype).eps * state.f.abs()
        fine = (state.gamma == 0) | (gamma * L <= 1) | (f_x <= state.f + dot(state.g, moved) + room + rounding)
        longer = torch.where((state.gamma > 0) & (room > CLEAR * rounding), GROW * gamma, gamma)
        gamma = torch.where(fine, longer, torch.maximum(SHRINK * gamma, 1 / L))
        e, g = torch.where(fine, e, state.e), torch.where(fine, g, state.g)
        return State(
            x=problem.prox(e - gamma * g, gamma),
            last=torch.where(fine, x, last),
            e=e,
            g=g,
            f=torch.where(fine, f_e, state.f),
            t=torch.where(fine, t_next, state.t),
            gamma=gamma,
            calm=torch.where(fine & uphill, 0.0, state.calm + 1),
        )


def dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a_i, b_i⟩ [*batch, n, 1]."""
    return (a * b).sum(-1, keepdim=True)
