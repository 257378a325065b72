"""All a node can do to the world is `swap`; everything else here is local arithmetic on top of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, quoted, whole
from milodo.network import sums
from milodo.network.channels import Channel, Format, Outage
from milodo.network.requirement import Conditions, Requirement, check
from milodo.network.routes import Route, Routes
from milodo.network.traffic import Traffic
from milodo.network.wire import decoded, encoded, lengths, measured, size, varies
from milodo.topology import Mixing, Schedule, Topology, topology
from milodo.topology import schedule as made_schedule
from milodo.topology import weights as edge_weights
from milodo.topology.mixing import Uneven, uneven
from milodo.topology.schedule import Changing
from milodo.types import EdgeTensor, NodeTensor


class Exchanged(NamedTuple):
    """After one round: what we sent, row by row as the other end has it; what we received; over which arcs anything came."""

    sent: Tensor
    received: Tensor
    up: Tensor | None
    """[m, 1]; None where all links work."""
    by_edge: bool = False
    """Whether what nodes sent is there by arc: with links that fail each neighbour has something else."""


class Graph(NamedTuple):
    """Of one iteration."""

    open: Tensor
    w: Tensor
    mixing: Mixing


KINDS: dict[str, type] = {"format": Format, "outage": Outage, "schedule": Schedule}
"""Channels, by the place they have in a network."""


class Network(ABC):
    """The links of the nodes held here, as they are in one iteration.

    swap(e)_ij = e_ji            the only operation that crosses the boundary of a node
    spread(x)_ij = x_i           pull(x)_ij = x_j = swap(spread(x))
    diff(x)_ij = x_i - x_j       sum(e)_i = Σ_{j in N(i)} e_ij,   max(e)_i likewise
    lap(x)_i = Σ_j w_ij (x_i - x_j)         mix(x) = x - lap(x), the robust W x     (eq. robust-implementation)
    both(e)_ij = (e_ij + e_ji) / 2          the same at both ends of an edge        (eq. module-symmetric-composite)
    total(x)_i = Σ_j x_j                    over all nodes, by messages along a spanning tree: exact, on links that hold
    """

    real: ClassVar[bool] = False
    """Whether messages travel between processes, and so take the time that they take."""
    k = 0
    """The iteration whose links these are (`at_step`)."""
    round = 0
    """Rounds of that iteration so far, counted where they decide which links work."""
    format: Format | None = None
    outage: Outage | None = None
    schedule: Schedule | None = None
    open: Tensor | None = None
    """Which undirected edges this iteration's graph has [edges]; None for all of them."""

    def __init__(
        self,
        graph: str | Topology | nx.Graph,
        weights: str | np.ndarray = "metropolis",
        *,
        processes: Sequence[Sequence[int]] | None = None,
        rank: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        """`processes` says which nodes each process holds, all of them one process unless given; this is process `rank`."""
        self.topology = topology(graph)
        held = [range(self.topology.n)] if processes is None else processes
        self.nodes, everybody = tuple(held[rank]), sorted(node for part in held for node in part)
        if everybody != list(range(self.topology.n)) or list(self.nodes) != sorted(self.nodes):
            raise InvalidInput(f"processes {quoted(held)} must hold every node of {self.topology} once, each its own in order.")
        self.mixing = Mixing(self.topology, edge_weights(self.topology, weights))
        """W, and what every node knows of it before the first iteration."""
        self.traffic, self.checks = Traffic(), Traffic()  # of methods, and of what observers ask for
        self.routes = Routes(self.topology, held, rank, device)
        arcs = self.routes.arcs
        self.arcs = self.topology.arcs if processes is None else tuple(map(tuple, arcs.tolist()))
        """Directed edges (i, j) that leave a node held here: the rows of an EdgeTensor."""
        self.w64 = torch.from_numpy(self.mixing.w[self.routes.edge_of(arcs)]).to(device).unsqueeze(-1)
        """Mixing weights [m, 1] before rounding to dtype."""
        self.w = self.w64.to(dtype)
        """Mixing weights [m, 1]."""
        self._rule, self._graphs = weights, dict[int, Graph]()
        self._source = torch.from_numpy(self.routes.row[arcs[:, 0]]).to(device)
        degrees = np.array(self.topology.degrees)[list(self.nodes)]
        self._degree = int(degrees[0]) if (degrees == degrees[0]).all() else None

    @property
    def n(self) -> int:
        """Nodes held here."""
        return len(self.nodes)

    @property
    def contraction(self) -> float:
        """λ = max_{i >= 2} |λ_i(W)|."""
        return self.mixing.contraction

    @property
    def eigenvalues(self) -> np.ndarray:
        """Of I - W, beside the 0 of consensus, in ascending order; of small graphs only."""
        return self.mixing.eigenvalues

    @property
    def dtype(self) -> torch.dtype:
        return self.w.dtype

    @property
    def device(self) -> torch.device:
        return self.w.device

    def at_step(self, k: int) -> Network:
        """The links of iteration k: what is drawn by the round is drawn alike, whatever ran before on this network."""
        return self if self.holds else self._view(k)

    def _view(self, k: int) -> Self:
        view = copy(self)
        view.k, view.round = k, 0
        if self.schedule is not None:
            view.open, view.w, view.mixing = self._graph(self.schedule, k)
        return view

    @property
    def conditions(self) -> Conditions:
        """What requirements are checked against."""
        return Conditions(0.0 if self.outage is None else self.outage.p, self.schedule, bool(self.format and self.format.sparse))

    @property
    def holds(self) -> bool:
        """Whether every link works in every round."""
        return self.outage is None and self.schedule is None

    def _graph(self, schedule: Schedule, k: int) -> Graph:
        """That of iteration k."""
        place = k if schedule.period is None else k % schedule.period
        if place not in self._graphs:
            mixing = schedule.mixing(k, self._rule)
            w = torch.from_numpy(mixing.w[self.routes.edge_of(self.routes.arcs)]).to(self.device, self.dtype).unsqueeze(-1)
            if schedule.period is None:
                self._graphs.clear()  # it will not come again
            self._graphs[place] = Graph(torch.from_numpy(mixing.w > 0).to(self.device), w, mixing)
        return self._graphs[place]

    def through(self, *channels: Channel) -> Self:
        """The same nodes, links and counters, with messages that go through these channels too; their order does not matter."""
        net = copy(self)
        for channel in channels:
            kind = next((kind for kind, of in KINDS.items() if isinstance(channel, of)), None)
            if kind is None:
                raise InvalidInput(f"{quoted(channel)} is no channel. Give Outage(p), Cast(dtype), TopK(fraction) or a schedule.")
            if getattr(net, kind) is not None:
                raise InvalidInput(
                    f"messages go through {getattr(net, kind)} already, and {channel} is another {kind}. Give one."
                )
            setattr(net, kind, channel)
            if isinstance(channel, Schedule):
                made_schedule(channel, self.topology)
                net._graphs = {}
                net.open, net.w, _ = net._graph(channel, 1)  # until `at_step` says another iteration
                net.mixing = Changing(self.topology, self.mixing.w, channel)
        return net

    def weighing(self, tau: tuple[float, ...]) -> Self:
        """The same, mixing as suits nodes whose steps are τ_i times as long as others' (`Uneven`)."""
        check("a step size of each node's own", {Requirement.FIXED_GRAPH}, self.conditions, "Give one step for all.")
        net = copy(self)
        net.mixing = uneven(self.mixing, tau)
        net.w = _weights(net.mixing, self.routes, self.dtype, self.device)
        return net

    @abstractmethod
    def _carry(self, message: Tensor, route: Route, up: Tensor | None = None, *, varies: bool = False) -> Tensor:
        """The transport: what arrives of a message along a route, over the edges that are up (all of them unless said). Where
        messages vary in length, zeros behind their last byte do not travel."""

    def working(self) -> Tensor | None:
        """Which undirected edges work in the next round [edges]; None for all of them."""
        if self.outage is None:
            return self.open
        drawn = self.outage.up(len(self.topology.edges), self.k, self.round).to(self.device)
        self.round += 1
        return drawn if self.open is None else drawn & self.open

    def exchanged(self, x: Tensor, *, by_node: bool = True) -> Exchanged:
        """Every node sends a row to all its neighbours, or each neighbour a row of its own; what a link that is down does not
        carry counts as equal to what was sent. One round."""
        route, up = self.routes.of_nodes if by_node else self.routes.of_arcs, self.working()
        # Weights, which travel by arc, are never made sparse.
        form = self.format if self.format is not None and (by_node or not self.format.sparse) else None
        if torch.is_grad_enabled() and x.requires_grad:
            self._count(route, x, form, up=up)
            sent, sizes = measured(form, x, 0)
            if sizes is not None:
                self._weigh(sizes, route, up)
            received = self._differentiably(sent, by_node)
        else:
            sent, received = self.send(x, route, form, up=up)
        if up is None:
            return Exchanged(sent, received, None)
        up = up[route.edges].unsqueeze(-1)
        return Exchanged(sent, torch.where(up, received, self.spread(sent) if by_node else sent), up)

    def send(
        self, x: Tensor, route: Route, form: Format | None, exact: int = 0, up: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The one way to send: shortened, counted and carried. What we send as the other ends understand it, and what we receive;
        the last `exact` columns are numbers that must arrive as they are. One round."""
        self._count(route, x, form, exact, up)
        return self.say(x, route, form, exact, up)

    def as_it_is(self, message: Tensor, route: Route, up: Tensor | None = None) -> Tensor:
        """What arrives of a message that nothing shortens or remembers, over the edges that are up. One round."""
        self._count(route, message, None, 0, up)
        return self._carry(message, route, up)

    def say(self, x: Tensor, route: Route, form: Format | None, exact: int, up: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`send`, of what was counted before."""
        if form is None:
            return x, self._carry(x, route, up)
        message = encoded(form, x, exact)
        if form.varies:
            self._weigh(lengths(message), route, up)
        arrived = self._carry(message, route, up, varies=form.varies)
        said, heard = (decoded(form, part, x.shape[-1], exact, x) for part in (message, arrived))
        return said, heard

    def _differentiably(self, x: Tensor, by_node: bool) -> EdgeTensor:
        return _Swap.apply(self.spread(x) if by_node else x, self)

    def _count(self, route: Route, x: Tensor, form: Format | None, exact: int = 0, up: Tensor | None = None) -> None:
        sent, d = len(route.sent) if up is None else int(up[route.sent].sum()), x.shape[-1]
        numbers = d if form is None else form.numbers(d - exact) + exact
        self.traffic.count(messages=sent, numbers=numbers, size=size(form, d, exact, x))

    def _weigh(self, sizes: Tensor, route: Route, up: Tensor | None = None) -> None:
        """Counts the bytes of messages that vary in length, by rows of the message [*batch, rows]."""
        each = sizes.index_select(-1, route.leaving)
        self.traffic.weigh((each if up is None else each * up[route.sent]).sum(-1))

    def swap(self, e: EdgeTensor) -> EdgeTensor:
        """Send e_ij to j, receive e_ji. One round."""
        return self.exchanged(e, by_node=False).received

    def spread(self, x: NodeTensor) -> EdgeTensor:
        return x.index_select(-2, self._source)

    def pull(self, x: NodeTensor) -> EdgeTensor:
        """x_j for every neighbour j. One round."""
        return self.exchanged(x).received

    def diff(self, x: NodeTensor) -> EdgeTensor:
        """x_i - x_j for every neighbour j. One round."""
        return self.diff_of(self.exchanged(x))

    def diff_of(self, exchanged: Exchanged) -> EdgeTensor:
        sent, received, _, by_edge = exchanged
        if by_edge:
            return sent - received
        if self._degree:  # broadcasting x_i over its edges saves the gather of spread
            return (sent.unsqueeze(-2) - received.unflatten(-2, (self.n, self._degree))).flatten(-3, -2)
        return self.spread(sent) - received

    def both(self, e: EdgeTensor, *, smaller: bool = False) -> EdgeTensor:
        """(e_ij + e_ji) / 2, or the smaller of them, in which both ends of an edge agree; 0 where they could not. One round."""
        return self.both_of(self.exchanged(e, by_node=False), smaller=smaller)

    def both_of(self, exchanged: Exchanged, *, smaller: bool) -> EdgeTensor:
        sent, received, up, _ = exchanged
        agreed = torch.minimum(sent, received) if smaller else (sent + received) / 2
        return agreed if up is None else torch.where(up, agreed, torch.zeros_like(agreed))

    def sum(self, e: EdgeTensor) -> NodeTensor:
        if self._degree:
            return e.unflatten(-2, (self.n, self._degree)).sum(-2)
        zero = e.new_zeros((*e.shape[:-2], self.n, e.shape[-1]))
        return zero.index_add(-2, self._source, e)

    def max(self, e: EdgeTensor) -> NodeTensor:
        """The largest e_ij over all neighbours j; -∞ at a node that has none."""
        least = e.new_full((*e.shape[:-2], self.n, e.shape[-1]), -torch.inf)
        return least.scatter_reduce(-2, self._source.unsqueeze(-1).expand(e.shape), e, "amax")

    def lap(self, x: NodeTensor) -> NodeTensor:
        """Σ_j w_ij (x_i - x_j). One round."""
        return self.lap_of(x, self.exchanged(x))

    def lap_of(self, x: NodeTensor, exchanged: Exchanged) -> NodeTensor:
        if self._degree:  # one small product a node, without storing w_ij (x_i - x_j)
            w = self.w.view(self.n, 1, self._degree)
            return (w @ self.diff_of(exchanged).unflatten(-2, (self.n, self._degree))).squeeze(-2)
        return self.sum(self.w * self.diff_of(exchanged))

    def mix(self, x: NodeTensor) -> NodeTensor:
        """W x in the form that stays row-stochastic in any precision (eq. robust-implementation). One round."""
        return self.mix_of(x, self.exchanged(x))

    def mix_of(self, x: NodeTensor, exchanged: Exchanged) -> NodeTensor:
        return x - self.lap_of(x, exchanged)

    def total(self, x: NodeTensor, exact: int = 0) -> NodeTensor:
        """Σ_j x_j over all nodes, the very same numbers at every node.

        Partial sums go up the spanning tree and the total comes down: one message up and one down each edge of the tree, in as
        many rounds as the tree is high, twice. The last `exact` columns are added up as they are, whatever the format.
        """
        return sums.over_tree(self, x, exact)

    def total_by_all(self, x: NodeTensor, exact: int = 0) -> NodeTensor:
        """Σ_j x_j over all nodes like `total`, where everybody tells everybody: half the rounds on graphs without a middle, such
        as rings, and n/2 times as many messages. What a node says is passed on as it is, and added up in one order by all."""
        return sums.by_all(self, x, exact)

    def begin_sum(self, what: str, hops: Sequence[Route], x: NodeTensor, form: Format | None, exact: int) -> None:
        """Refuses links that cannot carry a sum, and counts its rounds."""
        check(what, sums.REQUIRES, self.conditions)
        for hop in hops:
            self._count(hop, x, form, exact)

    def scatter(self, x: NodeTensor, form: Format | None, exact: int) -> NodeTensor:
        """What the root has, down to all, of rounds that were counted before."""
        return sums.scattered(self, x, form, exact)

    def told(self, x: NodeTensor, form: Format | None, exact: int) -> Tensor:
        """What every node says, as all understand it [*batch, nodes of the whole network, d]; counted before."""
        return sums.told(self, x, form, exact)

    def pass_on(self, message: Tensor, hop: Route, form: Format | None) -> Tensor:
        """What arrives of messages that go on as they came; counted before."""
        if varies(form):
            self._weigh(lengths(message), hop)
        return self._carry(message, hop, varies=varies(form))

    def randn(self, *shape: int, seed: int) -> Tensor:
        """Standard normal numbers [n, *shape] that depend on the seed and the node's id, not on the process that holds it."""
        seed = whole("seed", seed)
        rows = [np.random.default_rng([seed, node]).standard_normal(shape) for node in self.nodes]
        return torch.from_numpy(np.stack(rows)).to(self.dtype).to(self.device)


@lru_cache(maxsize=64)
def _weights(mixing: Uneven, routes: Routes, dtype: torch.dtype, device: torch.device) -> Tensor:
    """a_ij on the arcs held here [m, 1]."""
    arcs = routes.arcs
    a = mixing.over(arcs[:, 0], arcs[:, 1], mixing.w[routes.edge_of(arcs)])
    return torch.from_numpy(a).to(device, dtype).unsqueeze(-1)


class _Swap(torch.autograd.Function):
    """swap is a symmetric permutation, so it is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, e: Tensor, net: Network) -> Tensor:
        ctx.net = net
        return net._carry(e, net.routes.of_arcs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Swap.apply(grads[0], ctx.net), None
