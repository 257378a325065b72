"""The real thing: nodes in different processes, and a message for every neighbour."""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import networkx as nx
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network.base import Network
from milodo.network.memory import lengths
from milodo.network.routes import Route
from milodo.topology import Topology, topology

TIMEOUT = 60.0
"""Seconds to wait for a neighbour before it counts as lost."""
AHEAD = 2
"""Receives that are posted for messages of one size from one process: that of this round and that of the next. gloo sends nothing
before it has heard that the other end is ready to receive; heard a round before, that costs a round nothing, where it cost a far
link as long again (benchmarks/slow_network.py). Two are enough: what says so goes out ahead of this round's own message."""
LARGE = 1 << 20
"""Bytes of a message from which on no memory is held ready for the next one: then its length is what takes time."""


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


class Inbox:
    """Messages of one size from one process, in the order in which they were sent: their size is their tag."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.ahead = rank, size, AHEAD if size < LARGE else 1
        self._posted, self._free = deque[tuple[Tensor, Any]](), list[Tensor]()

    def take(self) -> tuple[Tensor, Any]:
        """Where the next message will be, and the wait for it; room for the one after it is made as well."""
        while len(self._posted) < self.ahead:
            buffer = self._free.pop().zero_() if self._free else torch.zeros(self.size, dtype=torch.uint8)
            self._posted.append((buffer, dist.irecv(buffer, self.rank, tag=tag(self.size))))
        return self._posted.popleft()

    def read(self, buffer: Tensor, into: Tensor, varies: bool) -> None:
        """A message that has come; its memory is free again."""
        if varies:
            untrimmed(buffer, into)
        else:
            into.view(-1).view(torch.uint8).copy_(buffer)
        self._free.append(buffer)


class _Inboxes(dict[tuple[int, int], Inbox]):
    """By process and size of messages; made when first needed."""

    def __missing__(self, key: tuple[int, int]) -> Inbox:
        self[key] = Inbox(*key)
        return self[key]


INBOXES = WeakKeyDictionary[Any, _Inboxes]()
"""Of each group of processes: a receive that is posted outlives the network that posted it, and takes the next one's message."""


def never_free(error: BaseException) -> None:
    """Keeps what a run that broke had posted until the process ends, also while the interpreter goes: gloo would wait for the
    other end of each receive that is freed, and the other end may never send."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))


class Wait(NamedTuple):
    """For one message, or several."""

    ranks: Sequence[int]
    """Who it goes to or comes from."""
    work: Any
    then: Callable[[], None] | None = None
    """What is to be done when it has come."""


def _size(message: Tensor) -> int:
    return message.numel() * message.element_size()


PREFIX = 4
"""Bytes of a row's length, where several rows travel together."""


def room(message: Tensor) -> int:
    """The longest that `trimmed` can be, which both ends know."""
    rows = message.numel() // message.shape[-1]
    return _size(message) + (PREFIX * rows if rows > 1 else 0)


def trimmed(message: Tensor) -> Tensor:
    """The bytes of rows that vary in length, without the zeros at their ends: of one row just these, of several (nodes that share
    a process) their lengths before them."""
    rows, ends = message.flatten(0, -2), lengths(message.flatten(0, -2))
    every = torch.cat([row[:end] for row, end in zip(rows, ends.tolist(), strict=True)])
    return every if len(rows) == 1 else torch.cat((ends.to(torch.int32).view(torch.uint8), every))


def untrimmed(buffer: Tensor, into: Tensor) -> None:
    """What was trimmed, with its zeros again; behind what came the buffer has zeros."""
    rows = into.view(-1, into.shape[-1])
    if len(rows) == 1:
        rows[0].copy_(buffer)
        return
    start, width = PREFIX * len(rows), rows.shape[-1]
    ends = buffer[:start].view(torch.int32).tolist()
    if not all(0 <= end <= width for end in ends):
        raise InvalidInput(f"a message has rows of {ends} bytes, where {width} are the most. Do both ends run one experiment?")
    rows.zero_()
    for row, end in zip(rows, ends, strict=True):
        row[:end] = buffer[start : start + end]
        start += end


