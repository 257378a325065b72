"""A format of a few bits that is right on average: what chance rounds up here it rounds down there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from milodo.network.channels import Bits


@dataclass(frozen=True)
class Dithered(Bits):
    """C(x) = s 2^(1-b) ⌊2^(b-1) x/s + u⌋ with s the largest magnitude and u even in [0, 1): its mean over u is x.

    So Li et al. 2021 (arXiv 2108.04448) print it, with the sign in front of the floor, which changes no distribution. Symbols run
    from -2^(b-1) to 2^(b-1): these are 2ᵇ + 1, a little more than b bits, and so many are packed and counted.
    """

    u: Tensor = field(compare=False)
    """One number a coordinate and row of the message, drawn by who sends it. Who receives it needs none."""

    @property
    def most(self) -> int:
        return 2 ** (self.b - 1)

    def size(self, d: int, dtype: torch.dtype) -> int:
        return self.SCALE + _packed_size(d, 2 * self.most + 1)

    def _rounded(self, x: Tensor) -> Tensor:
        return (x + self.u).floor()

    def _packed(self, symbols: Tensor) -> Tensor:
        return pack_digits(symbols.to(torch.int64), 2 * self.most + 1)

    def _unpacked(self, message: Tensor, d: int) -> Tensor:
        return unpack_digits(message, 2 * self.most + 1, d)

    def __str__(self) -> str:
        return f"{self.b} bits, dithered"


@lru_cache
def _together(base: int) -> tuple[int, int]:
    """How many digits are written as one number, and its bytes: what wastes least among those that fit int64."""
    fits = [(int(8 * width / math.log2(base)), width) for width in range(1, 8)]
    return max(fits, key=lambda fit: fit[0] / fit[1])


@lru_cache
def _packed_size(d: int, base: int) -> int:
    """Bytes of d digits."""
    together, width = _together(base)
    full, rest = divmod(d, together)
    return full * width + ((base**rest - 1).bit_length() + 7) // 8


def pack_digits(symbols: Tensor, base: int) -> Tensor:
    """Whole numbers below base, not above 256², [*, d], as bytes [*, _packed_size(d, base)]: digits of longer numbers."""
    (together, width), d = _together(base), symbols.shape[-1]
    places = torch.tensor([base**k for k in range(together)], device=symbols.device)
    digits = torch.nn.functional.pad(symbols, (0, -d % together)).unflatten(-1, (-1, together))
    number = (digits * places).sum(-1)
    whole = torch.stack([(number >> (8 * k)) & 255 for k in range(width)], dim=-1).flatten(-2)
    return whole[..., : _packed_size(d, base)].to(torch.uint8)  # behind that there are only zeros


def unpack_digits(message: Tensor, base: int, d: int) -> Tensor:
    """What `pack_digits` was given."""
    together, width = _together(base)
    parts = torch.nn.functional.pad(message.to(torch.int64), (0, -message.shape[-1] % width)).unflatten(-1, (-1, width))
    number = parts[..., 0]
    for k in range(1, width):
        number = number | (parts[..., k] << (8 * k))
    return torch.stack([number // base**k % base for k in range(together)], dim=-1).flatten(-2)[..., :d]
