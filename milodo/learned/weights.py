"""Weights for the paper's rule from networks that belong to nodes: as the paper has them, and with momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from milodo.algorithms.rule import WARM_UP, Here, Ratio, WeightProvider
from milodo.learned.activations import Activations
from milodo.learned.per_node import EdgePadding, Hidden, PerNodeLSTM, first_hidden
from milodo.learned.plus import folded, root_mean_square
from milodo.learned.region import Region, mixing_bound_of
from milodo.learned.schedule import Course
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.types import EdgeTensor, NodeTensor

Inputs = Literal["raw", "relative", "scaled"]
FINE = 0.01
"""Of a scaled input: below this fraction of its unit it counts as itself, above by its logarithm."""
FOLD = 4.0
"""Brings a scaled input of size one to about one."""
COLUMNS = 8
"""Numbers that φ_M sees of a coordinate where there is momentum."""
LATE, LATEST = 6.0, 500
"""log(k + 1) of some hundred iterations, which the networks see as one; and the last k that they tell from later ones, so that
what they have learnt holds in runs longer than those of training."""


class Units(NamedTuple):
    """What a node knows of its own problem before the first iteration [*batch, n, 1]."""

    L: Tensor
    """The Lipschitz constant of ∇f_i."""
    g: Tensor
    """The root mean square of ∇f_i(x⁰) over the coordinates."""

    @classmethod
    def of(cls, x0: NodeTensor, problem: Problem, inputs: Inputs) -> Units:
        if inputs == "raw":
            one = torch.ones_like(x0[..., :1])
            return cls(one, one)
        g = problem.grad(x0).detach().square().mean(-1, keepdim=True).sqrt()
        # Where a node begins at its own minimum there is nothing to measure by, and 1 must do.
        g = torch.where(g > 0, g, 1.0)
        return cls(problem.lipschitz().unsqueeze(-1).expand_as(g) if inputs == "relative" else torch.ones_like(g), g)


@dataclass(frozen=True)
class Networks:
    """φ_M, φ_S and φ_U of the nodes held here, and what they measure by.

    The paper feeds them raw numbers, in the units of the data. With relative inputs a node measures gradients and duals by the
    size γ_i of its first gradient, points by γ_i / L_i, and p_i by 1/L_i, hence p̃_ij,1 by L_i: the same problem in other units
    gives the same iterates in those units, and one optimizer serves problems of any curvature. Where no curvature is known
    (neural networks), inputs are 'scaled': measured by the first gradient on a scale that tells its decades apart, with weights
    in the problem's own units.
    """

    phi_m: PerNodeLSTM
    phi_s: PerNodeLSTM
    phi_u: PerNodeLSTM
    padding: EdgePadding
    inputs: Inputs = "raw"
    every: int = 1
    """They run in the first 20 iterations and in each E-th after them."""
    seed: int = 0
    """Of the first hidden states."""

    @property
    def dtype(self) -> torch.dtype:
        return self.phi_m.dtype

    def due(self, k: int) -> bool:
        return k < WARM_UP or k % self.every == 0

    def start(self, x0: NodeTensor, problem: Problem, net: Network) -> tuple[Hidden, Units]:
        hidden = first_hidden(x0, net, x0.shape[-1], self.phi_m.hidden, self.seed, self.dtype)
        return hidden, Units.of(x0, problem, self.inputs)

    def nothing_sent(self, x0: NodeTensor, net: Network) -> EdgeTensor:
        """p̃_ij,1 before any."""
        return x0.new_zeros(*x0.shape[:-2], len(net.arcs), x0.shape[-1], dtype=self.dtype)

    def seen(self, v: Tensor) -> Tensor:
        """As the networks see what is measured by its unit."""
        return (torch.asinh(v / FINE) / FOLD if self.inputs == "scaled" else v).to(self.dtype)

    def over_edges(self, dz: EdgeTensor, hidden: Hidden, units: Units, net: Network) -> tuple[Tensor, Tensor, Hidden]:
        """What φ_S and φ_U put out, by node."""
        if self.inputs != "raw":
            dz = dz * net.spread(units.L / units.g)
        by_node = self.seen(self.padding.by_node(dz))
        o_s, h_s, c_s = self.phi_s(by_node, hidden.h_s, hidden.c_s)
        o_u, h_u, c_u = self.phi_u(by_node, hidden.h_u, hidden.c_u)
        return o_s, o_u, hidden._replace(h_s=h_s, c_s=c_s, h_u=h_u, c_u=c_u)


class Memory(NamedTuple):
    """Of the paper's weights between two iterations."""

    k: int
    """The iteration that comes next."""
    hidden: Hidden
    units: Units
    p: NodeTensor
    p1: EdgeTensor
    p2: EdgeTensor
    """Of the iteration before."""
    link: Any
    """What both ends of every edge remember of p̃, where messages are compressed differences."""


