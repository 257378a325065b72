"""MiLoDo for networks: one small network for all nodes, edges and coordinates of any graph and any torch module."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from milodo.algorithms.rule import WARM_UP, Here, Ratio, Rule, State, WeightProvider
from milodo.errors import whole
from milodo.learned.base import WIDEST, Learned, Positive, Recipe, Settings, Width
from milodo.learned.region import DEEPEST, MARGIN, SPREAD, STEEPEST, mixing_bound_of, mixing_gap
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.topology import Topology, topology
from milodo.types import EdgeTensor, NodeTensor

HIDDEN, INPUTS, OUTPUTS = 4, 10, 3
ETA, ALPHA = 0.5, 0.1
SCALES = (0.9, 0.99, 0.999)
"""What the three averages of gradients and of their squares keep from one iteration to the next, at most."""
REACH_P, REACH_ALPHA, REACH_SHARE = math.log(4), math.log(3), math.log(4)
"""How far the network may move the logarithm of p_i and of 1 - β_i up or down, and that of the dual step's share down."""
FULL = 3.0
"""Of the dual step's share before its sigmoid: with outputs of zero it is 0.94 of what the graph stands."""
RELATIVE_FLOOR = 1e-4
"""Added to the mean square of a coordinate's gradient, in units of that over its tensor."""
RAMP = 4.0
"""β_i is at most k/(k + this): momentum begins at zero."""
REACH = 1.8
"""p_i at most, in units of 1/L_i, where curvature is known (milodo/learned/region.py)."""
LATE, LATEST = 6.0, 120
"""log(k + 1) of some hundred iterations, which the network sees as one; and the last k that it tells from later ones."""
TINY = 1e-6
"""Added to ratios before their logarithms."""
FOLD = 4.0
"""Brings these logarithms to size one."""


class SharedSettings(Settings):
    hidden: Width = HIDDEN
    eta: Positive = ETA
    """Before training: how far a coordinate moves in an iteration, in units of the root mean square of its tensor, where all
    gradients agree."""
    alpha: Annotated[float, Field(gt=0, le=1)] = ALPHA
    """Before training: 1 - β."""
    every: Annotated[int, Field(ge=1)] = 10
    """The network runs in the first 20 iterations and in each `every`-th after them; its weights are kept in between."""


class SharedRecipe(Recipe, SharedSettings):
    kind: Literal["shared"] = "shared"

    def make(self, net: Network, d: int, seed: int) -> Shared:
        return Shared(net.topology, **self.model_dump(include=set(SharedSettings.model_fields)))


class Tensors:
    """The parts of x that belong together: the tensors of a network, one after the other."""

    def __init__(self, problem: Problem) -> None:
        self.sizes = list(problem.tensors or (problem.d,))
        self.repeats = torch.tensor(self.sizes, device=problem.device)

    def mean(self, a: Tensor) -> Tensor:
        """Over each tensor [..., d] -> [..., tensors]."""
        return torch.stack([part.mean(-1) for part in a.split(self.sizes, dim=-1)], dim=-1)

    def spread(self, a: Tensor) -> Tensor:
        """Each tensor's number at all of its coordinates [..., tensors] -> [..., d]."""
        return a.repeat_interleave(self.repeats, dim=-1, output_size=sum(self.sizes))


class Memory(NamedTuple):
    """What a node remembers; all but p_ij,1 is its own."""

    k: int
    """The iteration that comes next."""
    size: NodeTensor
    """Root mean square of x⁰ over each tensor [*batch, n, tensors]."""
    m: Tensor
    """Averages of ∇f_i + y_i at three time scales [*batch, n, 3, d]."""
    v: Tensor
    """Of their squares."""
    scale: NodeTensor
    """η a_i e^{o_1}: p_i without what the gradients and the tensor's size make of it."""
    sigma: NodeTensor
    """p_i / D_i at most."""
    alpha: NodeTensor
    """1 - β_i of the next iteration."""
    D: NodeTensor
    """p_ij,2 / p_ij,1."""
    p1: EdgeTensor
    bound: Tensor
    """b_ij [m, 1]."""
    gap: float
    """The smallest eigenvalue of the mixing but 0."""
    link: Any
    """What both ends of every edge remember of p_ij,1, where messages are compressed differences."""


