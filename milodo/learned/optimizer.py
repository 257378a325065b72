"""MiLoDo: the paper's update rules, with preconditioners and mixing weights from small recurrent networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor

from milodo.errors import InvalidInput, whole
from milodo.learned.activations import Activation, ActivationSettings, Bounded, Exp, ReLU
from milodo.learned.bank import Bank
from milodo.learned.base import WIDEST, Hidden, PerNode, Seed, Settings
from milodo.network import Network
from milodo.problems import Problem
from milodo.topology import Topology
from milodo.types import EdgeTensor, NodeTensor

HIDDEN = 20
"""Size of the LSTM cell and of the layers behind it (Appendix E.3)."""
WARM_UP = 20
"""Iterations in which the networks always run: their hidden states start at random and settle first."""


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
    p: NodeTensor
    p1: EdgeTensor
    p2: EdgeTensor
    """p_i, p_ij,1 and p_ij,2 of the step before."""
    k: int
    """The iteration that comes next."""


@dataclass(frozen=True)
class Activations:
    """Of p_i, p̃_ij,1 and p_ij,2."""

    m: Activation
    s: Activation
    u: Activation


BOUNDED = Activations(Bounded(1e-3, 0.25), Bounded(0.05, 30.0), Bounded(1e-3, 0.45))
"""For LASSO(10,300,10,0.1) on a ring, where L_i is about 42 and the special weights at γ = 0.03 are 0.03, 5.6 and 1/6; the best
constant ones lie near 0.12, 1 and 1/3 (docs/training.md)."""
PLAIN = Activations(ReLU(), Exp(), ReLU())
"""As the paper ran it."""


class ActivationsSettings(Settings):
    m: ActivationSettings
    s: ActivationSettings
    u: ActivationSettings


class MiLoDoSettings(Settings):
    hidden: Hidden
    seed: Seed
    activations: ActivationsSettings
    every: Annotated[int, Field(ge=1)] = 1


class MiLoDo(PerNode):
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

    The networks compute in the precision of their weights (fp32 as trained), the iterates in that of the problem: any p within
    its bounds has the same fixed points, so rounding p costs no accuracy, and p̃ travels in half the bytes.

    For the same reason p may be kept for a while: with every = E the networks run in the first 20 iterations and in each E-th
    after them, and p stays what it was in between. Such a step costs what Prox-ED's does, and sends no p̃. The paper has E = 1.
    """

    kind: ClassVar[str] = "milodo"
    Settings: ClassVar = MiLoDoSettings
    label: ClassVar[str] = "MiLoDo"
    exact: ClassVar[bool] = True
    rounds: ClassVar[int] = 2
    State = State

    def __init__(
        self,
        graph: str | Topology,
        *,
        hidden: int = HIDDEN,
        activations: Activations | None = None,
        seed: int = 0,
        every: int = 1,
        nodes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(graph, nodes)
        self.hidden, self.seed, self.every = whole("hidden", hidden, 1, WIDEST), whole("seed", seed), whole("every", every, 1)
        self.activations = activations or BOUNDED
        n, width = len(self.nodes), self.slots.width
        if width == 0:
            raise InvalidInput(
                f"{self.topology} has no edges, and MiLoDo learns what to say over edges. Use a graph of at least two nodes."
            )
        self.phi_m = Bank(n, 2, 1, hidden)
        self.phi_s = Bank(n, width, width, hidden)
        self.phi_u = Bank(n, width, width, hidden)

    def settings(self) -> MiLoDoSettings:
        kinds = {name: ActivationSettings.of(getattr(self.activations, name)) for name in ("m", "s", "u")}
        return MiLoDoSettings(hidden=self.hidden, seed=self.seed, activations=ActivationsSettings(**kinds), every=self.every)

    @classmethod
    def build(cls, graph: Topology, settings: MiLoDoSettings, nodes: Sequence[int] | None = None) -> Self:
        kinds = settings.activations
        activations = Activations(kinds.m.build(), kinds.s.build(), kinds.u.build())
        return cls(graph, hidden=settings.hidden, activations=activations, seed=settings.seed, every=settings.every, nodes=nodes)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        self.check(problem, net)
        nothing = x0.new_zeros(*x0.shape[:-2], len(net.arcs), x0.shape[-1], dtype=self.dtype)
        hidden = self.first_hidden(x0, net, x0.shape[-1])
        return State(x0, torch.zeros_like(x0), *hidden, p=torch.zeros_like(x0), p1=nothing, p2=nothing, k=0)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        x, y, h_m, c_m, h_s, c_s, h_u, c_u, p, p1, p2, k = state
        fresh = k < WARM_UP or k % self.every == 0
        g = problem.grad(x)
        if fresh:
            o, h_m, c_m = self.phi_m(torch.stack((g, y), dim=-2).to(self.dtype), h_m, c_m)
            p = self.activations.m(o).squeeze(-2).to(g.dtype)  # p_i [*batch, n, d]
        z = problem.prox(x - p * (g + y), p)
        dz = net.diff(z)  # z_i - z_j [*batch, m, d]
        if fresh:
            by_node = self.slots.by_node(dz).to(self.dtype)
            o_s, h_s, c_s = self.phi_s(by_node, h_s, c_s)
            o_u, h_u, c_u = self.phi_u(by_node, h_u, c_u)
            p1 = net.both(self.activations.s(self.slots.by_edge(o_s)))  # p_ij,1 = p_ji,1 from p̃_ij,1
            p2 = self.activations.u(self.slots.by_edge(o_u))  # p_ij,2
        y = y + net.sum(p1 * dz)
        x = z - net.sum(p2 * dz)
        return State(x, y, h_m, c_m, h_s, c_s, h_u, c_u, p, p1, p2, k + 1)
