"""Symbols that are no power of two: as digits of numbers that fill whole bytes."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


@lru_cache
def _together(base: int) -> tuple[int, int]:
    """How many digits are written as one number, and its bytes: what wastes least among those that fit int64."""
    fits = [(int(8 * width / math.log2(base)), width) for width in range(1, 8)]
    return max(fits, key=lambda fit: fit[0] / fit[1])


@lru_cache
def digits_size(d: int, base: int) -> int:
    """Bytes of d digits."""
    together, width = _together(base)
    full, rest = divmod(d, together)
    return full * width + ((base**rest - 1).bit_length() + 7) // 8


def pack_digits(symbols: Tensor, base: int) -> Tensor:
    """Whole numbers below base, not above 256², [*, d], as bytes [*, digits_size(d, base)]: digits of longer numbers."""
    (together, width), d = _together(base), symbols.shape[-1]
    places = torch.tensor([base**k for k in range(together)], device=symbols.device)
    digits = torch.nn.functional.pad(symbols, (0, -d % together)).unflatten(-1, (-1, together))
    number = (digits * places).sum(-1)
    whole = torch.stack([(number >> (8 * k)) & 255 for k in range(width)], dim=-1).flatten(-2)
    return whole[..., : digits_size(d, base)].to(torch.uint8)  # behind that there are only zeros


def unpack_digits(message: Tensor, base: int, d: int) -> Tensor:
    """What `pack_digits` was given."""
    together, width = _together(base)
    parts = torch.nn.functional.pad(message.to(torch.int64), (0, -message.shape[-1] % width)).unflatten(-1, (-1, width))
    number = parts[..., 0]
    for k in range(1, width):
        number = number | (parts[..., k] << (8 * k))
    return torch.stack([number // base**k % base for k in range(together)], dim=-1).flatten(-2)[..., :d]
