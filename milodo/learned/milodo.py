"""MiLoDo: the paper's update rules, with preconditioners and mixing weights from small recurrent networks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field

from milodo.algorithms.rule import Rule, State, WeightProvider
from milodo.errors import InvalidInput
from milodo.learned.activations import BOUNDED, ActivationsField
from milodo.learned.base import Positive, Recipe, Seed, Settings, Width
from milodo.learned.per_node import PerNode, PerNodeLSTM
from milodo.learned.region import DEEPEST, SPREAD, STEEPEST, Region, before_sigmoid, mixing_bound_of, mixing_gap
from milodo.learned.schedule import Course, Schedule
from milodo.learned.weights import COLUMNS, Inputs, LSTMWeights, MomentumWeights, Networks
from milodo.network import Network
from milodo.problems import Problem
from milodo.topology import Topology
from milodo.types import NodeTensor

HIDDEN = 20
"""Size of the LSTM cell and of the layers behind it (Appendix E.3)."""


REACH = 1.8
"""Of p_i with momentum and a lookahead of at most 1/2, in units of 1/L_i: any less than 2 is stable for quadratic f and r = 0."""
ANNEAL_AFTER = 500
"""Well-conditioned problems are solved by then to a gap of 1e-3 or better."""
Period = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Lookahead = Annotated[float, Field(ge=0, le=1)]
Spread = Annotated[float, Field(gt=1, allow_inf_nan=False)]


class Shape(Settings):
    """What a card and an experiment say alike."""

    every: Period = 1
    """The networks run in the first 20 iterations and in each `every`-th after them; their weights are kept in between."""
    inputs: Inputs = "raw"
    """'raw' as the paper has them; 'relative' to each node's curvature and first gradient, with gamma and the bounds of p_i in
    units of 1/L_i and those of p_ij,1 in units of L_i; 'scaled' by the first gradient alone (milodo/learned/weights.py)."""
    momentum: Share = 0.0
    """0 for the paper's rule, which has no momentum. Otherwise weights lie in the region of milodo/learned/region.py, activations
    have no meaning, and 1 - momentum is the smallest dual step p_i/D_i where p_i is largest, near which 1 - β_i may come."""
    reach: Positive = REACH
    """With momentum: p_i at most, in units of 1/L_i where inputs are relative."""
    spread: Spread = SPREAD
    """With momentum: how many times smaller than their largest values weights on edges may be."""
    deepest: Positive = DEEPEST
    """With momentum: the largest eigenvalue of the mixing, at most 1.3; easy problems want about 1."""
    steepest: Positive = STEEPEST
    """With momentum: the dual step p_i/D_i is at most so many times 1 - β_i, and at most half of it; easy problems, on which
    mixing is what takes time, want 3.6, the most, with deepest = 1."""
    lookahead: Lookahead = 0.5
    """With momentum: how far ahead the gradient is taken, as a share of the momentum; 1 is Nesterov's, 0 the heavy ball's."""
    anneal_after: Annotated[int, Field(ge=0)] = ANNEAL_AFTER
    """With momentum: the iteration from which 1 - β_i and the dual step fall as 1/k, for problems that are ill-conditioned; 0 for
    never."""
    schedule: Schedule | None = None
    """With momentum: factors of p_i and D_i over the iterations, so gamma and reach are those where `step` is 1."""
    local_steps: Period = 1
    """Gradients of one iteration; more buy rounds."""


class MiLoDoSettings(Shape):
    hidden: Width
    activations: ActivationsField
    seed: Seed
    """Of the first hidden states."""


class MiLoDoRecipe(Recipe, Shape):
    kind: Literal["milodo"] = "milodo"
    hidden: Width = HIDDEN
    activations: ActivationsField = BOUNDED
    initial: Literal["special", "random"] = "special"
    gamma: Positive = 0.03
    """Step size of the method that special initialisation mimics: LEPDO with constant weights and no momentum."""
    c_s: Positive = 1.0
    """Of its dual step, in units of Exact Diffusion's."""
    c_u: Positive = 1.0
    """Of its mixing, likewise."""
    alpha: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of its momentum, 1 - alpha, where there is one."""
    tied: bool = False
    """Whether all nodes begin with the same networks and learn from the mean of their gradients."""

    @property
    def from_scratch(self) -> bool:
        return self.initial == "random"

    def make(self, net: Network, d: int, seed: int) -> MiLoDo:
        shape = {name: getattr(self, name) for name in ("hidden", "activations", *Shape.model_fields)}
        optimizer = MiLoDo(net.topology, seed=seed, **shape)
        constants = self.model_dump(include={"gamma", "c_s", "c_u", "alpha"})
        if self.tied:
            _tie(optimizer)
        return optimizer if self.from_scratch else special_initialisation(optimizer, net, **constants)


class MiLoDo(Rule, PerNode):
    """Section 4 of the paper: LEPDO-1..3 (milodo/algorithms/rule.py) with p_i, p_ij,1 and p_ij,2 from networks
    (milodo/learned/per_node.py), whose hidden states are drawn from N(0, 1), keyed by node.

    The networks belong to nodes: a trained optimizer fits one topology only. Where degrees differ, the inputs of φ_S and φ_U are
    padded with zeros, and only there.

    The networks compute in the precision of their weights (fp32 as trained), the iterates in that of the problem: any p within
    its bounds has the same fixed points, so rounding p costs no accuracy, and p̃ travels in half the bytes. For the same reason p
    may be kept for a while (every = E). The paper has E = 1.
    """

    kind: ClassVar[str] = "milodo"
    Settings: ClassVar = MiLoDoSettings
    Recipe: ClassVar = MiLoDoRecipe
    label: ClassVar[str] = "MiLoDo"

    def __init__(self, graph: str | Topology, *, nodes: Sequence[int] | None = None, **settings: Any) -> None:
        """`settings` are those of MiLoDoSettings."""
        super().__init__(graph, nodes)
        self._settings = given = MiLoDoSettings.given(**{"hidden": HIDDEN, "activations": BOUNDED, "seed": 0} | settings)
        self.local_steps, self.lookahead = given.local_steps, given.lookahead
        n, width, hidden = len(self.nodes), self.padding.width, given.hidden
        if width == 0:
            raise InvalidInput(
                f"{self.topology} has no edges, and MiLoDo learns what to say over edges. Use a graph of at least two nodes."
            )
        self.region = None
        if given.momentum:
            gap = mixing_gap(self.topology, given.deepest) / given.spread
            self.region = Region(given.momentum, given.reach, given.spread, gap, given.deepest, given.steepest)
        self.phi_m = PerNodeLSTM(n, 2, 1, hidden) if self.region is None else PerNodeLSTM(n, COLUMNS, 2, hidden)
        self.phi_s = PerNodeLSTM(n, width, width, hidden)
        self.phi_u = PerNodeLSTM(n, width, width if self.region is None else 1, hidden)

    def sends(self, d: int) -> tuple[tuple[int, int], ...]:
        """z and p̃."""
        return ((d, 0), (d, 0))

    def settings(self) -> MiLoDoSettings:
        return self._settings

    @classmethod
    def build(cls, graph: Topology, settings: MiLoDoSettings, nodes: Sequence[int] | None = None) -> Self:
        return cls(graph, nodes=nodes, **{name: getattr(settings, name) for name in MiLoDoSettings.model_fields})

    @cached_property
    def weights(self) -> WeightProvider:
        given = self._settings
        networks = Networks(self.phi_m, self.phi_s, self.phi_u, self.padding, given.inputs, given.every, given.seed)
        if self.region is None:
            return LSTMWeights(networks, given.activations)
        return MomentumWeights(networks, self.region, Course(given.anneal_after, given.schedule))

    def check(self, problem: Problem, net: Network) -> None:
        super().check(problem, net)
        if self._settings.inputs == "relative" and not problem.knows_lipschitz:
            raise InvalidInput(
                "this MiLoDo measures by the curvature of each node's problem, which this problem does not know. "
                "Use one trained with inputs = 'raw', or give the problem its Lipschitz constant."
            )

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        self.check(problem, net)
        return super().init(x0, problem, net)


@torch.no_grad()
def _tie(optimizer: MiLoDo) -> None:
    """Nodes are many of a kind: what one learns serves all, and where final layers begin apart they stay as far apart."""
    for parameter in optimizer.parameters():
        parameter.copy_(parameter[:1].expand_as(parameter).clone())
        parameter.register_hook(lambda gradient: gradient.mean(0, keepdim=True).expand_as(gradient))


@torch.no_grad()
def special_initialisation(
    optimizer: MiLoDo, net: Network, gamma: float, c_s: float = 1.0, c_u: float = 1.0, alpha: float = 1.0
) -> MiLoDo:
    """Where training starts (Appendix E.1), unless at random, which is how a MiLoDo is made: final layers that ignore their input
    and put out p = γ, p̃_1 = c_s w/(2γ), p_2 = c_u w/2: LEPDO without momentum. With r = 0 and c_s = c_u = 1, the paper's choice,
    this is Exact Diffusion. An optimizer with momentum takes β = 1 - α, too, and constants within its region.

    Slots that are only padding get the weight of the node's first edge, which nobody reads.
    """
    if net.topology != optimizer.topology:
        raise InvalidInput(
            f"{optimizer.label} was made for {optimizer.topology}; its special weights need those of {net.topology}."
        )
    if optimizer.region is not None:
        return _within(optimizer.region, optimizer, net, gamma, c_s, c_u, alpha)
    if alpha != 1:
        raise InvalidInput(
            f"alpha = {alpha:g} is a momentum, which this MiLoDo does not have. Make it with momentum = 0.98, say."
        )
    activations = optimizer.settings().activations
    w = optimizer.padding.by_node(net.w64)  # [n, width, 1]
    w = torch.where(w == 0, w[:, :1], w).squeeze(-1)
    for what, network, activation, value in (
        ("p_i:", optimizer.phi_m, activations.m, torch.full((net.n, 1), float(gamma), dtype=torch.float64)),
        ("p_ij,1:", optimizer.phi_s, activations.s, c_s * w / (2 * gamma)),
        ("p_ij,2:", optimizer.phi_u, activations.u, c_u * w / 2),
    ):
        network.w_2.zero_()
        try:
            network.b_2.copy_(activation.inverse(value))
        except InvalidInput as error:
            raise InvalidInput(f"special initialisation with gamma = {gamma:g}: {what} {error}") from None
    return optimizer


def _within(region: Region, optimizer: MiLoDo, net: Network, gamma: float, c_s: float, c_u: float, alpha: float) -> MiLoDo:
    """The same with momentum: p = γ, D = γ c_u/c_s, p̃_1 = c_s w/(2γ) and β = 1 - α."""
    share = c_u * net.w64 / 2 / mixing_bound_of(net, region.deepest)
    s_p, s_beta, s_D, s_mixing = region.constants(gamma, alpha, c_s / c_u, share)
    places = (
        (optimizer.phi_m, torch.tensor([s_p, s_beta], dtype=torch.float64)),
        (optimizer.phi_s, optimizer.padding.by_node(s_mixing).squeeze(-1)),
        (optimizer.phi_u, torch.tensor([s_D], dtype=torch.float64)),
    )
    for network, s in places:
        network.w_2.zero_()
        network.b_2.copy_(before_sigmoid(s))
    return optimizer
