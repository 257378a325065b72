"""Who sends what to whom in one round, as one process sees it: every verb of a network is a round along a route."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from milodo.network.frames import DOWN, EDGES, FLOOD, NODES, UP
from milodo.topology import Topology


@dataclass(frozen=True)
class Link:
    """What goes to and comes from one other process; both ends have it in the order of receivers, then of senders."""

    rank: int
    going: Tensor
    """Rows of the message."""
    coming: Tensor
    """Places among the arrivals."""
    going_edges: Tensor
    coming_edges: Tensor
    """The undirected edges they take."""
    buffers: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def over(self, up: Tensor) -> Link:
        """The same, over the edges that are up."""
        goes, comes = up[self.going_edges], up[self.coming_edges]
        edges = (self.going_edges[goes], self.coming_edges[comes])
        return Link(self.rank, self.going[goes], self.coming[comes], *edges, self.buffers)

    def buffer(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """Contiguous memory to send from and to receive into, made once for a shape and a type."""
        batch, width = message.shape[:-2], message.shape[-1]
        key = (batch, len(self.going), len(self.coming), width, message.dtype)
        if key not in self.buffers:
            sizes = (len(self.going), len(self.coming))
            self.buffers[key] = tuple(message.new_empty(*batch, size, width) for size in sizes)  # type: ignore[assignment]
        return self.buffers[key]


@dataclass(frozen=True)
class Route:
    """One round. Rows of a message are nodes, or arcs (i, j), that are held here; what arrives is sorted by receiver and sender.

    Where every node hears from every neighbour, arrival (i, j) is what j sent to i: a row of an EdgeTensor.
    """

    rows: Tensor
    """Of the message: what each arrival is that was sent from here."""
    places: Tensor | None
    """Of those among the arrivals; None where all were."""
    links: tuple[Link, ...]
    arrivals: int
    receivers: Tensor
    """The row in a NodeTensor of who hears, for each arrival."""
    edges: Tensor
    """The undirected edge each arrival took."""
    sent: Tensor
    """The undirected edge of every message that leaves a node held here."""
    leaving: Tensor
    """And its row of the message."""
    senders: Tensor
    """The row in a NodeTensor of each node held here that sends; along the tree the message has these rows and no others."""
    kind: str
    """What its messages are, for who checks on arrival."""


class Routes:
    """Those of the nodes held by one of several processes; made when they are first needed, shared by all views of a network."""

    def __init__(self, topology: Topology, processes: Sequence[Sequence[int]], rank: int, device: torch.device | str) -> None:
        self.topology, self.rank, self.device = topology, rank, device
        self.home = np.empty(topology.n, dtype=np.int64)
        for process, nodes in enumerate(processes):
            self.home[list(nodes)] = process
        self.row = np.full(topology.n, -1)
        self.row[list(processes[rank])] = np.arange(len(processes[rank]))
        pairs = topology.ends.T
        self._pairs = pairs[:, 0] * topology.n + pairs[:, 1]  # sorted, as the edges are
        arcs = np.concatenate((pairs, pairs[:, ::-1]))
        arcs = arcs[self.home[arcs[:, 0]] == rank]
        self.arcs = arcs[np.lexsort((arcs[:, 1], arcs[:, 0]))]
        """Directed edges (i, j) that leave a node held here [m, 2], sorted."""

    def edge_of(self, arcs: np.ndarray) -> np.ndarray:
        """The place of undirected edges in Topology.edges."""
        return np.searchsorted(self._pairs, arcs.min(-1) * self.topology.n + arcs.max(-1))

    @cached_property
    def of_nodes(self) -> Route:
        """Every node sends one row to all its neighbours."""
        return self._route(self._all, NODES, by_arc=False)

    @cached_property
    def of_arcs(self) -> Route:
        """Every node sends each neighbour a row of its own."""
        return self._route(self._all, EDGES, by_arc=True)

    @cached_property
    def up(self) -> list[Route]:
        """A round each: from the deepest nodes of the spanning tree to the root."""
        tree = self.topology.tree
        levels = [tree.level(depth) for depth in range(tree.height, 0, -1)]
        return [self._along([(node, tree.parent[node]) for node in level], UP) for level in levels]

    @cached_property
    def down(self) -> list[Route]:
        """And back."""
        tree = self.topology.tree
        levels = [tree.level(depth) for depth in range(1, tree.height + 1)]
        return [self._along([(tree.parent[node], node) for node in level], DOWN) for level in levels]

    @cached_property
    def flood(self) -> list[Route]:
        """A round each, by which everybody hears from everybody. The message is all that is known here: row i·n + j is what the
        i-th node held here has of node j; `receivers` says which of these rows an arrival is."""
        n, found = self.topology.n, []
        for hops in self.topology.flood.rounds:
            told = np.array(hops)
            told = told[np.lexsort((told[:, 0], told[:, 1], told[:, 2]))]  # by receiver, sender, whose it is
            whose, arcs = told[:, 0], told[:, 1:]
            found.append(self._between(arcs, self.row[arcs[:, 0]] * n + whose, self.row[arcs[:, 1]] * n + whose, FLOOD))
        return found

    @property
    def _all(self) -> np.ndarray:
        """Arcs that leave or reach a node held here."""
        back = self.arcs[:, ::-1]
        return np.concatenate((self.arcs, back[self.home[back[:, 0]] != self.rank]))

    def _along(self, arcs: list[tuple[int, int]], kind: str) -> Route:
        """Some nodes send each a row; the others are not in the message."""
        return self._route(np.array(arcs), kind, by_arc=False, some=True)

    def _route(self, arcs: np.ndarray, kind: str, *, by_arc: bool, some: bool = False) -> Route:
        arcs = arcs[np.lexsort((arcs[:, 0], arcs[:, 1]))]  # by receiver, then sender
        leaving = self.home[arcs[:, 0]] == self.rank
        if by_arc:
            keys = self.arcs[:, 0] * self.topology.n + self.arcs[:, 1]
            rows = np.searchsorted(keys, arcs[:, 0] * self.topology.n + arcs[:, 1])
        else:
            rows = self.row[arcs[:, 0]]
        senders = np.unique(self.row[arcs[leaving, 0]])
        if some:
            rows = np.searchsorted(senders, rows)
        return self._between(arcs, rows, self.row[arcs[:, 1]], kind, senders)

    def _between(
        self, arcs: np.ndarray, rows: np.ndarray, receivers: np.ndarray, kind: str, senders: np.ndarray | None = None
    ) -> Route:
        """Along these arcs, sorted by receiver: of each the row of the message that takes it, and where it arrives."""
        source, target = self.home[arcs[:, 0]], self.home[arcs[:, 1]]
        leaving, arriving, edges = source == self.rank, target == self.rank, self.edge_of(arcs)
        place, inside, links = np.cumsum(arriving) - 1, leaving & arriving, list[Link]()
        for rank in sorted({*source[arriving].tolist(), *target[leaving].tolist()} - {self.rank}):
            to, by = leaving & (target == rank), arriving & (source == rank)
            going, coming, out, back = map(self._tensor, (rows[to], place[by], edges[to], edges[by]))
            links.append(Link(rank, going, coming, out, back))
        places = None if bool(inside.sum() == arriving.sum()) else self._tensor(place[inside])
        heard, taken, sent, out = map(self._tensor, (receivers[arriving], edges[arriving], edges[leaving], rows[leaving]))
        sending = self._tensor(np.zeros(0) if senders is None else senders)
        return Route(
            self._tensor(rows[inside]), places, tuple(links), int(arriving.sum()), heard, taken, sent, out, sending, kind
        )

    def _tensor(self, numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(numbers), dtype=torch.long, device=self.device)