class Shared(Rule, Learned):
    """LEPDO-1..3 (milodo/algorithms/rule.py) whose p_i, β_i and p_ij,1 come from one small network, the same for every
    coordinate, node, edge, graph and problem. It needs no tuning: nothing in it has a unit.

    For each coordinate of node i, with g = ∇f_i(u_i) + y_i and averages m^s, v^s of g and g² at three time scales s,

        p_i    = η a_i size / √(v_i³ + 10⁻⁴ ⟨v_i³⟩) · e^{o_1},       a_i = 1 - β_i
        1 - β_i = α e^{o_2},        σ_i = σ(β_i) e^{o_3},        D_i = p_i / σ_i
        p_ij,1 = min(b_ij/D_i, b_ji/D_j),        p_ij,2 = D_i p_ij,1

    where size is the root mean square of x⁰ over the coordinate's tensor (`Problem.tensors`), ⟨·⟩ the mean over that tensor,
    σ(β) and b_ij what milodo/learned/region.py allows, and o the bounded outputs of the network. With o = 0 these are
    per-tensor step sizes and Adam's second moments in the paper's rule. Neighbours agree on p_ij,1 in the first 20 iterations and
    in each `every`-th after them; an iteration sends one vector an edge, and one more when they agree. In between o and D_i stay,
    and p_i falls where gradients grow, but never rises above σ_i D_i.

    Whatever the network says, 0 < p_i, p_ij,1 = p_ji,1 and Σ_i y_i = 0, so only an optimum is a fixed point (Theorem 1). Where
    curvature is known, p_i is at most 1.8/L_i besides, and any weights of the network lead to the optimum (tested, not proved:
    tests/laws/test_shared_laws.py); where it is not, nothing can promise that.

    The network sees of each coordinate: |m|/√v at three scales (how much of the gradient is signal); how v at the shorter scales
    and v within its tensor compare to the longest and to the mean; |y| and the last move's agreement with g; how much its
    tensor has grown; log k. So a tensor in other units, as by a factor that another layer takes back, changes nothing.
    """

    kind: ClassVar[str] = "shared"
    Settings: ClassVar = SharedSettings
    Recipe: ClassVar = SharedRecipe
    label: ClassVar[str] = "MiLoDo for networks"

    def __init__(
        self, graph: str | Topology, *, hidden: int = HIDDEN, eta: float = ETA, alpha: float = ALPHA, every: int = 10
    ) -> None:
        super().__init__()
        self.topology = topology(graph)
        self.hidden, self.every = whole("hidden", hidden, 1, WIDEST), whole("every", every, 1)
        self.eta, self.alpha = eta, alpha
        self.w_1, self.b_1 = nn.Parameter(torch.randn(hidden, INPUTS) / math.sqrt(INPUTS)), nn.Parameter(torch.zeros(hidden))
        self.w_2, self.b_2 = nn.Parameter(torch.zeros(OUTPUTS, hidden)), nn.Parameter(torch.zeros(OUTPUTS))

    def sends(self, d: int) -> tuple[tuple[int, int], ...]:
        """z and, when neighbours agree, p_ij,1."""
        return ((d, 0), (d, 0))

    def settings(self) -> SharedSettings:
        return SharedSettings(**{name: getattr(self, name) for name in SharedSettings.model_fields})

    @classmethod
    def build(cls, graph: Topology, settings: SharedSettings) -> Self:
        return cls(graph, **settings.model_dump())

    def forward(self, seen: Tensor) -> Tensor:
        """Three numbers a coordinate, [*batch, n, 10, d] -> [*batch, n, 3, d]."""
        inner = (self.w_1 @ seen + self.b_1.unsqueeze(-1)).tanh()
        return self.w_2 @ inner + self.b_2.unsqueeze(-1)

    @cached_property
    def weights(self) -> WeightProvider:
        return SharedNetwork(self)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        self.check(problem, net)
        return super().init(x0, problem, net)


def most_sigma(alpha: Tensor, gap: float) -> Tensor:
    """σ = p_i / D_i at most where 1 - β_i is alpha: what inverts Region.least_alpha."""
    near_one = MARGIN * (1 / ((1 - alpha).clamp(min=torch.finfo(alpha.dtype).tiny) * (1 - gap / 3)) - 1)
    below = MARGIN * (2 * (2 - DEEPEST) - 4 * (DEEPEST - 1) * (1 - alpha)) / DEEPEST
    return torch.minimum(torch.minimum(near_one, STEEPEST * alpha), below).clamp(max=1.0)


