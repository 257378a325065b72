"""The real thing: nodes in different processes, and a message for every neighbour."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network.base import Network
from milodo.network.routes import Route
from milodo.topology import Topology, topology

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
        self.carried = 0
        """Bytes that methods have sent to other processes."""

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


class DistributedNetwork(Network):
    """The nodes of this process. torch.distributed must be initialised, by every process alike (milodo.runtime does)."""

    real: ClassVar[bool] = True

    def __init__(
        self,
        graph: str | Topology | nx.Graph,
        weights: str | np.ndarray = "metropolis",
        *,
        processes: Sequence[Sequence[int]] | None = None,
        timeout: float = TIMEOUT,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        """`processes` says which nodes each process holds; as evenly as possible unless given."""
        graph = topology(graph)
        held = processes or place(graph.n, dist.get_world_size())
        self.peers = Peers(graph, held, timeout)
        super().__init__(graph, weights, processes=held, rank=self.peers.rank, dtype=dtype, device=device)

    def at_step(self, k: int) -> Network:
        return self._view(k)

    def _carry(self, message: Tensor, route: Route, up: Tensor | None = None) -> Tensor:
        """Sends every link its rows and puts what arrives where it belongs; arcs inside this process are local."""
        message = message.detach()
        links = route.links if up is None else [link.over(up) for link in route.links]
        buffers = [link.buffer(message) for link in links]
        for link, (leaving, _) in zip(links, buffers, strict=True):
            torch.index_select(message, -2, link.going, out=leaving)
        sends = [(link.rank, leaving) for link, (leaving, _) in zip(links, buffers, strict=True) if len(link.going)]
        receives = [(link.rank, arriving) for link, (_, arriving) in zip(links, buffers, strict=True) if len(link.coming)]
        self.peers.doing = f"in iteration {self.k}, round {self.traffic.rounds}"
        self.peers.carried += sum(leaving.numel() * leaving.element_size() for _, leaving in sends)
        works = self.peers.exchange(sends, receives)
        inside = message.index_select(-2, route.rows)
        if route.places is not None:
            shape = (*message.shape[:-2], route.arrivals, message.shape[-1])
            # What comes over no link stays 0, which every format can read.
            inside = message.new_zeros(shape).index_copy_(-2, route.places, inside)
        self.peers.wait(works)
        for link, (_, arriving) in zip(links, buffers, strict=True):
            inside.index_copy_(-2, link.coming, arriving)
        return inside
