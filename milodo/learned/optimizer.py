"""MiLoDo: the paper's update rules, with preconditioners and mixing weights from small recurrent networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.learned.activations import Activation, ActivationSettings, Bounded, Exp, ReLU
from milodo.learned.bank import Bank
from milodo.learned.base import Hidden, Learned, Seed, Settings
from milodo.learned.slots import Slots
from milodo.network import Network
from milodo.problems import Problem
from milodo.topology import Topology, topology
from milodo.types import NodeTensor

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


class MiLoDo(Learned):
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
        nodes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.topology, self.hidden, self.seed = topology(graph), hidden, seed
        self.activations = activations or BOUNDED
        self.nodes = tuple(range(self.topology.n)) if nodes is None else tuple(nodes)
        self.slots = Slots(self.topology, self.nodes)
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
        return MiLoDoSettings(hidden=self.hidden, seed=self.seed, activations=ActivationsSettings(**kinds))

    @classmethod
    def build(cls, graph: Topology, settings: MiLoDoSettings) -> Self:
        kinds = settings.activations
        activations = Activations(kinds.m.build(), kinds.s.build(), kinds.u.build())
        return cls(graph, hidden=settings.hidden, activations=activations, seed=settings.seed)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        self.check(problem, net)
        start = net.randn(6, self.hidden, x0.shape[-1], seed=self.seed).to(self.dtype)  # [n, 6, hidden, d], one for all instances
        hidden = [part.expand(*x0.shape[:-2], *part.shape) for part in start.unbind(1)]
        return State(x0, torch.zeros_like(x0), *hidden)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        g = problem.grad(state.x)
        o, h_m, c_m = self.phi_m(torch.stack((g, state.y), dim=-2).to(self.dtype), state.h_m, state.c_m)
        p = self.activations.m(o).squeeze(-2).to(g.dtype)  # p_i [*batch, n, d]
        z = problem.prox(state.x - p * (g + state.y), p)
        dz = net.diff(z)  # z_i - z_j [*batch, m, d]
        by_node = self.slots.by_node(dz).to(self.dtype)
        o_s, h_s, c_s = self.phi_s(by_node, state.h_s, state.c_s)
        o_u, h_u, c_u = self.phi_u(by_node, state.h_u, state.c_u)
        p1 = self.activations.s(self.slots.by_edge(o_s))  # p̃_ij,1
        p2 = self.activations.u(self.slots.by_edge(o_u))  # p_ij,2
        p1 = (p1 + net.swap(p1)) / 2  # p_ij,1 = p_ji,1
        y = state.y + net.sum(p1 * dz)
        x = z - net.sum(p2 * dz)
        return State(x, y, h_m, c_m, h_s, c_s, h_u, c_u)

    def at(self, nodes: Sequence[int]) -> Self:
        rows = [self.nodes.index(node) for node in nodes]
        part = type(self)(self.topology, hidden=self.hidden, activations=self.activations, seed=self.seed, nodes=nodes)
        part = part.to(self.dtype)
        part.load_state_dict({name: value[rows] for name, value in self.state_dict().items()})
        return part