def tag(size: int) -> int:
    """Of messages of so many bytes; 0 is for those that nobody awaits before their time."""
    return 1 + size


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
        self._inboxes = INBOXES.setdefault(dist.group.WORLD, _Inboxes())

    @property
    def neighbours(self) -> list[int]:
        return sorted(self.graph[self.rank])

    def exchange(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> list[Wait]:
        """Posts all of them; the tensors must stay untouched until `wait` returns."""
        operations = [dist.P2POp(dist.irecv, buffer, rank) for rank, buffer in receives]
        operations += [dist.P2POp(dist.isend, buffer, rank) for rank, buffer in sends]
        ranks = [rank for rank, _ in (*receives, *sends)]
        if not operations:
            return []
        with self._noticing(ranks):
            works = dist.batch_isend_irecv(operations)
        return [
            Wait([rank] if len(works) == len(ranks) else ranks, work)
            for rank, work in itertools.zip_longest(ranks[: len(works)], works)
        ]

    def rounds(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]], *, varies: bool = False
    ) -> list[Wait]:
        """The same for what is said in one round of many: the other end is told ahead that we shall listen in the next, too.

        Where messages vary in length, zeros at their end do not travel (`trimmed`).
        """
        if dist.get_backend() != "gloo":
            self.carried += sum(_size(message) for _, message in sends)
            return self.exchange(sends, receives)
        waits = []
        for rank, into in receives:
            with self._noticing([rank]):
                inbox = self._inboxes[rank, room(into) if varies else _size(into)]
                buffer, work = inbox.take()
            waits.append(Wait([rank], work, partial(inbox.read, buffer, into, varies)))
        for rank, message in sends:
            said, size = (trimmed(message), room(message)) if varies else (message, _size(message))
            self.carried += _size(said)
            with self._noticing([rank]):
                waits.append(Wait([rank], dist.isend(said, rank, tag=tag(size))))
        return waits

    def wait(self, waits: Sequence[Wait]) -> None:
        for each in waits:
            with self._noticing(each.ranks):
                each.work.wait(self.timeout)
            if each.then is not None:
                each.then()

    @contextmanager
    def _noticing(self, ranks: Sequence[int]) -> Iterator[None]:
        """That one of these is lost; a connection that is known to be broken fails at once."""
        try:
            yield
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

    def _carry(self, message: Tensor, route: Route, up: Tensor | None = None, *, varies: bool = False) -> Tensor:
        """Sends every link its rows and puts what arrives where it belongs; arcs inside this process are local."""
        message = message.detach()
        links = route.links if up is None else [link.over(up) for link in route.links]
        buffers = [link.buffer(message) for link in links]
        for link, (leaving, _) in zip(links, buffers, strict=True):
            torch.index_select(message, -2, link.going, out=leaving)
        sends = [(link.rank, leaving) for link, (leaving, _) in zip(links, buffers, strict=True) if len(link.going)]
        receives = [(link.rank, arriving) for link, (_, arriving) in zip(links, buffers, strict=True) if len(link.coming)]
        self.peers.doing = f"in iteration {self.k}, round {self.traffic.rounds}"
        waits = self.peers.rounds(sends, receives, varies=varies)
        inside = message.index_select(-2, route.rows)
        if route.places is not None:
            shape = (*message.shape[:-2], route.arrivals, message.shape[-1])
            # What comes over no link stays 0, which every format can read.
            inside = message.new_zeros(shape).index_copy_(-2, route.places, inside)
        self.peers.wait(waits)
        for link, (_, arriving) in zip(links, buffers, strict=True):
            inside.index_copy_(-2, link.coming, arriving)
        return inside
