"""A format of a few bits that is right on average: what chance rounds up here it rounds down there."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from milodo.network.channels import Bits
from milodo.network.digits import digits_size, pack_digits, unpack_digits


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
        return self.SCALE + digits_size(d, 2 * self.most + 1)

    def _rounded(self, x: Tensor) -> Tensor:
        return (x + self.u).floor()

    def _packed(self, symbols: Tensor) -> Tensor:
        return pack_digits(symbols.to(torch.int64), 2 * self.most + 1)

    def _unpacked(self, message: Tensor, d: int) -> Tensor:
        return unpack_digits(message, 2 * self.most + 1, d)

    def __str__(self) -> str:
        return f"{self.b} bits, dithered"
