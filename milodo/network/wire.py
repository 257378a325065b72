"""Messages as they travel: encoded by a format, with numbers beside them that stay as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from milodo.network.channels import Format


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
    return 0 if varies(form) else longest(form, d, exact, like.dtype)


def longest(form: Format | None, d: int, exact: int, dtype: torch.dtype) -> int:
    """Bytes of such a message, at most."""
    return d * dtype.itemsize if form is None else form.size(d - exact, dtype) + exact * dtype.itemsize


def measured(form: Format | None, x: Tensor, exact: int) -> tuple[Tensor, Tensor | None]:
    """What the other end understands, and the bytes of each of these messages [*]; None where all are as long."""
    if form is None or not form.varies:
        return x if form is None else understood(form, x, exact), None
    body, tail = (x, x[..., :0]) if not exact else (x[..., :-exact], x[..., -exact:])
    received, sizes = form.measured(body)
    return torch.cat((received, tail), dim=-1) if exact else received, sizes + exact * x.element_size()


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