@dataclass(frozen=True)
class LSTMWeights(WeightProvider):
    """The paper's:

    p_i, h_M    = φ_M,i(∇f_i(x_i), y_i, h_M)             (eq. module-m-composite)
    p̃_ij,1, h_S = φ_S,i({z_i - z_j}, h_S)                (eq. module-s-composite)
    p_ij,2, h_U = φ_U,i({z_i - z_j}, h_U)                (eq. module-p-composite)
    p_ij,1      = (p̃_ij,1 + p̃_ji,1) / 2                  (eq. module-symmetric-composite)

    Any weights have the same fixed points, so they are kept where the networks do not run: such an iteration costs what
    Prox-ED's does, and sends no p̃.
    """

    networks: Networks
    activations: Activations

    def start(self, x0: NodeTensor, problem: Problem, net: Network, exchange: Gossip) -> Memory:
        nothing = self.networks.nothing_sent(x0, net)
        link = exchange.init(nothing, net, by_node=False)
        return Memory(0, *self.networks.start(x0, problem, net), torch.zeros_like(x0), nothing, nothing, link)

    def primal(self, memory: Memory, here: Here, problem: Problem) -> tuple[NodeTensor, Memory]:
        networks, hidden, units = self.networks, memory.hidden, memory.units
        if not networks.due(memory.k):
            return memory.p, memory
        seen = networks.seen(torch.stack((here.g / units.g, here.y / units.g), dim=-2))
        o, h_m, c_m = networks.phi_m(seen, hidden.h_m, hidden.c_m)
        p = self.activations.m(o).squeeze(-2).to(here.g.dtype) / units.L
        return p, memory._replace(p=p, hidden=hidden._replace(h_m=h_m, c_m=c_m))

    def edges(self, memory: Memory, dz: EdgeTensor, net: Network, exchange: Gossip) -> tuple[EdgeTensor, EdgeTensor, Memory]:
        if self.networks.due(memory.k):
            L, padding = memory.units.L, self.networks.padding
            o_s, o_u, hidden = self.networks.over_edges(dz, memory.hidden, memory.units, net)
            p1 = self.activations.s(padding.by_edge(o_s)) * net.spread(L).to(o_s.dtype)
            p1, link = exchange.both(p1, memory.link, net)  # p_ij,1 = p_ji,1 from p̃_ij,1
            p2 = self.activations.u(padding.by_edge(o_u))
            memory = memory._replace(p1=p1, p2=p2, hidden=hidden, link=link)
        return memory.p1, memory.p2, memory._replace(k=memory.k + 1)


class MomentumMemory(NamedTuple):
    """What the networks remember, and the weights that they chose last."""

    k: int
    """The iteration that comes next."""
    hidden: Hidden
    units: Units
    p: NodeTensor
    beta: NodeTensor
    """Of the iteration that comes next."""
    s_beta: NodeTensor
    """Where β lies between 0 and the largest."""
    D: NodeTensor
    """p_ij,2 / p_ij,1; ∞ before the first iteration."""
    p1: EdgeTensor
    bound: Tensor
    """Of p_ij,2 [m, 1]."""
    link: Any
    """What both ends of every edge remember of p̃, where messages are compressed differences."""
    annealed: float = 1.0
    """By what annealing and the schedule have multiplied D and divided p1."""


