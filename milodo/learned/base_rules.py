"""The base update rules, without the structure of Theorem 1: what the paper's ablation learns instead of MiLoDo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch

from milodo.errors import InvalidInput, whole
from milodo.learned.base import WIDEST, Recipe, Seed, Settings, Width
from milodo.learned.per_node import Hidden, PerNode, PerNodeLSTM, first_hidden
from milodo.network import Network
from milodo.problems import Problem, Zero
from milodo.topology import Topology
from milodo.types import NodeTensor

HIDDEN = 100
"""Size of the LSTM cells and layers (Appendix E.5, Ablation on base update rules)."""


class State(NamedTuple):
    x: NodeTensor
    y: NodeTensor
    hidden: Hidden
    """Of m, s and u [*batch, n, hidden, 1]."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


class BaseRulesSettings(Settings):
    d: Width
    hidden: Width
    seed: Seed


class BaseRulesRecipe(Recipe):
    kind: Literal["base-rules"] = "base-rules"
    hidden: Width = HIDDEN
    from_scratch: ClassVar[bool] = True  # there is no special initialisation

    def make(self, net: Network, d: int, seed: int) -> BaseRules:
        return BaseRules(net.topology, d=d, hidden=self.hidden, seed=seed)


class BaseRules(PerNode):
    """Appendix E.5 of the paper, for r = 0, from y⁰ = 0:

        z_i  = x_i - m_i(∇f_i(x_i), y_i)              (eq. S2-1-composite)
        y_i⁺ = y_i + s_i({z_i - z_j})                 (eq. S2-2-composite)
        x_i⁺ = z_i - u_i({z_i - z_j})                 (eq. S2-3-composite)

    m, s and u see all d coordinates at once, so an optimizer fits one graph and one d. Nothing makes their fixed points optimal.
    """

    kind: ClassVar[str] = "base-rules"
    Settings: ClassVar = BaseRulesSettings
    Recipe: ClassVar = BaseRulesRecipe
    label: ClassVar[str] = "Base rules"
    exact: ClassVar[bool] = False
    State = State

    def __init__(
        self, graph: str | Topology, *, d: int, hidden: int = HIDDEN, seed: int = 0, nodes: Sequence[int] | None = None
    ) -> None:
        super().__init__(graph, nodes)
        self.d, self.hidden, self.seed = whole("d", d, 1, WIDEST), whole("hidden", hidden, 1, WIDEST), whole("seed", seed)
        n, wide = len(self.nodes), self.padding.width * d
        self.m, self.s, self.u = (PerNodeLSTM(n, inputs, d, hidden) for inputs in (2 * d, wide, wide))

    def settings(self) -> BaseRulesSettings:
        return BaseRulesSettings(d=self.d, hidden=self.hidden, seed=self.seed)

    @classmethod
    def build(cls, graph: Topology, settings: BaseRulesSettings, nodes: Sequence[int] | None = None) -> Self:
        return cls(graph, d=settings.d, hidden=settings.hidden, seed=settings.seed, nodes=nodes)

    def check(self, problem: Problem, net: Network) -> None:
        super().check(problem, net)
        if problem.d != self.d or not isinstance(problem.reg, Zero):
            raise InvalidInput(
                f"{self.label} were made for d = {self.d} and r = 0, but the problem has d = {problem.d} and r = {problem.reg}. "
                "Use a problem of that shape, e.g. lasso with lam = 0; MiLoDo has neither restriction."
            )

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        self.check(problem, net)
        return State(
            x0, torch.zeros_like(x0), first_hidden(x0, net, 1, self.hidden, self.seed, self.dtype), self.exchange.init(x0, net)
        )

    def step(self, state: State, problem: Problem, net: Network) -> State:
        seen = torch.cat((problem.grad(state.x), state.y), dim=-1).unsqueeze(-1).to(self.dtype)  # [*batch, n, 2d, 1]
        h = state.hidden
        m, h_m, c_m = self.m(seen, h.h_m, h.c_m)
        z = state.x - m.squeeze(-1)
        dz, link = self.exchange.diff(z, state.link, net)
        dz = self.padding.by_node(dz).flatten(-2).unsqueeze(-1).to(self.dtype)  # [*batch, n, width · d, 1]
        s, h_s, c_s = self.s(dz, h.h_s, h.c_s)
        u, h_u, c_u = self.u(dz, h.h_u, h.c_u)
        hidden = Hidden(h_m, c_m, h_s, c_s, h_u, c_u)
        return State(z - u.squeeze(-1), state.y + s.squeeze(-1), hidden, link)
