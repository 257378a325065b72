"""The real thing: nodes in different processes, and a message for every neighbour."""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import networkx as nx
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network.base import Network
from milodo.network.frames import GREETING, HEADER, Frame, copy_bytes, framed, room, size_of, trimmed, untrimmed
from milodo.network.greeting import GREETINGS
from milodo.network.routes import Route
from milodo.topology import Topology, topology

TIMEOUT = 60.0
"""Seconds to wait for a neighbour before it counts as lost."""
AHEAD = 2
"""Receives that are posted for messages from one process: for the next one and for that after it. gloo sends nothing before it
has heard that the other end is ready to receive; heard a round before, that costs a round nothing, where it cost a far link as
long again (benchmarks/slow_network.py). Two are enough: what says so goes out ahead of this round's own message."""
LARGE = 1 << 20
"""Bytes of a frame, and so of a posted receive: whatever comes is received and then checked, where a message longer than its
receive would abort the process inside gloo. A longer payload follows its header in a message of its own: then its length is what
takes time. Room that no message has filled is address space, not memory."""
INSIDE = LARGE - HEADER.size
"""Bytes of a payload that still travels behind its header."""
CHANNELS = 1 << 8
"""Networks of one process that may send at the same time."""
FRAMES, FOLLOWS, SIZES = 1 << 29, 1 << 30, 4_194_301
"""Tags: of frames, by channel; and of payloads that follow their header, by channel and length modulo this prime, so that no
receive meets a longer message. Far from those that a program of the user's may use."""


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


class Wire(Protocol):
    """Moves bytes from one process to another; those of one tag from one process arrive in the order in which they were sent."""

    rank: int
    world: int
    inboxes: Inboxes

    def send(self, message: Tensor, rank: int, tag: int) -> Any:
        """Returns at once; `wait(timeout)` of the result returns when the tensor may be used again, or raises RuntimeError."""
        ...

    def receive(self, into: Tensor, rank: int, tag: int) -> Any:
        """Likewise; what comes may be shorter than there is room for."""
        ...


class Inbox:
    """The frames from one process on one channel, in the order in which they were sent."""

    def __init__(self, wire: Wire, rank: int, channel: int) -> None:
        self.wire, self.rank, self.tag = wire, rank, FRAMES + channel
        self._posted, self.free = deque[tuple[Tensor, Any]](), list[Tensor]()

    def take(self) -> tuple[Tensor, Any]:
        """Where the next frame will be, and the wait for it; room for the one after it is made as well."""
        while len(self._posted) < AHEAD:
            buffer = self.free.pop() if self.free else torch.empty(LARGE, dtype=torch.uint8)
            self._posted.append((buffer, self.wire.receive(buffer, self.rank, self.tag)))
        return self._posted.popleft()


Inboxes = dict[tuple[int, int], Inbox]
"""By process and channel. A receive that is posted outlives the network that posted it, and takes the next one's message."""


class Gloo:
    """The wire of torch.distributed's own group."""

    def __init__(self) -> None:
        self.rank, self.world, self.inboxes = dist.get_rank(), dist.get_world_size(), Inboxes()

    def send(self, message: Tensor, rank: int, tag: int) -> Any:
        return dist.isend(message, rank, tag=tag)

    def receive(self, into: Tensor, rank: int, tag: int) -> Any:
        return dist.irecv(into, rank, tag=tag)


WIRES = WeakKeyDictionary[Any, Gloo]()
"""Of each group of processes."""


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


def _read_long(received: Tensor, sizes: list[int], into: Tensor) -> None:
    untrimmed(received[: sizes[0]].numpy(), into)