@dataclass(frozen=True)
class MomentumWeights(WeightProvider):
    """φ_M, φ_S and φ_U of the nodes of an optimizer with momentum, all of whose outputs are places within a region:

    p_i, β_i, h_M = φ_M,i(∇f_i(u_i), y_i, u_i, x_i - x_i₋, k; h_M)
    p̃_ij,1, h_S   = φ_S,i({z_i - z_j}, h_S)
    D_i, h_U      = φ_U,i({z_i - z_j}, h_U)
    p_ij,1        = min(p̃_ij,1, p̃_ji,1),   p_ij,2 = D_i p_ij,1

    β_i is that of the next iteration, whose gradient is taken at the point that it extrapolates to. φ_M runs in the first 20
    iterations and in each E-th after them. φ_S and φ_U run in the first 20 only: what nodes have agreed upon then is kept, so
    that later iterations send z alone. Where links fail, edges that have not agreed by then go on trying in each E-th.

    A schedule may change p_i, D_i and p_ij,1 over the iterations, at all nodes alike, which costs no message. Besides, what is
    still not solved after `anneal_after` iterations is ill-conditioned and wants more momentum: from then on D_i grows as k and
    p_ij,1 falls as 1/k, so that σ_i = p_i/D_i and with it 1 - β_i fall as 1/k, to a quarter at most.
    """

    networks: Networks
    region: Region
    course: Course
    """Of p_i and D_i over the iterations."""

    def start(self, x0: NodeTensor, problem: Problem, net: Network, exchange: Gossip) -> MomentumMemory:
        hidden, units = self.networks.start(x0, problem, net)
        nothing, zero = x0.new_zeros(*x0.shape[:-2], len(net.arcs), x0.shape[-1]), torch.zeros_like(x0)
        first = zero + self.region.reach / units.L
        place = zero.to(self.networks.dtype)
        bound = mixing_bound_of(net, self.region.deepest)
        link = exchange.init(self.networks.nothing_sent(x0, net), net, by_node=False)
        return MomentumMemory(0, hidden, units, first, zero, place, torch.full_like(x0, math.inf), nothing, bound, link)

    def beta(self, memory: MomentumMemory) -> NodeTensor:
        return memory.beta

    def primal(self, memory: MomentumMemory, here: Here, problem: Problem) -> tuple[NodeTensor, MomentumMemory]:
        if not self.networks.due(memory.k):
            return memory.p, memory
        seen = columns(here, memory, problem, self.networks.dtype)
        o, h_m, c_m = self.networks.phi_m(seen, memory.hidden.h_m, memory.hidden.c_m)
        s_p, s_beta = o.sigmoid().unbind(-2)
        p = self.region.step_size(s_p, memory.D * memory.units.L, self.course.share(memory.k)) / memory.units.L
        return p, memory._replace(p=p, s_beta=s_beta, hidden=memory.hidden._replace(h_m=h_m, c_m=c_m))

    def edges(
        self, memory: MomentumMemory, dz: EdgeTensor, net: Network, exchange: Gossip
    ) -> tuple[EdgeTensor, Ratio, MomentumMemory]:
        k = memory.k
        if k < WARM_UP:
            memory = self._agree(memory, dz, net, exchange)
        elif not net.holds and k % self.networks.every == 0:
            later = self._agree(memory, dz, net, exchange)  # both ends know whether they have agreed before
            p1 = torch.where(memory.p1 > 0, memory.p1, later.p1 / memory.annealed)
            memory = memory._replace(p1=p1, link=later.link)
        if self.networks.due(k):
            memory = self._anneal(memory)
            sigma = memory.p / memory.D
            memory = memory._replace(beta=self.region.momentum(memory.s_beta, sigma.to(memory.s_beta.dtype)).to(sigma.dtype))
        return memory.p1, Ratio(memory.D), memory._replace(k=k + 1)

    def _anneal(self, memory: MomentumMemory) -> MomentumMemory:
        wanted = self.course.dual(memory.k)
        if wanted == memory.annealed:
            return memory
        factor = wanted / memory.annealed
        return memory._replace(D=memory.D * factor, p1=memory.p1 / factor, annealed=wanted)

    def _agree(self, memory: MomentumMemory, dz: EdgeTensor, net: Network, exchange: Gossip) -> MomentumMemory:
        padding, units = self.networks.padding, memory.units
        o_s, o_u, hidden = self.networks.over_edges(dz, memory.hidden, units, net)
        D = self.region.ratio(o_u.sigmoid()).squeeze(-2).to(dz.dtype) / units.L
        mixing = self.region.mixing(padding.by_edge(o_s).sigmoid()).to(dz.dtype) * memory.bound.to(dz.dtype)
        p1 = (mixing / net.spread(D)).to(self.networks.dtype)
        p1, link = exchange.both(p1, memory.link, net, smaller=True)
        p1 = p1.to(dz.dtype)
        p1 = torch.where(p1 > 0, p1, memory.p1 * memory.annealed)  # not heard, or rounded away: as it was
        return memory._replace(D=D, p1=p1, annealed=1.0, hidden=hidden, link=link)


@torch.no_grad()
def columns(here: Here, memory: MomentumMemory, problem: Problem, dtype: torch.dtype) -> Tensor:
    """What φ_M sees of every coordinate [*batch, n, 8, d], none of it with a unit: how far it moved, how steep it is there (r
    and the dual included), how large it is, relative to their root mean square; whether the move goes uphill, whether it
    leads away from 0, whether the coordinate is 0; how well all moves and slopes agree, and k."""
    x, last, u, g, y = here
    p = memory.p
    slope = (u - problem.prox(torch.addcmul(u, p, g + y, value=-1), p)) / p
    v = torch.stack((x - last, slope, u), dim=-2)
    v = (v / root_mean_square(v)).to(dtype)  # relative first: squares of small numbers vanish in fp32
    signs = v.sign()
    seen = v.new_empty(*v.shape[:-2], COLUMNS, v.shape[-1])
    seen[..., :3, :] = folded(v)
    torch.mul(signs[..., :1, :], signs[..., 1:, :], out=seen[..., 3:5, :])
    torch.abs(signs[..., 2, :], out=seen[..., 5, :])
    seen[..., 6, :] = (v[..., 0, :] * v[..., 1, :]).mean(-1, keepdim=True)
    seen[..., 7, :] = math.log(min(memory.k, LATEST) + 1) / LATE
    return seen
