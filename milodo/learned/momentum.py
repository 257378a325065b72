"""Weights of the rule with momentum: networks that belong to nodes, and stay within the region in which it is stable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from milodo.algorithms.rule import WARM_UP, Here, Ratio, Source
from milodo.learned.bank import Bank
from milodo.learned.per_node import Hidden, Inputs, PerNode, Units, seen_as
from milodo.learned.plus import relative
from milodo.learned.region import Region
from milodo.learned.schedule import Course
from milodo.network import Network
from milodo.problems import Problem
from milodo.types import EdgeTensor, NodeTensor

COLUMNS = 8
"""Numbers that φ_M sees of a coordinate."""
LATE, LATEST = 6.0, 500
"""log(k + 1) of some hundred iterations, which the networks see as one; and the last k that they tell from later ones, so that
what they have learnt holds in runs longer than those of training."""


class Moving(NamedTuple):
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
    annealed: float = 1.0
    """By what annealing and the schedule have multiplied D and divided p1."""


@dataclass(frozen=True)
class MovingNetworks(Source):
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

    optimizer: PerNode
    phi_m: Bank
    phi_s: Bank
    phi_u: Bank
    region: Region
    bound: Tensor
    """Of p_ij,2 [m, 1]."""
    every: int
    inputs: Inputs
    course: Course
    """Of p_i and D_i over the iterations."""

    def start(self, x0: NodeTensor, problem: Problem, net: Network) -> Moving:
        hidden = self.optimizer.first_hidden(x0, net, x0.shape[-1])._replace(link=self.optimizer.edge_link(x0, net))
        units = Units.of(x0, problem, self.inputs)
        nothing, zero = x0.new_zeros(*x0.shape[:-2], len(net.arcs), x0.shape[-1]), torch.zeros_like(x0)
        first = zero + self.region.reach / units.L
        return Moving(0, hidden, units, first, zero, zero, torch.full_like(x0, math.inf), nothing)

    def momentum(self, memory: Moving) -> NodeTensor:
        return memory.beta

    def _is_due(self, k: int) -> bool:
        return k < WARM_UP or k % self.every == 0

    def primal(self, memory: Moving, here: Here, problem: Problem) -> tuple[NodeTensor, Moving]:
        if not self._is_due(memory.k):
            return memory.p, memory
        seen = columns(here, memory, problem).to(self.optimizer.dtype)
        o, h_m, c_m = self.phi_m(seen, memory.hidden.h_m, memory.hidden.c_m)
        s_p, s_beta = o.sigmoid().to(here.x.dtype).unbind(-2)
        p = self.region.step_size(s_p, memory.D * memory.units.L, self.course.share(memory.k)) / memory.units.L
        return p, memory._replace(p=p, s_beta=s_beta, hidden=memory.hidden._replace(h_m=h_m, c_m=c_m))

    def edges(self, memory: Moving, dz: EdgeTensor, net: Network) -> tuple[EdgeTensor, Ratio, Moving]:
        k = memory.k
        if k < WARM_UP:
            memory = self._agree(memory, dz, net)
        elif not net.holds and k % self.every == 0:
            later = self._agree(memory, dz, net)  # both ends know whether they have agreed before
            p1 = torch.where(memory.p1 > 0, memory.p1, later.p1 / memory.annealed)
            memory = memory._replace(p1=p1, hidden=memory.hidden._replace(link=later.hidden.link))
        if self._is_due(k):
            memory = self._anneal(memory)
            L = memory.units.L
            memory = memory._replace(beta=self.region.momentum(memory.s_beta, memory.p * L, memory.D * L))
        return memory.p1, Ratio(memory.D), memory._replace(k=k + 1)

    def _anneal(self, memory: Moving) -> Moving:
        wanted = self.course.dual(memory.k)
        if wanted == memory.annealed:
            return memory
        factor = wanted / memory.annealed
        return memory._replace(D=memory.D * factor, p1=memory.p1 / factor, annealed=wanted)

    def _agree(self, memory: Moving, dz: EdgeTensor, net: Network) -> Moving:
        slots, units, hidden = self.optimizer.slots, memory.units, memory.hidden
        if self.inputs != "raw":
            dz = dz * net.spread(units.L / units.g)
        by_node = seen_as(slots.by_node(dz), self.inputs).to(self.optimizer.dtype)
        o_s, h_s, c_s = self.phi_s(by_node, hidden.h_s, hidden.c_s)
        o_u, h_u, c_u = self.phi_u(by_node, hidden.h_u, hidden.c_u)
        D = self.region.ratio(o_u.sigmoid()).squeeze(-2).to(dz.dtype) / units.L
        bound = self.bound.to(dz.dtype)
        mixing = self.region.mixing(slots.by_edge(o_s).sigmoid()).to(dz.dtype) * bound
        p1 = (mixing / net.spread(D)).to(self.optimizer.dtype)
        p1, link = self.optimizer.exchange.both(p1, hidden.link, net, smaller=True)
        p1 = p1.to(dz.dtype)
        p1 = torch.where(p1 > 0, p1, memory.p1 * memory.annealed)  # not heard, or rounded away: as it was
        hidden = hidden._replace(h_s=h_s, c_s=c_s, h_u=h_u, c_u=c_u, link=link)
        return memory._replace(D=D, p1=p1, annealed=1.0, hidden=hidden)


@torch.no_grad()
def columns(here: Here, memory: Moving, problem: Problem) -> Tensor:
    """What φ_M sees of every coordinate [*batch, n, 8, d], none of it with a unit: how far it moved, how steep it is there (r
    and the dual included), how large it is, relative to their root mean square; whether the move goes uphill, whether it
    leads away from 0, whether the coordinate is 0; how well all moves and slopes agree, and k."""
    m, p = here.x - here.last, memory.p
    slope = (here.u - problem.prox(here.u - p * (here.g + here.y), p)) / p
    agree = torch.nn.functional.cosine_similarity(m, slope, dim=-1).unsqueeze(-1)
    late = torch.full_like(agree, math.log(min(memory.k, LATEST) + 1) / LATE)
    rows = (
        relative(m), relative(slope), relative(here.u), m.sign() * slope.sign(), here.u.sign() * m.sign(),
        (here.u != 0).to(m.dtype), agree, late,
    )  # fmt: skip
    return torch.stack([row.expand_as(m) for row in rows], dim=-2)
