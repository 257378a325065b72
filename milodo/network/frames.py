"""How a message travels between two processes: behind a short header, which tells the receiver whether it is the one expected."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network.memory import lengths

HEADER = struct.Struct("<IIHH")
"""Bytes of the payload, the iteration, the number of the exchange (these modulo their range) and the kind of the message. The 12
bytes belong to the transport, like gloo's own preambles of 48 bytes: they are not counted as traffic."""
KINDS = (
    "values of nodes", "values of edges", "partial sums on their way up the tree", "sums on their way down the tree",
    "values that are passed on to everybody", "an observer's partial sum", "an observer's sum", "a greeting",
)  # fmt: skip
"""What messages carry; a header has the place in this table."""
NODES, EDGES, UP, DOWN, FLOOD, OBSERVED_UP, OBSERVED_DOWN, GREETING = KINDS
PREFIX = 4
"""Bytes of a row's length, where several rows travel together."""


class OutOfStep(InvalidInput):
    """A process received another message than the one that comes next."""


@dataclass(frozen=True)
class Frame:
    """What a header says of its message; at the receiving end, what must come next."""

    kind: str
    k: int
    """The iteration."""
    number: int
    """Of the exchange: every process counts all of them, also those in which it sends nothing."""
    size: int
    """Bytes of the payload; the most that there may be, where messages vary in length."""

    @property
    def header(self) -> bytes:
        return HEADER.pack(self.size & 0xFFFFFFFF, self.k & 0xFFFFFFFF, self.number & 0xFFFF, KINDS.index(self.kind))

    def read(self, header: bytes, called: Callable[[], tuple[str, ...]], *, varies: bool) -> int:
        """The length of the payload behind this header; refuses a message that is not the expected one. `called` names the
        sender and the receiver."""
        size, k, number, kind = HEADER.unpack(header)
        known, own = kind < len(KINDS), HEADER.unpack(self.header)
        fits = size <= self.size if varies else size == own[0]
        if fits and (k, number, kind) == own[1:]:
            return size if varies else self.size
        away = (number - own[2] + (1 << 15)) % (1 << 16) - (1 << 15)  # what is nearest of all numbers that end alike
        sent = Frame(KINDS[kind] if known else f"a message of the unknown kind {kind}", k, self.number + away, size)
        sender, receiver = called()
        most = "at most " if varies else ""
        raise OutOfStep(
            f"{sender} sent {sent}, but {receiver} expected {self.said(most)}: the two no longer do the same. Start all "
            "processes with the same milodo, settings and hardware; if they have them, please report this as a bug."
        )

    def said(self, most: str = "") -> str:
        return f"{self.kind} ({most}{self.size:,} bytes, iteration {self.k}, exchange {self.number})"

    def __str__(self) -> str:
        return self.said()


def framed(frame: Frame, payload: Tensor | None) -> Tensor:
    """The header, and behind it the payload, if it is to travel in the same message."""
    body = np.empty(0, np.uint8) if payload is None else flat_bytes(payload).cpu().numpy()
    message = np.empty(HEADER.size + len(body), np.uint8)
    message[: HEADER.size] = np.frombuffer(frame.header, np.uint8)
    message[HEADER.size :] = body
    return torch.from_numpy(message)


def flat_bytes(message: Tensor) -> Tensor:
    return message.view(-1).view(torch.uint8)


def size_of(message: Tensor) -> int:
    return message.numel() * message.element_size()


def room(message: Tensor) -> int:
    """The longest that `trimmed` can be, which both ends know."""
    rows = message.numel() // message.shape[-1]
    return size_of(message) + (PREFIX * rows if rows > 1 else 0)


def trimmed(message: Tensor) -> Tensor:
    """The bytes of rows that vary in length, without the zeros at their ends: of one row just these, of several (nodes that share
    a process) their lengths before them."""
    rows, ends = message.flatten(0, -2), lengths(message.flatten(0, -2))
    every = torch.cat([row[:end] for row, end in zip(rows, ends.tolist(), strict=True)])
    return every if len(rows) == 1 else torch.cat((ends.to(torch.int32).view(torch.uint8), every))


def untrimmed(payload: Tensor, into: Tensor) -> None:
    """What was trimmed, with its zeros again."""
    rows, sizes = into.view(-1, into.shape[-1]), [len(payload)]
    if len(rows) > 1:
        start = PREFIX * len(rows)
        sizes, payload = payload[:start].clone().view(torch.int32).tolist() if len(payload) >= start else [], payload[start:]
    if len(sizes) != len(rows) or not all(0 <= size <= rows.shape[-1] for size in sizes) or sum(sizes) != len(payload):
        raise InvalidInput(
            f"a message has {len(payload)} bytes for rows of {sizes}, where {rows.shape[-1]} are the most. Do both ends run one "
            "experiment?"
        )
    rows.zero_()
    for row, part in zip(rows, payload.split(sizes), strict=True):
        row[: len(part)] = part
