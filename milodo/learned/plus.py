"""MiLoDo+: the paper's idea where every node holds the same: coordinate-wise networks on top of sums over a tree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor

from milodo.algorithms.tree_apg import Here, Source, SumsAPG
from milodo.errors import whole
from milodo.learned.base import WIDEST, Learned, Recipe, Settings, Width
from milodo.learned.per_node import PerNodeLSTM
from milodo.network import Network
from milodo.network.exchange import AllGather, TreeAllReduce
from milodo.problems import Problem
from milodo.topology import Topology, topology
from milodo.types import NodeTensor

HIDDEN, INPUTS = 16, 8
LEAST, FOLD = 1e-6, 4.0
"""Below this fraction of its root mean square a number counts as nothing; and what brings logarithms of such to size one."""
LATE = 6.0
"""log(k + 1) of some hundred iterations, which the networks see as one."""
Reach = Annotated[float, Field(ge=0, le=2)]


class PlusSettings(Settings):
    hidden: Width = HIDDEN
    reach_p: Reach = 0.7
    """log p lies between minus this and this, before its mean over the coordinates is taken away."""
    reach_beta: Reach = 0.2
    """β lies between 1 - this and 1 + this times FISTA's, and never above 1."""


class PlusRecipe(Recipe, PlusSettings):
    kind: Literal["plus"] = "plus"

    def make(self, net: Network, d: int, seed: int) -> Plus:
        return Plus(net.topology, **self.model_dump(include=set(PlusSettings.model_fields)))


class Hidden(NamedTuple):
    h: Tensor
    """[*batch, n, hidden, d]."""
    c: Tensor
    k: int
    """Iterations so far."""


class Plus(SumsAPG, Learned):
    """Tree-APG (milodo/algorithms/tree_apg.py) whose p and β come from one small recurrent network, the same for every
    coordinate, node, graph, size and problem (the structured L2O of Liu et al. 2023, from which MiLoDo descends).

    The network sees numbers without units only, relative to their root mean square over the coordinates: how far a coordinate
    moved, how far its last step went, whether these and x agree in sign, whether r is smooth there, β, how well all moves and
    steps agree, and k. Whatever it says, p > 0 and β <= 1 within bounds, the test of every step holds for any p, and momentum
    restarts where it leads uphill: its fixed point is the optimum, with weights that nobody has trained, too.

    All nodes hold the same, so a process that holds several computes the network once. Before training p = 1 and β is FISTA's.
    """

    kind: ClassVar[str] = "plus"
    Settings: ClassVar = PlusSettings
    Recipe: ClassVar = PlusRecipe
    label: ClassVar[str] = "MiLoDo+"
    exchange: TreeAllReduce | AllGather = TreeAllReduce()

    def __init__(self, graph: str | Topology, *, hidden: int = HIDDEN, reach_p: float = 0.7, reach_beta: float = 0.2) -> None:
        super().__init__()
        self.topology = topology(graph)
        self.hidden, self.reach_p, self.reach_beta = whole("hidden", hidden, 1, WIDEST), reach_p, reach_beta
        self.phi = PerNodeLSTM(1, INPUTS, 2, hidden)
        torch.nn.init.zeros_(self.phi.w_2)
        torch.nn.init.zeros_(self.phi.b_2)

    def settings(self) -> PlusSettings:
        return PlusSettings(**{name: getattr(self, name) for name in PlusSettings.model_fields})

    @classmethod
    def build(cls, graph: Topology, settings: PlusSettings) -> Self:
        return cls(graph, **settings.model_dump())

    @property
    def source(self) -> Source:
        return Shared(self.phi, self.hidden, self.reach_p, self.reach_beta, self.dtype)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> Any:
        self.check(problem, net)
        return super().init(x0, problem, net)


@dataclass(frozen=True)
class Shared(Source):
    """One network for all coordinates."""

    phi: PerNodeLSTM
    hidden: int
    reach_p: float
    reach_beta: float
    dtype: torch.dtype

    def start(self, x0: NodeTensor) -> Hidden:
        nothing = x0.new_zeros(*x0.shape[:-1], self.hidden, x0.shape[-1], dtype=self.dtype)
        return Hidden(nothing, nothing, 0)

    def weights(self, memory: Hidden, here: Here, problem: Problem) -> tuple[Tensor, Tensor, Hidden]:
        v, h, c = seen(here, memory.k, problem).to(self.dtype), memory.h, memory.c
        n = v.shape[-3]
        if all(bool((a == a[..., :1, :, :]).all()) for a in (v, h, c)):  # once for all nodes that hold the same
            v, h, c = (a[..., :1, :, :] for a in (v, h, c))
        o, h, c = (a.squeeze(-3) for a in self.phi(*(a.unsqueeze(-3) for a in (v, h, c))))  # nodes are instances to it
        o, h, c = (a.expand(*a.shape[:-3], n, -1, -1) for a in (o, h, c))
        o_p, o_beta = o.to(here.x.dtype).unbind(-2)
        log_p = self.reach_p * o_p.tanh()
        beta = (here.beta * (1 + self.reach_beta * o_beta.tanh())).clamp(max=1.0)
        return (log_p - log_p.mean(-1, keepdim=True)).exp(), beta, Hidden(h, c, memory.k + 1)


@torch.no_grad()
def seen(here: Here, k: int, problem: Problem) -> Tensor:
    """What the network sees [*batch, n, 8, d]."""
    x, m, s, beta = here
    agree = torch.nn.functional.cosine_similarity(m, s, dim=-1).unsqueeze(-1)
    columns = (
        relative(m), relative(s), m.sign() * s.sign(), x.sign() * m.sign(), problem.reg.free(x).to(x.dtype),
        beta, agree, torch.full_like(beta, math.log(k + 1) / LATE),
    )  # fmt: skip
    return torch.stack([column.expand_as(x) for column in columns], dim=-2)


def root_mean_square(a: Tensor) -> Tensor:
    """Over the coordinates; never 0."""
    return a.square().mean(-1, keepdim=True).sqrt().clamp(min=torch.finfo(a.dtype).tiny)


def folded(a: Tensor) -> Tensor:
    """log |a| of numbers without units, of about one size."""
    return (a.abs() + LEAST).log() / FOLD


def relative(a: Tensor) -> Tensor:
    """log(|a| / rms(a)), folded."""
    return folded(a / root_mean_square(a))
