"""The real thing: nodes in different processes, and a message for every neighbour."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import networkx as nx
import torch
import torch.distributed as dist
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network.base import Network
from milodo.network.hops import Hop
from milodo.topology import Topology, topology
from milodo.types import EdgeTensor, NodeTensor

TIMEOUT = 60.0
"""Seconds to wait for a neighbour before it counts as lost."""


class PeerLost(Exception):
    """A neighbour did not answer."""

    def __init__(self, rank: int, who: str, why: str, held: Sequence[Sequence[int]]) -> None:
        super().__init__(f"{who} did not answer {why}")
        self.rank, self.who, self.why, self.held = rank, who, why, held

    def because_of(self, rank: int) -> str:
        """The same, where it is known that the neighbour only waited for another process."""
        return f"{called(self.held[rank], rank)} hangs or has ended, and so {self.who} did not answer {self.why}"


def place(n: int, processes: int) -> list[tuple[int, ...]]:
    """Nodes of every process, in order and as evenly as possible.

    >>> place(5, 2)
    [(0, 1, 2), (3, 4)]
    """
    if not 1 <= processes <= n:
        raise InvalidInput(
            f"{processes} processes for {n} nodes: every process holds at least one node. Start between 1 and {n} processes."
        )
    share, rest = divmod(n, processes)
    starts = [rank * share + min(rank, rest) for rank in range(processes + 1)]
    return [tuple(range(a, b)) for a, b in itertools.pairwise(starts)]


def called(nodes: Sequence[int], rank: int) -> str:
    """How messages to people call a process."""
    return f"node {nodes[0]} (rank {rank})" if len(nodes) == 1 else f"nodes {nodes[0]} to {nodes[-1]} (rank {rank})"


class Peers:
    """Messages between processes that hold neighbouring nodes, and between no others.

    Every receive and send of an exchange is posted before any is waited for: nobody waits for a message that is not on its
    way, so no graph can deadlock.
    """

    def __init__(self, graph: Topology, held: Sequence[Sequence[int]], timeout: float) -> None:
        self.held, self.timeout = [tuple(part) for part in held], timedelta(seconds=timeout)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        if len(self.held) != self.world:
            raise InvalidInput(
                f"{graph} on {len(self.held)} processes, but {self.world} were started. Start {len(self.held)} (WORLD_SIZE)."
            )
        home = {node: rank for rank, part in enumerate(self.held) for node in part}
        self.home = home
        self.graph = nx.Graph([(home[i], home[j]) for i, j in graph.edges if home[i] != home[j]])
        """Processes, joined where they hold neighbouring nodes."""
        self.graph.add_nodes_from(range(self.world))
        self.doing = "at the start"
        """Where we are, for messages to people."""

    @property
    def neighbours(self) -> list[int]:
        return sorted(self.graph[self.rank])

    def exchange(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> list[Any]:
        """Posts all of them; the tensors must stay untouched until `wait` returns."""
        operations = [dist.P2POp(dist.irecv, buffer, rank) for rank, buffer in receives]
        operations += [dist.P2POp(dist.isend, buffer, rank) for rank, buffer in sends]
        ranks = [rank for rank, _ in (*receives, *sends)]
        if not operations:
            return []
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:  # a connection that is known to be broken fails at once
            raise self._lost(ranks, error) from error
        return list(zip([[rank] for rank in ranks] if len(works) == len(ranks) else [ranks] * len(works), works, strict=True))

    def wait(self, works: Sequence[Any]) -> None:
        for ranks, work in works:
            try:
                work.wait(self.timeout)
            except RuntimeError as error:
                raise self._lost(ranks, error) from error

    def _lost(self, ranks: Sequence[int], error: RuntimeError) -> PeerLost:
        seconds = self.timeout.total_seconds()
        slow = "imed out" in str(error) or "imeout" in str(error)
        why = (
            f"within {seconds:g} s ({self.doing}): it hangs, or is slower than a timeout of {seconds:g} s allows"
            if slow
            else f"({self.doing}): its process has ended, or the network between us is down"
        )
        return PeerLost(ranks[0], " or ".join(called(self.held[rank], rank) for rank in sorted(set(ranks))), why, self.held)


@dataclass
class Link:
    """All edges between the nodes held here and those of one other process: one message each way."""

    rank: int
    rows: Tensor
    """Rows (i, j) of an EdgeTensor that go there, sorted by (i, j)."""
    sources: Tensor
    """The row of i in a NodeTensor, for each of them."""
    targets: Tensor
    """Rows (i, j) that what comes from there fills; it arrives sorted by (j, i)."""
    buffers: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def buffer(self, e: Tensor) -> tuple[Tensor, Tensor]:
        """Contiguous memory to send from and to receive into, made once for a shape and a type."""
        key = (e.shape[:-2], e.shape[-1], e.dtype)
        if key not in self.buffers:
            shape = (*e.shape[:-2], len(self.rows), e.shape[-1])
            self.buffers[key] = (e.new_empty(shape), e.new_empty(shape))
        return self.buffers[key]


@dataclass(frozen=True)
class HopBetweenProcesses(Hop):
    """A round of a sum over the tree, with what goes to and comes from other processes."""

    inside: Tensor
    """Which of the arcs that end here begin here."""
    links: list[tuple[int, Tensor, Tensor]]
    """(rank, rows of x that go there, arcs that end here and begin there)."""


class DistributedNetwork(Network):
    """The nodes of this process. torch.distributed must be initialised, by every process alike (milodo.runtime does)."""

    def __init__(
        self,
        graph: str | Topology | nx.Graph,
        *args: Any,
        processes: Sequence[Sequence[int]] | None = None,
        timeout: float = TIMEOUT,
        **kwargs: Any,
    ) -> None:
        """`processes` says which nodes each process holds; as evenly as possible unless given."""
        graph = topology(graph)
        self.peers = Peers(graph, processes or place(graph.n, dist.get_world_size()), timeout)
        super().__init__(graph, *args, nodes=self.peers.held[self.peers.rank], **kwargs)
        home, here = self.peers.home, self.peers.rank
        row = {arc: k for k, arc in enumerate(self.arcs)}
        inside = [arc for arc in self.arcs if home[arc[1]] == here]
        self._inside = self._index([row[arc] for arc in inside])
        self._inside_reverse = self._index([row[j, i] for i, j in inside])
        self._inside_target = self._index([self.nodes.index(j) for _, j in inside])
        self.links = []
        for rank in self.peers.neighbours:
            going = [(i, j) for i, j in self.arcs if home[j] == rank]
            coming = sorted(going, key=lambda arc: (arc[1], arc[0]))
            sources = self._index([self.nodes.index(i) for i, _ in going])
            self.links.append(
                Link(rank, self._index([row[arc] for arc in going]), sources, self._index([row[arc] for arc in coming]))
            )

    def _index(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self.device)

    def _permute(self, e: EdgeTensor) -> EdgeTensor:
        return self._exchange(e, [link.rows for link in self.links], self._inside_reverse)

    def _fetch(self, x: NodeTensor) -> EdgeTensor:
        if torch.is_grad_enabled() and x.requires_grad:
            return super()._fetch(x)
        return self._exchange(x, [link.sources for link in self.links], self._inside_target)

    def _hop(self, arcs: list[tuple[int, int]]) -> Hop:
        home, here, row = self.peers.home, self.peers.rank, {node: k for k, node in enumerate(self.nodes)}
        ending = [arc for arc in arcs if home[arc[1]] == here]
        links = []
        for rank in self.peers.neighbours:
            going = [row[i] for i, j in arcs if home[i] == here and home[j] == rank]
            coming = [k for k, (i, _) in enumerate(ending) if home[i] == rank]
            if going or coming:
                links.append((rank, self._index(going), self._index(coming)))
        inside = self._index([k for k, (i, _) in enumerate(ending) if home[i] == here])
        return HopBetweenProcesses(**vars(super()._hop(arcs)), inside=inside, links=links)

    def _relay(self, x: NodeTensor, hop: Hop) -> Tensor:
        assert isinstance(hop, HopBetweenProcesses)
        x, shape = x.detach(), x.shape
        out = x.new_empty(*shape[:-2], len(hop.targets), shape[-1])
        out.index_copy_(-2, hop.inside, x.index_select(-2, hop.sources))
        sends = [(rank, x.index_select(-2, going).contiguous()) for rank, going, _ in hop.links if len(going)]
        from_others = [(rank, coming) for rank, _, coming in hop.links if len(coming)]
        arriving = [(rank, coming, x.new_empty(*shape[:-2], len(coming), shape[-1])) for rank, coming in from_others]
        self.peers.doing = f"in iteration {self.iteration}, round {self.traffic.rounds}, in a sum over the tree"
        self.peers.wait(self.peers.exchange(sends, [(rank, buffer) for rank, _, buffer in arriving]))
        for _, coming, buffer in arriving:
            out.index_copy_(-2, coming, buffer)
        return out

    def _exchange(self, x: Tensor, rows: list[Tensor], inside: Tensor) -> EdgeTensor:
        """Sends every link its rows of x and puts what arrives where it belongs; edges inside this process are local."""
        sends, receives = [], []
        for link, these in zip(self.links, rows, strict=True):
            leaving, arriving = link.buffer(x)
            torch.index_select(x.detach(), -2, these, out=leaving)
            sends.append((link.rank, leaving))
            receives.append((link.rank, arriving))
        self.peers.doing = f"in iteration {self.iteration}, round {self.traffic.rounds}"
        works = self.peers.exchange(sends, receives)
        out = x.new_empty(*x.shape[:-2], len(self.arcs), x.shape[-1])
        if len(inside):
            out.index_copy_(-2, self._inside, x.detach().index_select(-2, inside))
        self.peers.wait(works)
        for link, (_, arriving) in zip(self.links, receives, strict=True):
            out.index_copy_(-2, link.targets, arriving)
        return out
