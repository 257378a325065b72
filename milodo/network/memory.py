"""Replicas: what was said before, kept alike at both ends of a link, so that only the difference is sent."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from milodo.network.channels import Format


class Slot(NamedTuple):
    """Of one exchange in an iteration."""

    said: Tensor
    """What the other ends have of what we said so far, one row a row of the message."""
    heard: Tensor | None
    """What we have of what they said, one row an arrival. None where what comes is what goes on: a total on its way down."""
    route: str = "nodes"
    """Which way it takes: "nodes", "arcs", "up0" and so on (hops of the spanning tree), "total" or "flood"."""


class Memory:
    """The replicas of one iteration, in the order in which its exchanges ask for them.

    A step is given those of the iteration before and leaves new ones. Nothing is sent while `slots` is None: then an iteration is
    only rehearsed, to learn how many replicas there are and of which shape; all begin at zero.
    """

    def __init__(self, form: Format, slots: Iterable[Slot] | None) -> None:
        self.form, self.rehearsing, self.new = form, slots is None, list[Slot]()
        self._old = list(slots or ())

    def recall(self, like: Tensor, rows: int, arrivals: int | None, d: int, route: str) -> Slot:
        """The next exchange's, of d coordinates a row, along this route."""
        if not self.rehearsing:
            return self._old[len(self.new)]
        shapes = (None if count is None else (*like.shape[:-2], count, d) for count in (rows, arrivals))
        said, heard = (None if shape is None else like.new_zeros(shape) for shape in shapes)
        assert said is not None
        return Slot(said, heard, route)

    def keep(self, slot: Slot) -> None:
        self.new.append(slot)

    @property
    def replicas(self) -> Any:
        """All of them, as a tree; those of exchanges that were not made are what they were."""
        return replicas_of([*self.new, *self._old[len(self.new) :]])


def replicas_of(slots: list[Slot]) -> Any:
    return _tree(len(slots))(*slots)


@lru_cache
def _tree(count: int) -> Any:
    return namedtuple("Replicas", [f"slot{k}" for k in range(count)])  # their number is the method's


def encoded(form: Format, x: Tensor, exact: int) -> Tensor:
    """A message through a format; the last `exact` columns come first, as they are."""
    if not exact:
        return form.encode(x)
    body, tail = x[..., :-exact], x[..., -exact:]
    return torch.cat((_as_bytes(tail), _as_bytes(form.encode(body))), dim=-1)


def decoded(form: Format, message: Tensor, d: int, exact: int, like: Tensor) -> Tensor:
    """What was encoded, as the other end understands it; d counts all columns."""
    if not exact:
        return form.decode(message, d, like.dtype)
    width = exact * like.element_size()
    body = form.decode(_from_bytes(message[..., width:], form.wire(like.dtype)), d - exact, like.dtype)
    return torch.cat((body, _from_bytes(message[..., :width], like.dtype)), dim=-1)


def understood(form: Format, x: Tensor, exact: int) -> Tensor:
    """decoded(encoded(x)) without the packing in between."""
    return form.understood(x) if not exact else torch.cat((form.understood(x[..., :-exact]), x[..., -exact:]), dim=-1)


def varies(form: Format | None) -> bool:
    """Whether what a message says decides on its length."""
    return form is not None and form.varies


def size(form: Format | None, d: int, exact: int, like: Tensor) -> int:
    """Bytes of such a message; 0 where it depends on what it says."""
    number = like.element_size()
    return d * number if form is None else 0 if varies(form) else form.size(d - exact, like.dtype) + exact * number


def sizes(form: Format | None, x: Tensor, exact: int) -> Tensor:
    """Bytes of each of these messages [*], whose length varies."""
    assert form is not None
    return form.sizes(x[..., : x.shape[-1] - exact]) + exact * x.element_size()


def lengths(message: Tensor) -> Tensor:
    """Bytes [*] up to the last one that is not 0, of messages [*, width]."""
    return ((message != 0) * torch.arange(1, message.shape[-1] + 1, device=message.device)).amax(-1)


def _as_bytes(x: Tensor) -> Tensor:
    return x if x.dtype == torch.uint8 else x.contiguous().view(torch.uint8)


def _from_bytes(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if dtype == torch.uint8 else x.clone(memory_format=torch.contiguous_format).view(dtype)


def beside(body: Tensor, x: Tensor, d: int) -> Tensor:
    """Coordinates, and behind them the columns of x that are not."""
    return body if x.shape[-1] == d else torch.cat((body, x[..., d:]), dim=-1)


def plus(replica: Tensor, x: Tensor, d: int) -> Tensor:
    """x with the replica added to its coordinates."""
    return beside(replica + x[..., :d], x, d)
