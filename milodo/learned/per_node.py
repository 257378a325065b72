"""The paper's weights: small recurrent networks that belong to nodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from milodo.algorithms.rule import Here, Source
from milodo.learned.activations import Activations
from milodo.learned.bank import Bank
from milodo.learned.base import Learned
from milodo.learned.slots import Slots
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.topology import Topology, topology
from milodo.types import EdgeTensor, NodeTensor

Inputs = Literal["raw", "relative", "scaled"]
FINE = 0.01
"""Of a scaled input: below this fraction of its unit it counts as itself, above by its logarithm."""
FOLD = 4.0
"""Brings a scaled input of size one to about one."""


class Hidden(NamedTuple):
    """States of three LSTM cells [*batch, n, hidden, d]."""

    h_m: Tensor
    c_m: Tensor
    h_s: Tensor
    c_s: Tensor
    h_u: Tensor
    c_u: Tensor
    units: Units | None = None
    """What the networks measure by, where their inputs are relative."""
    link: Any = None
    """What both ends of every edge remember of p̃, where messages are compressed differences."""


class Units(NamedTuple):
    """What a node knows of its own problem before the first iteration [*batch, n, 1]."""

    L: Tensor
    """The Lipschitz constant of ∇f_i."""
    g: Tensor
    """The root mean square of ∇f_i(x⁰) over the coordinates."""

    @classmethod
    def of(cls, x0: NodeTensor, problem: Problem, inputs: Inputs) -> Units:
        g = problem.grad(x0).detach().square().mean(-1, keepdim=True).sqrt()
        # Where a node begins at its own minimum there is nothing to measure by, and 1 must do.
        g = torch.where(g > 0, g, 1.0)
        return cls(problem.lipschitz().unsqueeze(-1).expand_as(g) if inputs == "relative" else torch.ones_like(g), g)


class PerNode(Learned):
    """A learned optimizer whose networks belong to nodes: every parameter has the nodes held here as its first axis."""

    exchange: Gossip = Gossip()
    hidden: int
    seed: int
    """Of the first hidden states."""

    def __init__(self, graph: str | Topology, nodes: Sequence[int] | None) -> None:
        super().__init__()
        self.topology = topology(graph)
        self.nodes = tuple(range(self.topology.n)) if nodes is None else tuple(nodes)
        self.slots = Slots(self.topology, self.nodes)

    @classmethod
    @abstractmethod
    def build(cls, graph: Topology, settings: Any, nodes: Sequence[int] | None = None) -> Self: ...

    def fits(self, graph: Topology) -> str | None:
        if graph == self.topology:
            return None
        return (
            f"{self.label} was made for {self.topology} and cannot run on {graph}: its networks belong to nodes. "
            "Train it on this topology (milodo train ...)."
        )

    def first_hidden(self, x0: NodeTensor, net: Network, d: int) -> Hidden:
        """From N(0, 1), keyed by node and the same for all instances."""
        start = net.randn(6, self.hidden, d, seed=self.seed).to(self.dtype)  # [n, 6, hidden, d]
        h_m, c_m, h_s, c_s, h_u, c_u = (part.expand(*x0.shape[:-2], *part.shape) for part in start.unbind(1))
        return Hidden(h_m, c_m, h_s, c_s, h_u, c_u)

    def edge_link(self, x0: NodeTensor, net: Network) -> Any:
        """What both ends of every edge remember of weights before they have sent any."""
        return self.exchange.init(x0.new_zeros(*x0.shape[:-2], len(net.arcs), x0.shape[-1], dtype=self.dtype), net, by_node=False)

    def at(self, nodes: Sequence[int]) -> Self:
        rows = [self.nodes.index(node) for node in nodes]
        part = self.build(self.topology, self.settings(), nodes).to(self.dtype)
        part = part if self.compressor is None else part.compressed(self.compressor)
        part.load_state_dict({name: value[rows] for name, value in self.state_dict().items()})
        return part.requires_grad_(next(self.parameters()).requires_grad)


def seen_as(v: Tensor, inputs: Inputs) -> Tensor:
    """As the networks see it, measured by its unit."""
    return torch.asinh(v / FINE) / FOLD if inputs == "scaled" else v


@dataclass(frozen=True)
class Networks(Source):
    """φ_M, φ_S and φ_U of the nodes of an optimizer:

    p_i, h_M    = φ_M,i(∇f_i(x_i), y_i, h_M)             (eq. module-m-composite)
    p̃_ij,1, h_S = φ_S,i({z_i - z_j}, h_S)                (eq. module-s-composite)
    p_ij,2, h_U = φ_U,i({z_i - z_j}, h_U)                (eq. module-p-composite)
    p_ij,1      = (p̃_ij,1 + p̃_ji,1) / 2                  (eq. module-symmetric-composite)

    That is what the paper feeds them: raw numbers, in the units of the data. With relative inputs a node measures gradients and
    duals by the size γ_i of its first gradient, points by γ_i / L_i, and p_i by 1/L_i, hence p̃_ij,1 by L_i: the same problem
    in other units gives the same iterates in those units, and one optimizer serves problems of any curvature. Where no curvature
    is known (networks), inputs are 'scaled': measured by the first gradient on a scale that tells its decades apart, with
    weights in the problem's own units.
    """

    optimizer: PerNode
    phi_m: Bank
    phi_s: Bank
    phi_u: Bank
    activations: Activations
    inputs: Inputs = "raw"

    def start(self, x0: NodeTensor, problem: Problem, net: Network) -> Hidden:
        hidden = self.optimizer.first_hidden(x0, net, x0.shape[-1])
        hidden = hidden._replace(link=self.optimizer.edge_link(x0, net))
        return hidden if self.inputs == "raw" else hidden._replace(units=Units.of(x0, problem, self.inputs))

    def _seen(self, v: Tensor) -> Tensor:
        return seen_as(v, self.inputs).to(self.optimizer.dtype)

    def primal(self, memory: Hidden, here: Here, problem: Problem) -> tuple[NodeTensor, Hidden]:
        units, g, y = memory.units, here.g, here.y
        seen = torch.stack((g, y) if units is None else (g / units.g, y / units.g), dim=-2)
        o, h_m, c_m = self.phi_m(self._seen(seen), memory.h_m, memory.c_m)
        p = self.activations.m(o).squeeze(-2).to(g.dtype)
        return p if units is None else p / units.L, memory._replace(h_m=h_m, c_m=c_m)

    def edges(self, memory: Hidden, dz: EdgeTensor, net: Network) -> tuple[EdgeTensor, EdgeTensor, Hidden]:
        slots, units = self.optimizer.slots, memory.units
        if units is not None:
            dz = dz * net.spread(units.L / units.g)
        by_node = self._seen(slots.by_node(dz))
        o_s, h_s, c_s = self.phi_s(by_node, memory.h_s, memory.c_s)
        o_u, h_u, c_u = self.phi_u(by_node, memory.h_u, memory.c_u)
        p1 = self.activations.s(slots.by_edge(o_s))
        if units is not None:
            p1 = p1 * net.spread(units.L).to(p1.dtype)
        p1, link = self.optimizer.exchange.both(p1, memory.link, net)  # p_ij,1 = p_ji,1 from p̃_ij,1
        p2 = self.activations.u(slots.by_edge(o_u))
        return p1, p2, memory._replace(h_s=h_s, c_s=c_s, h_u=h_u, c_u=c_u, link=link)
