"""All a node can do to the world is `swap`; everything else here is local arithmetic on top of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, quoted, whole
from milodo.network.channels import Channel, Format, Outage
from milodo.network.memory import Memory, Slot, beside, decoded, encoded, lengths, plus, size, sizes, understood, varies
from milodo.network.routes import Route, Routes
from milodo.network.sums import Sums
from milodo.network.traffic import Traffic
from milodo.topology import Mixing, Schedule, Topology, topology
from milodo.topology import schedule as made_schedule
from milodo.topology import weights as edge_weights
from milodo.topology.mixing import Uneven, uneven
from milodo.topology.schedule import Changing
from milodo.types import EdgeTensor, NodeTensor


class Exchanged(NamedTuple):
    """After one round: what we said, row by row as the other end understood it; what we heard; over which arcs anything came."""

    said: Tensor
    heard: Tensor
    up: Tensor | None
    """[m, 1]; None where all links work."""
    each: bool = False
    """Whether what nodes said is there by arc: links that fail make each neighbour understand something else."""


class Graph(NamedTuple):
    """Of one iteration."""

    open: Tensor
    w: Tensor
    mixing: Mixing


KINDS: dict[str, type] = {"format": Format, "outage": Outage, "schedule": Schedule}
"""Channels, by the place they have in a network."""


class Network(Sums):
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
    memory: Memory | None = None
    """Of one iteration of a method that remembers what was said (`remembering`)."""

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

    def remembering(self, memory: Memory) -> Self:
        """The same, where only differences from what this memory holds are sent; for one iteration."""
        if self.format is not None:
            raise InvalidInput(
                f"messages are shortened to {self.format} already, and what is remembered would be in {memory.form}. "
                "Give one of them: messages of the network, or of the method."
            )
        net = copy(self)
        net.memory = memory
        return net

    def weighing(self, tau: tuple[float, ...]) -> Self:
        """The same, mixing as suits nodes whose steps are τ_i times as long as others' (`Uneven`)."""
        if self.schedule is not None:
            raise InvalidInput(
                f"steps of each node's own need one fixed graph, and it changes with the iteration ({self.schedule}). Give one "
                "step for all."
            )
        net = copy(self)
        net.mixing = uneven(self.mixing, tau)
        net.w = _weights(net.mixing, self.routes, self.dtype, self.device)
        return net

    @abstractmethod
    def _carry(self, message: Tensor, route: Route, up: Tensor | None = None, *, varies: bool = False) -> Tensor:
        """The transport: what arrives of a message along a route, over the edges that are up (all of them unless said). Where
        messages vary in length, zeros behind their last byte do not travel."""

    def working(self) -> Tensor | None:
        if self.outage is None:
            return self.open
        drawn = self.outage.up(len(self.topology.edges), self.k, self.round).to(self.device)
        self.round += 1
        return drawn if self.open is None else drawn & self.open

    def _exchange(self, x: Tensor, route: Route, exact: int = 0) -> Exchanged:
        """The one way to send: shortened, counted, carried, and not heard where a link is down. One round.

        The last `exact` columns are numbers that must arrive as they are, whatever the format.
        """
        up = self.working()
        if self.memory is not None:
            return self._remembered(x, route, up, exact, self.memory)
        by_node, learns = route is self.routes.of_nodes, torch.is_grad_enabled() and x.requires_grad
        # Weights, which travel by arc, are never made sparse.
        form = self.format if self.format is not None and (by_node or not self.format.sparse) else None
        self._count(route, x, form, exact, up)
        if learns:
            said = x if form is None else understood(form, x, exact)
            if varies(form):
                self._weigh(sizes(form, x.detach(), exact), route, up)
            heard = self._differentiably(said, by_node)
        else:
            said, heard = self._say(x, route, form, exact, up)
        if up is None:
            return Exchanged(said, heard, None)
        up = up[route.edges].unsqueeze(-1)
        return Exchanged(said, torch.where(up, heard, self.spread(said) if by_node else said), up)

    def _remembered(self, x: Tensor, route: Route, up: Tensor | None, exact: int, memory: Memory) -> Exchanged:
        """The same, where only the difference from what was said before is sent; what is used is what both ends have of it."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise InvalidInput("messages with a memory cannot be learned through. Train without them, and run with them.")
        each = not self.holds and route is self.routes.of_nodes
        if each:  # what one link carried another did not: a replica for each of them
            x, route = self.spread(x), self.routes.of_arcs
        d = x.shape[-1] - exact
        slot = memory.recall(x, x.shape[-2], route.arrivals, d, "nodes" if route is self.routes.of_nodes else "arcs")
        assert slot.heard is not None
        if memory.rehearsing:
            memory.keep(slot)
            nothing = slot.heard.new_zeros(*slot.heard.shape[:-1], x.shape[-1])
            return Exchanged(beside(slot.said, x, d), nothing, None, each)
        self._count(route, x, memory.form, exact, up)
        said, heard = self._say(beside(x[..., :d] - slot.said, x, d), route, memory.form, exact, up)
        said, heard = plus(slot.said, said, d), plus(slot.heard, heard, d)
        new_said, new_heard = said[..., :d], heard[..., :d]
        if up is None:
            memory.keep(Slot(new_said, new_heard, slot.route))
            return Exchanged(said, heard, None, each)
        # Where nothing arrived both ends go on with what they had: their replicas stay equal.
        up = up[route.edges].unsqueeze(-1)
        memory.keep(Slot(torch.where(up, new_said, slot.said), torch.where(up, new_heard, slot.heard), slot.route))
        return Exchanged(said, torch.where(up, heard, said), up, each)

    def _say(self, x: Tensor, route: Route, form: Format | None, exact: int, up: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What we say as the other ends understand it, and what we hear."""
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
        return self._exchange(e, self.routes.of_arcs).heard

    def spread(self, x: NodeTensor) -> EdgeTensor:
        return x.index_select(-2, self._source)

    def pull(self, x: NodeTensor) -> EdgeTensor:
        """x_j for every neighbour j. One round."""
        return self._exchange(x, self.routes.of_nodes).heard

    def diff(self, x: NodeTensor, exact: int = 0) -> EdgeTensor:
        """x_i - x_j for every neighbour j. One round."""
        said, heard, _, each = self._exchange(x, self.routes.of_nodes, exact)
        if each:
            return said - heard
        if self._degree:  # broadcasting x_i over its edges saves the gather of spread
            return (said.unsqueeze(-2) - heard.unflatten(-2, (self.n, self._degree))).flatten(-3, -2)
        return self.spread(said) - heard

    def both(self, e: EdgeTensor, *, smaller: bool = False) -> EdgeTensor:
        """(e_ij + e_ji) / 2, or the smaller of them, in which both ends of an edge agree; 0 where they could not. One round."""
        said, heard, up, _ = self._exchange(e, self.routes.of_arcs)
        agreed = torch.minimum(said, heard) if smaller else (said + heard) / 2
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
        if self._degree:  # one small product a node, without storing w_ij (x_i - x_j)
            w = self.w.view(self.n, 1, self._degree)
            return (w @ self.diff(x).unflatten(-2, (self.n, self._degree))).squeeze(-2)
        return self.sum(self.w * self.diff(x))

    def mix(self, x: NodeTensor) -> NodeTensor:
        """W x in the form that stays row-stochastic in any precision (eq. robust-implementation). One round."""
        return x - self.lap(x)

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
