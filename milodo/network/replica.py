"""Replicas: what was sent before, kept alike at both ends of a link, so that only the difference is sent."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

NODES, ARCS, TOTAL, FLOOD = "nodes", "arcs", "total", "flood"
"""Which way messages take: from every node to its neighbours, over each link by itself, a total on its way down the spanning
tree, from everybody to everybody; beside these "up0", "up1", ..., the hops of the tree on the way up."""


class Replica(NamedTuple):
    """Of one round of an exchange."""

    sent: Tensor
    """What the other ends have of what we sent so far, one row a row of the message."""
    received: Tensor | None
    """What we have of what they sent, one row an arrival. None where what comes is what goes on: a total on its way down."""
    route: str
    """Which way it takes."""


def collected(replicas: Sequence[Any]) -> Any:
    """Several of them, as a tree."""
    return _several(len(replicas))(*replicas)


@lru_cache
def _several(count: int) -> Any:
    return namedtuple("Replicas", [f"round{k}" for k in range(count)])


def replicas_in(state: Any) -> list[Replica]:
    """All of a state, in order."""
    return list(_found(state))


def _found(part: Any) -> Iterator[Replica]:
    if isinstance(part, Replica):
        yield part
    elif isinstance(part, tuple):
        for inner in part:
            yield from _found(inner)


def with_replicas(state: Any, replicas: Sequence[Replica]) -> Any:
    """The state with these in place of its own."""
    left = iter(replicas)

    def replaced(part: Any) -> Any:
        if isinstance(part, Replica):
            return next(left)
        return type(part)(*map(replaced, part)) if isinstance(part, tuple) and hasattr(part, "_fields") else part

    return replaced(state)