@dataclass(frozen=True)
class SharedNetwork(WeightProvider):
    """The weights of a Shared."""

    optimizer: Shared

    def start(self, x0: NodeTensor, problem: Problem, net: Network, exchange: Gossip) -> Memory:
        size = Tensors(problem).mean(x0.square()).sqrt()
        every_x = x0.square().mean(-1, keepdim=True).sqrt()
        if problem.knows_lipschitz:  # where x begins at 0, as far as a step of 1/L goes
            first = problem.grad(x0).detach().square().mean(-1, keepdim=True).sqrt() / problem.lipschitz().unsqueeze(-1)
            every_x = torch.where(every_x > 0, every_x, first)
        every_x = torch.where(every_x > 0, every_x, 1.0)
        size = torch.where(size > 0, size, every_x)
        none = x0.new_zeros(*x0.shape[:-1], len(SCALES), x0.shape[-1])
        one = torch.ones_like(x0)
        nothing = x0.new_zeros(*x0.shape[:-2], len(net.arcs), x0.shape[-1])
        link = exchange.init(nothing.to(self.optimizer.dtype), net, by_node=False)
        bound, gap = mixing_bound_of(net), mixing_gap(net.topology) / SPREAD
        return Memory(0, size, none, none, one, one, one, one, nothing, bound, gap, link)

    def beta(self, memory: Memory) -> NodeTensor:
        return 1 - memory.alpha

    def _is_due(self, k: int) -> bool:
        return k < WARM_UP or k % self.optimizer.every == 0

    def primal(self, memory: Memory, here: Here, problem: Problem) -> tuple[NodeTensor, Memory]:
        g = (here.g + here.y).detach().unsqueeze(-2)
        new = g.new_tensor([max(1 - scale, 1 / (memory.k + 1)) for scale in SCALES]).unsqueeze(-1)
        memory = memory._replace(m=memory.m + new * (g - memory.m), v=memory.v + new * (g.square() - memory.v))
        own, tensors = self.optimizer, Tensors(problem)
        v = memory.v[..., -1, :]
        fine = (v + RELATIVE_FLOOR * tensors.spread(tensors.mean(v))).sqrt()
        base = tensors.spread(memory.size) / torch.where(fine > 0, fine, 1.0)
        if not self._is_due(memory.k):  # a gradient that grows shortens its steps at once, which needs no agreement
            return torch.minimum(memory.scale * base, memory.sigma * memory.D), memory
        o = own(_seen(here, memory, tensors).to(own.dtype)).to(here.x.dtype)
        o_p, o_alpha, o_share = o.unbind(-2)
        alpha = (math.log(own.alpha) + REACH_ALPHA * o_alpha.tanh()).exp().clamp(max=1.0)
        now = alpha.clamp(min=RAMP / (memory.k + RAMP))
        scale = own.eta * now * (REACH_P * o_p.tanh()).exp()
        p = scale * base
        if problem.knows_lipschitz:
            p = torch.minimum(p, REACH / problem.lipschitz().unsqueeze(-1))
        share = (-REACH_SHARE * (-FULL - o_share).sigmoid()).exp()
        sigma = share * most_sigma(alpha, memory.gap)
        alpha = alpha.clamp(min=RAMP / (memory.k + 1 + RAMP))
        return p, memory._replace(scale=scale, sigma=sigma, alpha=alpha, D=p / sigma)

    def edges(self, memory: Memory, dz: EdgeTensor, net: Network, exchange: Gossip) -> tuple[EdgeTensor, Ratio, Memory]:
        p1, link = memory.p1, memory.link
        if self._is_due(memory.k):
            p1 = (memory.bound / net.spread(memory.D)).to(self.optimizer.dtype)
            p1, link = exchange.both(p1, link, net, smaller=True)
            p1 = p1.to(dz.dtype)
            p1 = torch.where(p1 > 0, p1, memory.p1)  # not heard, or rounded away: as it was
        return p1, Ratio(memory.D), memory._replace(k=memory.k + 1, p1=p1, link=link)


@torch.no_grad()
def _seen(here: Here, memory: Memory, tensors: Tensors) -> Tensor:
    """What the network sees of every coordinate [*batch, n, 10, d], none of it with a unit."""
    m, v, g = memory.m, memory.v, here.g + here.y
    move = here.x - here.last
    least = torch.finfo(v.dtype).tiny
    root = v.clamp(min=least).sqrt()
    signal = (m.abs() / root).unbind(-2)
    longest = v[..., -1:, :].clamp(min=least)
    rising = ((v[..., :-1, :] / longest + TINY).log() / FOLD).unbind(-2)
    mean_v = tensors.mean(v[..., -1, :])
    within = (v[..., -1, :] / tensors.spread(mean_v).clamp(min=least) + RELATIVE_FLOOR).log() / FOLD
    dual = (here.y.abs() / root[..., -1, :] + TINY).log() / FOLD
    norms = (tensors.mean(move.square()) * tensors.mean(g.square())).sqrt()
    agree = tensors.mean(move * g) / norms.clamp(min=least)
    grown = (tensors.mean(here.x.square()).sqrt() / memory.size + TINY).log() / FOLD
    late = torch.full_like(dual, math.log(min(memory.k, LATEST) + 1) / LATE)
    rows = (*signal, *rising, within, dual, *map(tensors.spread, (agree, grown)), late)
    return torch.stack([row.clamp(-FOLD, FOLD) for row in rows], dim=-2)