class Peers:
    """Messages between processes that hold neighbouring nodes, and between no others.

    Every receive and send of an exchange is posted before any is waited for: nobody waits for a message that is not on its
    way, so no graph can deadlock.
    """

    def __init__(
        self, graph: Topology, held: Sequence[Sequence[int]], timeout: float, wire: Wire | None = None, channel: int = 0
    ) -> None:
        """Networks of one process that send at the same time, from several threads, need different channels."""
        self.held, self.timeout, self.channel = [tuple(part) for part in held], timedelta(seconds=timeout), channel
        if not 0 <= channel < CHANNELS:
            raise InvalidInput(f"{channel + 1} networks that send at the same time in one process are more than {CHANNELS}.")
        self.wire = wire or WIRES.setdefault(dist.group.WORLD, Gloo())
        self.rank, self.world = self.wire.rank, self.wire.world
        self.frames = wire is not None or dist.get_backend() == "gloo"
        """Whether messages travel behind headers. Other backends (nccl) have neither tags nor receives with room to spare."""
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
        self.k = self.number = 0
        """The iteration, and the exchanges so far; the same in all processes."""
        self.carried = 0
        """Bytes that methods have sent to other processes."""
        self._greeting = None if wire is not None else GREETINGS.get(dist.group.WORLD)
        self._greeted = self._greeting is None

    @property
    def neighbours(self) -> list[int]:
        return sorted(self.graph[self.rank])

    def greet(self) -> None:
        """Before the first message all neighbours prove that they know the run's secret; at once, so that none waits in turn."""
        if self._greeted or self._greeting is None:
            return
        self._greeted, known = True, self._greeting.known
        new = [rank for rank in self.neighbours if rank not in known]
        device = "cpu" if self.frames else "cuda"
        swap = lambda sends, receives: self.wait(self._post(sends, receives, GREETING))  # noqa: E731
        self._greeting.greet(self.rank, new, swap, lambda rank: called(self.held[rank], rank), device)

    def rounds(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]], kind: str, *, varies: bool = False
    ) -> list[Wait]:
        """What a method says in one round: `exchange`, counted. Every process calls it, also if it has nothing to send.

        Where messages vary in length, zeros at their end do not travel (`trimmed`).
        """
        self.greet()
        self.number += 1
        if not (varies and self.frames):
            self.carried += sum(size_of(message) for _, message in sends)
            return self._post(sends, receives, kind)
        said = [(rank, trimmed(message), room(message)) for rank, message in sends]
        self.carried += sum(size_of(message) for _, message, _ in said)
        return [*self._receives(receives, kind, varies=True), *self._sends(said, kind)]

    def exchange(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]], kind: str) -> list[Wait]:
        """Posts all of them; the tensors must stay untouched until `wait` returns. The other end is told ahead that we shall
        listen for its next message, too."""
        self.greet()
        return self._post(sends, receives, kind)

    def _post(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]], kind: str) -> list[Wait]:
        if not self.frames:
            return self._batch(sends, receives)
        said = [(rank, message, size_of(message)) for rank, message in sends]
        return [*self._receives(receives, kind), *self._sends(said, kind)]

    def _sends(self, messages: Sequence[tuple[int, Tensor, int]], kind: str) -> list[Wait]:
        """To whom, what, and how long it may be at most, which decides whether it has a message of its own."""
        waits = list[Wait]()
        for rank, message, most in messages:
            short, frame = most <= INSIDE, Frame(kind, self.k, self.number, size_of(message))
            try:
                waits.append(
                    Wait((rank,), self.wire.send(framed(frame, message if short else None), rank, FRAMES + self.channel))
                )
                if not short:
                    waits.append(Wait((rank,), self.wire.send(message, rank, self._follows(most))))
            except RuntimeError as error:
                raise self._lost((rank,), error) from error
        return waits

    def _receives(self, messages: Sequence[tuple[int, Tensor]], kind: str, *, varies: bool = False) -> list[Wait]:
        waits = list[Wait]()
        for rank, into in messages:
            frame = Frame(kind, self.k, self.number, room(into) if varies else size_of(into))
            inbox = self._inbox(rank)
            try:
                buffer, work = inbox.take()
                if frame.size <= INSIDE:
                    waits.append(Wait((rank,), work, partial(self._read, inbox, buffer, frame, into, varies)))
                    continue
                long = torch.empty(frame.size, dtype=torch.uint8) if varies else into
                follows = self.wire.receive(long, rank, self._follows(frame.size))
            except RuntimeError as error:
                raise self._lost((rank,), error) from error
            waits.append(Wait((rank,), work, partial(self._check, inbox, buffer, frame, varies, sizes := list[int]())))
            waits.append(Wait((rank,), follows, partial(_read_long, long, sizes, into) if varies else None))
        return waits

    def _inbox(self, rank: int) -> Inbox:
        key = rank, self.channel
        if key not in self.wire.inboxes:
            self.wire.inboxes[key] = Inbox(self.wire, rank, self.channel)
        return self.wire.inboxes[key]

    def _read(self, inbox: Inbox, buffer: Tensor, frame: Frame, into: Tensor, varies: bool) -> None:
        """A message that has come behind its header."""
        received = buffer.numpy()
        size = frame.read(received[: HEADER.size].tobytes(), partial(self._ends, inbox.rank), varies=varies)
        (untrimmed if varies else copy_bytes)(received[HEADER.size : HEADER.size + size], into)
        inbox.free.append(buffer)

    def _check(self, inbox: Inbox, buffer: Tensor, frame: Frame, varies: bool, sizes: list[int]) -> None:
        """A header whose message follows."""
        sizes.append(frame.read(buffer[: HEADER.size].numpy().tobytes(), partial(self._ends, inbox.rank), varies=varies))
        inbox.free.append(buffer)

    def _ends(self, rank: int) -> list[str]:
        """How messages to people call the sender and the receiver of what comes from this rank."""
        return [called(self.held[end], end) for end in (rank, self.rank)]

    def _follows(self, most: int) -> int:
        return FOLLOWS + self.channel * SIZES + most % SIZES

    def _batch(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> list[Wait]:
        """The same on a backend without tags: nothing is checked."""
        operations = [dist.P2POp(dist.irecv, buffer, rank) for rank, buffer in receives]
        operations += [dist.P2POp(dist.isend, buffer, rank) for rank, buffer in sends]
        ranks = [rank for rank, _ in (*receives, *sends)]
        if not operations:
            return []
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise self._lost(ranks, error) from error
        return [
            Wait([rank] if len(works) == len(ranks) else ranks, work)
            for rank, work in itertools.zip_longest(ranks[: len(works)], works)
        ]

    def wait(self, waits: Sequence[Wait]) -> None:
        """A connection that is known to be broken fails at once."""
        for each in waits:
            try:
                each.work.wait(self.timeout)
            except RuntimeError as error:
                raise self._lost(each.ranks, error) from error
            if each.then is not None:
                each.then()

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
        wire: Wire | None = None,
        channel: int = 0,
    ) -> None:
        """`processes` says which nodes each process holds; as evenly as possible unless given. Messages travel by
        torch.distributed unless another wire is given; see `Peers` for channels."""
        graph = topology(graph)
        held = processes or place(graph.n, dist.get_world_size() if wire is None else wire.world)
        self.peers = Peers(graph, held, timeout, wire, channel)
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
        self.peers.doing, self.peers.k = f"in iteration {self.k}, round {self.traffic.rounds}", self.k
        waits = self.peers.rounds(sends, receives, route.kind, varies=varies)
        inside = message.index_select(-2, route.rows)
        if route.places is not None:
            shape = (*message.shape[:-2], route.arrivals, message.shape[-1])
            # What comes over no link stays 0, which every format can read.
            inside = message.new_zeros(shape).index_copy_(-2, route.places, inside)
        self.peers.wait(waits)
        for link, (_, arriving) in zip(links, buffers, strict=True):
            inside.index_copy_(-2, link.coming, arriving)
        return inside
