"""Proximal Newton on sums over a spanning tree: where unknowns are few, curvature that is told once saves hundreds of rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from milodo.algorithms.base import Algorithm
from milodo.algorithms.parameters import Space
from milodo.algorithms.tree_apg import curved, dot
from milodo.network import Network
from milodo.network.exchange import AllGather, TreeAllReduce
from milodo.network.requirement import Requirement
from milodo.problems import Problem
from milodo.solvers.prox_newton import damped_model_minimum
from milodo.solvers.triangles import packed_size, unpack
from milodo.types import NodeTensor


class State(NamedTuple):
    x: NodeTensor
    """x⁺, on trial: the next sum says whether the model was right about it."""
    at: NodeTensor
    """Where the model is made."""
    g: NodeTensor
    """ḡ there."""
    own: NodeTensor
    """∇f_i there."""
    f: Tensor
    """f_i there [*batch, n, 1]."""
    H: Tensor
    """H̄, its upper half row by row [*batch, n, d (d + 1) / 2]."""
    delta: Tensor
    """δ [*batch, n, 1]."""
    L: Tensor
    """L̄ [*batch, n, 1], from the first step on."""
    k: int
    """Iterations so far."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


@dataclass(frozen=True, kw_only=True)
class TreeNewton(Algorithm):
    """Every node makes the same model of f = (1/n) Σ f_i around a point a and goes to its minimum, from a = x⁰ and δ = 0:

    D_i = f_i(x) - f_i(a) - ⟨∇f_i(a), x - a⟩                              how much f_i curves on the way from a to x
    H̄, ḡ, D̄ = (1/n) Σ_j ∇²f_j(x), ∇f_j(x), D_j                            one sum over the tree; only H̄ is ever shortened
    a⁺ = x, δ⁺ = δ/4                                                      where D̄ <= ½ (x - a)ᵀ(H̄ + δI)(x - a)
    a⁺ = a, δ⁺ = min(L̄, 4 max(δ, (D̄ - ½ (x - a)ᵀH̄(x - a)) / ‖x - a‖²))   where not: the step to x is taken back
    x⁺ = argmin_z ⟨ḡ, z - a⁺⟩ + ½ (z - a⁺)ᵀ(H̄ + δ⁺I)(z - a⁺) + r(z)       by 500 accelerated proximal gradients from a⁺

    Where f is quadratic H̄ is told in the first iteration only. What is left of rounding, like curvature that changes, is what δ
    is for: where the model promised too much the step is taken back, so D̄ lies below the model in every step that is kept, and F
    falls. With δ = L̄, the mean of the L_i, it always does; L̄ travels in the place of D̄ in the first sum, when there is no D̄ yet.
    From the minimum the inner steps do not move, and from elsewhere they do: a fixed point is the optimum. All nodes begin at the
    same x⁰ and hold the same all the time, so a process that holds several solves the model once.

    A message of d (d + 1) / 2 numbers is worth it where d is some hundreds and rounds or latency are what is paid for.
    """

    exchange: TreeAllReduce | AllGather = TreeAllReduce()

    label: ClassVar[str] = "Tree-Newton"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {}
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.HESSIAN})
    alike: ClassVar[tuple[str, ...]] = ("x", "at", "g", "H", "delta", "L")
    steady: ClassVar[bool] = False
    State = State

    def sends(self, d: int) -> tuple[tuple[int, int], ...]:
        return ((packed_size(d) + d + 1, d + 1),)

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """It has no step to choose."""
        return cls()

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        nothing, zero = torch.zeros_like(x0), torch.zeros_like(x0[..., :1])
        H = x0.new_zeros(*x0.shape[:-1], packed_size(x0.shape[-1]))
        return State(x0, x0, nothing, nothing, zero, H, zero, zero, 0, self.exchange.init(H, net))

    def known(self, state: State) -> tuple[NodeTensor, NodeTensor]:
        return state.at, state.g

    def step(self, state: State, problem: Problem, net: Network) -> State:
        x, n, d = state.x, net.topology.n, state.x.shape[-1]
        seen = problem.look(x)
        f, own = problem.value_and_grad_from(seen)
        f, s = f.unsqueeze(-1), x - state.at
        D = curved(f, state.f, dot(state.own, s))
        first = state.k == 0
        told = [problem.hessian_from(seen)] if first or not problem.quadratic else []
        number = problem.lipschitz().unsqueeze(-1).expand_as(D) if first else D
        total, link = self.exchange(torch.cat((*told, own, number), dim=-1), state.link, net, exact=d + 1)
        *news, g, number = (total / n).split((*(part.shape[-1] for part in told), d, 1), dim=-1)
        H, L = news[0] if news else state.H, number if first else state.L
        if first:
            fine, delta = torch.ones_like(D, dtype=torch.bool), state.delta
        else:
            lacking, square = number - dot(s, hessian_product(H if problem.quadratic else state.H, s)) / 2, dot(s, s)
            fine = (lacking <= state.delta * square / 2) | (state.delta >= L)
            more = torch.where(fine, 0.0, lacking) / square.clamp(min=torch.finfo(s.dtype).tiny)
            delta = torch.where(fine, state.delta / 4, torch.minimum(4 * torch.maximum(state.delta, more), L))
        at, g = torch.where(fine, x, state.at), torch.where(fine, g, state.g)
        H = H if problem.quadratic else torch.where(fine, H, state.H)
        x = at_once(lambda a, g, H, delta: damped_model_minimum(unpack(H, d), g, a, problem.prox, delta), at, g, H, delta)
        return State(x, at, g, torch.where(fine, own, state.own), torch.where(fine, f, state.f), H, delta, L, state.k + 1, link)


def hessian_product(H: Tensor, s: Tensor) -> Tensor:
    """H̄ s."""
    return at_once(lambda H, s: (unpack(H, s.shape[-1]) @ s.unsqueeze(-1)).squeeze(-1), H, s)


def at_once(f: Callable[..., Tensor], *of_nodes: Tensor) -> Tensor:
    """f at every node held here; once for all of them where they hold the same."""
    if all(bool((a == a[..., :1, :]).all()) for a in of_nodes):
        return f(*(a[..., :1, :] for a in of_nodes)).expand((*of_nodes[0].shape[:-1], -1))
    return f(*of_nodes)
