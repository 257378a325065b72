"""How a message travels between two processes: behind a short header, which tells the receiver whether it is the one expected."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network.wire import lengths

HEADER = struct.Struct("<IIHH")
"""Bytes of the payload, the iteration, the number of the exchange (these modulo their range) and the kind of the message. The 12
bytes belong to the transport, like gloo's own preambles of 48 bytes: they are not counted as traffic."""
LENGTH = 4
"""Bytes of a header that say how long the payload is: the first ones."""
KINDS = (
    "values of nodes", "values of edges", "partial sums on their way up the tree", "sums on their way down the tree",
    "values that are passed on to everybody", "an observer's partial sum", "an observer's sum", "a greeting",
)  # fmt: skip
"""What messages carry; a header has the place in this table."""
CODES = {kind: code for code, kind in enumerate(KINDS)}
NODES, EDGES, UP, DOWN, FLOOD, OBSERVED_UP, OBSERVED_DOWN, GREETING = KINDS
PREFIX = 4
"""Bytes of a row's length, where several rows travel together."""


class OutOfStep(InvalidInput):
    """A process received another message than the one that comes next."""


class Frame(NamedTuple):
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
        return HEADER.pack(self.size & 0xFFFFFFFF, self.k & 0xFFFFFFFF, self.number & 0xFFFF, CODES[self.kind])

    def read(self, header: bytes, called: Callable[[], Sequence[str]], *, varies: bool) -> int:
        """The length of the payload behind this header; refuses a message that is not the expected one. `called` names the
        sender and the receiver."""
        expected = self.header
        if header == expected:
            return self.size
        size, rest = HEADER.unpack(header)[0], slice(LENGTH, None)
        if varies and size <= self.size and header[rest] == expected[rest]:
            return size
        sender, receiver = called()
        raise OutOfStep(
            f"{sender} sent {self.instead(header)}, but {receiver} expected {self.said('at most ' if varies else '')}: the two "
            "no longer do the same. Start all processes with the same milodo and settings; if they do, please report a bug."
        )

    def instead(self, header: bytes) -> Frame:
        """What came in its place."""
        size, k, number, code = HEADER.unpack(header)
        away = (number - self.number + (1 << 15)) % (1 << 16) - (1 << 15)  # the nearest of all numbers that end alike
        kind = KINDS[code] if code < len(KINDS) else f"a message of the unknown kind {code}"
        return Frame(kind, k, self.number + away, size)

    def said(self, most: str = "") -> str:
        return f"{self.kind} ({most}{self.size:,} bytes, iteration {self.k}, exchange {self.number})"

    def __str__(self) -> str:
        return self.said()


def framed(frame: Frame, payload: Tensor | None) -> Tensor:
    """The header, and behind it the payload, if it is to travel in the same message."""
    body = b"" if payload is None else as_bytes(payload).data
    return torch.frombuffer(bytearray().join((frame.header, body)), dtype=torch.uint8)


def as_bytes(message: Tensor) -> np.ndarray:
    """The memory of a contiguous tensor [bytes]; a copy, if it is not on this host."""
    if message.dtype is torch.bfloat16 or not message.is_cpu:  # which numpy does not know
        message = message.view(-1).view(torch.uint8).cpu()
    return message.numpy().reshape(-1).view(np.uint8)


def copy_bytes(payload: np.ndarray, into: Tensor) -> None:
    """Into a contiguous tensor of as many bytes."""
    if into.is_cpu:
        as_bytes(into)[:] = payload
    else:
        into.view(-1).view(torch.uint8).copy_(torch.from_numpy(payload))


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


def untrimmed(received: np.ndarray, into: Tensor) -> None:
    """What was trimmed, with its zeros again."""
    payload = torch.from_numpy(received)
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
