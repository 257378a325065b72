"""Accelerated proximal gradient on exact sums: what a good engineer does where links hold."""

from __future__ import annotations

from abc import abstractmethod
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
CLEAR = 1000.0
"""Roundings of f_i by which a difference of its values must exceed zero to say anything about curvature."""
APART = 10
"""Iterations between two restarts, at least."""


class State(NamedTuple):
    x: NodeTensor
    """x⁺, on trial: the next sum says whether the step was short enough."""
    last: NodeTensor
    """The iterate before."""
    seen: Tensor
    """What f_i saw of it (`Problem.look`)."""
    e: NodeTensor
    """Where the gradient was taken."""
    g: NodeTensor
    """ḡ there."""
    own: NodeTensor
    """∇f_i there."""
    f: Tensor
    """f_i there [*batch, n, 1], like all that follow."""
    t: Tensor
    gamma: Tensor
    """0 before the first step."""
    L: Tensor
    """L̄, from the first step on."""
    calm: Tensor
    """Iterations since the last restart."""


class SumsAPG(Algorithm):
    """FISTA (Beck and Teboulle 2009) with restarts (O'Donoghue and Candès 2015), as if the data were pooled, from e = x⁰, t = 1:

    e  = x + (t - 1)/t⁺ (x - x₋),   t⁺ = (1 + √(1 + 4t²))/2;   t = 1 where ⟨e₋ - x, x - x₋⟩ > 0
    D_i = f_i(x) - f_i(e₋) - ⟨∇f_i(e₋), x - e₋⟩                           how much f_i curves on the way
    ḡ, D̄ = (1/n) Σ_j ∇f_j(e), D_j                                         one sum over all nodes, the same at each
    x⁺ = prox_{γr}(e - γḡ), γ a tenth longer                              where D̄ <= ‖x - e₋‖²/2γ
    x⁺ = prox_{γr}(e₋ - γḡ₋), γ halved                                    where not: the step to x is taken back

    γ begins at n/L̄, the longest that a mean of n convex functions can allow everywhere, and never falls below 1/L̄, which all
    allow; L̄, the mean of the L_i, travels in the place of D̄ in the first sum, when there is no D̄ yet. Every node holds the same
    x: there is no consensus error, no dual and nothing to tune. It needs links that hold. The test does not ask for ḡ, so it
    stands where messages round it.
    """

    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {}
    rounds: ClassVar[int | None] = None
    State = State

    @abstractmethod
    def total(self, net: Network, x: NodeTensor, exact: int) -> NodeTensor:
        """Σ_j x_j, the very same numbers at every node."""

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """It finds its step by itself."""
        return cls()

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        zero, nothing = torch.zeros_like(x0[..., :1]), torch.zeros_like(x0)
        return State(x0, x0, problem.look(x0), x0, nothing, nothing, zero, zero + 1, zero, zero, zero + APART)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        x, last, first = state.x, state.last, state.gamma == 0
        uphill = (dot(state.e - x, x - last) > 0) & (state.calm >= APART)
        t = torch.where(uphill, 1.0, state.t)
        t_next = (1 + (1 + 4 * t * t).sqrt()) / 2
        beta, seen = (t - 1) / t_next, problem.look(x)
        e = x + beta * (x - last)
        f, own = problem.value_and_grad_from(seen + beta * (seen - state.seen))  # of e: one look serves both
        f, moved = f.unsqueeze(-1), x - state.e
        bent = curved(problem.value_from(seen).unsqueeze(-1), state.f, dot(state.own, moved))
        L_own = problem.lipschitz().unsqueeze(-1).expand_as(f)
        mean = self.total(net, torch.cat((own, torch.where(first, L_own, bent)), dim=-1), exact=1) / net.topology.n
        g, number = mean.split((x.shape[-1], 1), dim=-1)
        L, D = torch.where(first, number, state.L), torch.where(first, 0.0, number)
        gamma = torch.where(first, net.topology.n / L, state.gamma)
        fine = first | (gamma * L <= 1) | (dot(moved, moved) / (2 * gamma) >= D)
        gamma = torch.where(fine, torch.where(D > 0, GROW * gamma, gamma), torch.maximum(SHRINK * gamma, 1 / L))
        e, g = torch.where(fine, e, state.e), torch.where(fine, g, state.g)
        return State(
            x=problem.prox(e - gamma * g, gamma),
            last=torch.where(fine, x, last),
            seen=torch.where(fine, seen, state.seen),
            e=e,
            g=g,
            own=torch.where(fine, own, state.own),
            f=torch.where(fine, f, state.f),
            t=torch.where(fine, t_next, state.t),
            gamma=gamma,
            L=L,
            calm=torch.where(fine & uphill, 0.0, state.calm + 1),
        )


@dataclass(frozen=True, kw_only=True)
class TreeAPG(SumsAPG):
    """With sums over a spanning tree (Network.total): the fewest messages there can be, in 2 · height rounds."""

    label: ClassVar[str] = "Tree-APG"
    needs: ClassVar[str] = "links that hold (a lost message breaks a sum) and a spanning tree; its rounds grow with the diameter"

    def total(self, net: Network, x: NodeTensor, exact: int) -> NodeTensor:
        return net.total(x, exact)

    def rounds_on(self, net: Network) -> int:
        return 2 * net.topology.tree.height

    def floats_on(self, net: Network, d: int) -> int:
        return 2 * (net.topology.n - 1) * (d + 1)


@dataclass(frozen=True, kw_only=True)
class FloodAPG(SumsAPG):
    """With sums of what everybody tells everybody (Network.total_by_all): the fewest rounds there can be, n(n - 1) messages."""

    label: ClassVar[str] = "Flood-APG"
    needs: ClassVar[str] = "links that hold (a lost message breaks a sum); its rounds are the diameter, its messages grow like n²"

    def total(self, net: Network, x: NodeTensor, exact: int) -> NodeTensor:
        return net.total_by_all(x, exact)

    def rounds_on(self, net: Network) -> int:
        return len(net.topology.flood.rounds)

    def floats_on(self, net: Network, d: int) -> int:
        return net.topology.flood.messages * (d + 1)


def curved(f_x: Tensor, f_e: Tensor, slope: Tensor) -> Tensor:
    """f(x) - f(e) - ⟨∇f(e), x - e⟩; 0 where that is rounding."""
    bent = f_x - f_e - slope
    rounding = torch.finfo(f_x.dtype).eps * torch.maximum(f_x.abs(), f_e.abs())
    return torch.where(bent.abs() > CLEAR * rounding, bent, 0.0)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a_i, b_i⟩ [*batch, n, 1]."""
    return (a * b).sum(-1, keepdim=True)
