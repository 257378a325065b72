"""Accelerated proximal gradient on exact sums: what a good engineer does where links hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from milodo.algorithms.base import Algorithm
from milodo.algorithms.parameters import Space
from milodo.network import Network
from milodo.network.exchange import AllGather, TreeAllReduce
from milodo.network.sums import in_order
from milodo.problems import Problem
from milodo.solvers.fista import momentum
from milodo.types import NodeTensor

SHRINK, GROW = 0.5, 1.1
"""By how much a step that went too far is shortened, and the one after a good step lengthened: curvature differs from place to
place, and that of logistic regression falls by orders of magnitude on the way."""
CLEAR = 1000.0
"""Roundings of f_i by which a difference of its values must exceed zero to say anything about curvature."""
APART = 10
"""Iterations between two restarts, at least."""


class Source(ABC):
    """Where the weights p and β of sums come from. What it remembers between two iterations travels in the method's state."""

    each: ClassVar[bool] = True
    """Whether every coordinate has weights of its own."""

    @abstractmethod
    def start(self, x0: NodeTensor) -> Any:
        """Its memory before the first iteration: None, a tensor or a NamedTuple."""

    @abstractmethod
    def weights(self, memory: Any, here: Here, problem: Problem) -> tuple[Tensor, Tensor, Any]:
        """p > 0 and β, one for all coordinates [*batch, n, 1] or one for each; and what it remembers now."""


class Here(NamedTuple):
    """What a source may look at, the same at every node."""

    x: NodeTensor
    m: NodeTensor
    """x - x₋."""
    s: NodeTensor
    """x - e₋: a step along the gradient and ∂r."""
    beta: Tensor
    """FISTA's β [*batch, n, 1]."""


class Alike(Source):
    """p = 1, and FISTA's β."""

    each = False

    def start(self, x0: NodeTensor) -> None:
        return None

    def weights(self, memory: None, here: Here, problem: Problem) -> tuple[Tensor, Tensor, None]:
        return torch.ones_like(here.beta), here.beta, None


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
    p: Tensor
    """With which the step to x was taken [*batch, n, 1 or d]."""
    memory: Any
    """Of the source."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


class SumsAPG(Algorithm):
    """FISTA (Beck and Teboulle 2009) with restarts (O'Donoghue and Candès 2015), as if the data were pooled, from e = x⁰, t = 1:

    e  = x + β (x - x₋),   β = (t - 1)/t⁺,   t⁺ = (1 + √(1 + 4t²))/2;     t = 1 where ⟨e₋ - x, x - x₋⟩ > 0
    D_i = f_i(x) - f_i(e₋) - ⟨∇f_i(e₋), x - e₋⟩                           how much f_i curves on the way
    ḡ, D̄ = (1/n) Σ_j ∇f_j(e), D_j                                         one sum over all nodes, the same at each
    x⁺ = prox_{γr}(e - γḡ), γ a tenth longer                              where D̄ <= ‖x - e₋‖²/2γ
    x⁺ = prox_{γr}(e₋ - γḡ₋), γ halved                                    where not: the step to x is taken back

    γ begins at n/L̄, the longest that a mean of n convex functions can allow everywhere, and never falls below 1/L̄, which all
    allow; L̄, the mean of the L_i, travels in the place of D̄ in the first sum, when there is no D̄ yet. Every node holds the same
    x: there is no consensus error, no dual and nothing to tune. It needs links that hold. The test does not ask for ḡ, so it
    stands where messages round it.

    A source may give every coordinate a p and a β of its own: then steps are γp, inner products and norms those of Diag(p)⁻¹,
    and the test holds for any p > 0. Nothing of it moves the optimum, at which x - x₋ vanishes.
    """

    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {}
    alike: ClassVar[tuple[str, ...]] = ("x", "last", "e", "g", "t", "gamma", "L", "calm", "p")
    State = State

    exchange: TreeAllReduce | AllGather
    """Which sum."""

    def sends(self, d: int) -> tuple[tuple[int, int], ...]:
        return ((d + 1, 1),)

    @property
    def source(self) -> Source:
        """Of p and β."""
        return Alike()

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """It finds its step by itself."""
        return cls()

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        zero, nothing = torch.zeros_like(x0[..., :1]), torch.zeros_like(x0)
        paces = torch.ones_like(x0 if self.source.each else zero), self.source.start(x0), self.exchange.init(x0, net)
        return State(x0, x0, problem.look(x0), x0, nothing, nothing, zero, zero + 1, zero, zero, zero + APART, *paces)

    def known(self, state: State) -> tuple[NodeTensor, NodeTensor]:
        return state.e, state.g

    def step(self, state: State, problem: Problem, net: Network) -> State:
        x, last, first = state.x, state.last, state.gamma == 0
        moved = x - state.e
        uphill = (dot(moved / state.p, last - x) > 0) & (state.calm >= APART)
        t = torch.where(uphill, 1.0, state.t)
        beta, t_next = momentum(t)
        p, beta, memory = self.source.weights(state.memory, Here(x, x - last, moved, beta), problem)
        e, seen = x + beta * (x - last), problem.look(x)
        alike = beta.shape[-1] == 1  # then one look serves both x and e
        f, own = problem.value_and_grad_from(seen + beta * (seen - state.seen) if alike else problem.look(e))
        f = f.unsqueeze(-1)
        bent = curved(problem.value_from(seen).unsqueeze(-1), state.f, dot(state.own, moved))
        L_own = problem.lipschitz().unsqueeze(-1).expand_as(f)
        told = torch.cat((own, torch.where(first, L_own, bent)), dim=-1)
        total, link = self.exchange(told, state.link, net, exact=1)
        g, number = (total / net.topology.n).split((x.shape[-1], 1), dim=-1)
        L, D = torch.where(first, number, state.L), torch.where(first, 0.0, number)
        gamma = torch.where(first, net.topology.n / L, state.gamma)
        most = state.p.amax(-1, keepdim=True)
        fine = first | (gamma * most * L <= 1) | (dot(moved, moved / state.p) / (2 * gamma) >= D)
        gamma = torch.where(fine, torch.where(D > 0, GROW * gamma, gamma), torch.maximum(SHRINK * gamma, 1 / (most * L)))
        e, g, p = torch.where(fine, e, state.e), torch.where(fine, g, state.g), torch.where(fine, p, state.p)
        return State(
            x=problem.prox(e - gamma * p * g, gamma * p),
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
            p=p,
            memory=memory,
            link=link,
        )


@dataclass(frozen=True, kw_only=True)
class TreeAPG(SumsAPG):
    """Over a spanning tree, with p = 1 and FISTA's β: nothing to tune, nothing learned."""

    exchange: TreeAllReduce | AllGather = TreeAllReduce()

    label: ClassVar[str] = "Tree-APG"


def curved(f_x: Tensor, f_e: Tensor, slope: Tensor) -> Tensor:
    """f(x) - f(e) - ⟨∇f(e), x - e⟩; 0 where that is rounding."""
    bent = f_x - f_e - slope
    rounding = torch.finfo(f_x.dtype).eps * torch.maximum(f_x.abs(), f_e.abs())
    return torch.where(bent.abs() > CLEAR * rounding, bent, 0.0)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a_i, b_i⟩ [*batch, n, 1]; nodes that hold the same vectors get the same number, however their machines add up."""
    return in_order(a * b)
