"""MiLoDo: the paper's update rules, with preconditioners and mixing weights from small recurrent networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from milodo.algorithms import Algorithm
from milodo.algorithms.base import Space
from milodo.errors import InvalidInput
from milodo.learned.activations import Activation, Bounded, Exp, ReLU
from milodo.learned.bank import Bank
from milodo.network import Network
from milodo.problems import Problem
from milodo.topology import Topology, topology
from milodo.types import EdgeTensor, NodeTensor

HIDDEN = 20
"""Size of the LSTM cell and of the layers behind it (Appendix E.3)."""


class State(NamedTuple):
    x: NodeTensor
    y: NodeTensor
    """Dual variable; sums to zero over the nodes."""
    h_m: Tensor
    c_m: Tensor
    h_s: Tensor
    c_s: Tensor
    h_u: Tensor
    c_u: Tensor
    """Hidden states of φ_M, φ_S, φ_U [*batch, n, hidden, d]."""


@dataclass(frozen=True)
class Activations:
    """Of p_i, p̃_ij,1 and p_ij,2."""

    m: Activation
    s: Activation
    u: Activation


BOUNDED = Activations(Bounded(1e-3, 0.07), Bounded(0.5, 30.0), Bounded(1e-3, 1 / 3))
"""For LASSO(10,300,10,0.1) on a ring, where L_i is about 42 and the special weights at γ = 0.03 are 0.03, 5.6 and 1/6."""
PLAIN = Activations(ReLU(), Exp(), ReLU())
"""As the paper ran it."""


class MiLoDo(nn.Module, Algorithm):
    """Section 4 of the paper, from y⁰ = 0 and hidden states drawn from N(0, 1), keyed by node:

    p_i, h_M          = φ_M,i(∇f_i(x_i), y_i, h_M)                       (eq. module-m-composite)
    z_i               = prox_{r, Diag(p_i)}(x_i - p_i ⊙ (∇f_i(x_i) + y_i))   (eq. LEPDO-1)
    p̃_ij,1, h_S       = φ_S,i({z_i - z_j}, h_S)                          (eq. module-s-composite)
    p_ij,2, h_U       = φ_U,i({z_i - z_j}, h_U)                          (eq. module-p-composite)
    p_ij,1            = (p̃_ij,1 + p̃_ji,1) / 2                            (eq. module-symmetric-composite)
    y_i⁺              = y_i + Σ_j p_ij,1 ⊙ (z_i - z_j)                   (eq. LEPDO-2)
    x_i⁺              = z_i - Σ_j p_ij,2 ⊙ (z_i - z_j)                   (eq. LEPDO-3)

    The networks belong to nodes: a trained optimizer fits one topology only. Where degrees differ, the inputs of φ_S and φ_U are
    padded with zeros, and only there.
    """

    label: ClassVar[str] = "MiLoDo"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {}
    rounds: ClassVar[int] = 2
    State = State
    slots: Tensor
    """Where in [n · width] each edge has its place."""

    def __init__(
        self,
        graph: str | Topology,
        *,
        hidden: int = HIDDEN,
        activations: Activations | None = None,
        seed: int = 0,
        nodes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.topology, self.hidden, self.seed = topology(graph), hidden, seed
        self.activations = activations or BOUNDED
        self.nodes = tuple(range(self.topology.n)) if nodes is None else tuple(nodes)
        self.width = max(self.topology.degrees, default=0)
        if self.width == 0:
            raise InvalidInput(
                f"{self.topology} has no edges, and MiLoDo learns what to say over edges. Use a graph of at least two nodes."
            )
        n = len(self.nodes)
        self.phi_m = Bank(n, 2, 1, hidden)
        self.phi_s = Bank(n, self.width, self.width, hidden)
        self.phi_u = Bank(n, self.width, self.width, hidden)
        slots = [row * self.width + slot for row, node in enumerate(self.nodes) for slot in range(self.topology.degrees[node])]
        self.register_buffer("slots", torch.tensor(slots), persistent=False)

    def check(self, net: Network) -> None:
        if net.topology != self.topology:
            raise InvalidInput(
                f"MiLoDo was made for {self.topology} and cannot run on {net.topology}: its networks belong to nodes. "
                "Train it on this topology."
            )

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        self.check(net)
        start = net.randn(6, self.hidden, x0.shape[-1], seed=self.seed)  # [n, 6, hidden, d], the same for every instance
        hidden = [part.expand(*x0.shape[:-2], *part.shape) for part in start.unbind(1)]
        return State(x0, torch.zeros_like(x0), *hidden)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        g = problem.grad(state.x)
        o, h_m, c_m = self.phi_m(torch.stack((g, state.y), dim=-2), state.h_m, state.c_m)
        p = self.activations.m(o).squeeze(-2)  # p_i [*batch, n, d]
        z = problem.prox(state.x - p * (g + state.y), p)
        dz = net.diff(z)  # z_i - z_j [*batch, m, d]
        by_node = self.to_slots(dz)
        o_s, h_s, c_s = self.phi_s(by_node, state.h_s, state.c_s)
        o_u, h_u, c_u = self.phi_u(by_node, state.h_u, state.c_u)
        p1 = self.activations.s(self.to_edges(o_s))  # p̃_ij,1
        p2 = self.activations.u(self.to_edges(o_u))  # p_ij,2
        p1 = (p1 + net.swap(p1)) / 2  # p_ij,1 = p_ji,1
        y = state.y + net.sum(p1 * dz)
        x = z - net.sum(p2 * dz)
        return State(x, y, h_m, c_m, h_s, c_s, h_u, c_u)

    def to_slots(self, e: EdgeTensor) -> Tensor:
        """[*batch, m, d] -> [*batch, n, width, d], each node's edges in order, padded with zeros."""
        shape = (*e.shape[:-2], len(self.nodes), self.width, e.shape[-1])
        if e.shape[-2] == len(self.nodes) * self.width:
            return e.reshape(shape)
        padded = e.new_zeros(*e.shape[:-2], len(self.nodes) * self.width, e.shape[-1])
        return padded.index_copy(-2, self.slots, e).reshape(shape)

    def to_edges(self, v: Tensor) -> EdgeTensor:
        """[*batch, n, width, d] -> [*batch, m, d]."""
        flat = v.flatten(-3, -2)
        return flat if flat.shape[-2] == len(self.slots) else flat.index_select(-2, self.slots)

    def at(self, nodes: Sequence[int]) -> Self:
        rows = [self.nodes.index(node) for node in nodes]
        part = type(self)(self.topology, hidden=self.hidden, activations=self.activations, seed=self.seed, nodes=nodes)
        part.load_state_dict({name: value[rows] for name, value in self.state_dict().items()})
        return part.to(next(self.parameters()).dtype)
