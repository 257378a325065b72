"""Symbols in a prefix code: frequent ones take fewer bits, and so messages differ in length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, quoted
from milodo.network.channels import Bits, Levels, Symbols
from milodo.network.prefix import BOOKS, NUMBER, books, borders, read, together, written

Count = TypeVar("Count", int, np.ndarray)


@dataclass(frozen=True)
class Coded(Symbols):
    """The symbols of another format, in blocks of a few, in one of 16 prefix codes (network/prefix.py).

    Nothing is lost that the format did not lose. The largest magnitude sets the scale, so most symbols are 0 or next to it: five
    levels take 1.5 to 1.7 bits a number in place of 2.34, fifteen 2.8 to 3.3 in place of 4. Whoever sends takes the code made for
    the mean magnitude of its symbols, or the one in which all blocks are alike long, whichever is shorter: no message is longer
    than `size`. It says which code, and ends with a 1, so that its last byte is never 0.
    """

    form: Bits | Levels

    varies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.form) not in (Bits, Levels):
            raise InvalidInput(f"{quoted(self.form)} has no symbols to code. Give Bits(b) or Levels(n).")

    def __str__(self) -> str:
        return f"{self.form}, coded"

    @property
    def most(self) -> int:
        return self.form.most

    @property
    def beyond(self) -> float:
        return self.form.beyond

    @property
    def base(self) -> int:
        return 2 * self.most + 1

    def size(self, d: int, dtype: torch.dtype) -> int:
        alike = books(self.base)[-1]
        return self.SCALE + _bytes(-(-d // together(self.base)) * int(alike.lengths.max()))

    def sizes(self, x: Tensor) -> Tensor:
        return self.measured(x)[1]

    def measured(self, x: Tensor) -> tuple[Tensor, Tensor]:
        symbols, mantissa, power = self._quantized(x)
        _, bits = self._book(self._blocks(symbols + self.most))
        return self._received(x, symbols, mantissa, power), torch.as_tensor(self.SCALE + _bytes(bits)).to(x.device)

    def _packed(self, symbols: Tensor) -> Tensor:
        blocks = self._blocks(symbols.cpu().numpy())
        numbers, _ = self._book(blocks)
        width = self.size(symbols.shape[-1], symbols.dtype) - self.SCALE
        rows = [
            written(row, number, self.base).ljust(width, b"\0")
            for row, number in zip(blocks.reshape(-1, blocks.shape[-1]), numbers.flatten().tolist(), strict=True)
        ]
        every = torch.from_numpy(np.frombuffer(b"".join(rows), dtype=np.uint8).copy())
        return every.reshape(*blocks.shape[:-1], width).to(symbols.device)

    def _unpacked(self, message: Tensor, d: int) -> Tensor:
        count = -(-d // together(self.base))
        rows = [
            read(row, count, self.base) if row.any() else np.zeros(count)  # what nobody sent is all zeros
            for row in _rows(message)
        ]
        blocks = torch.from_numpy(np.array(rows, dtype=np.int64)).reshape(*message.shape[:-1], count).to(message.device)
        return torch.stack([blocks // place % self.base for place in self._places], dim=-1).flatten(-2)[..., :d]

    @property
    def _places(self) -> list[int]:
        return [self.base**k for k in range(together(self.base))]

    def _blocks(self, symbols: np.ndarray) -> np.ndarray:
        """Numbers of blocks [*, count] of symbols from 0 on; behind the last symbol there are zeros."""
        batch, d, each = symbols.shape[:-1], symbols.shape[-1], together(self.base)
        if rest := -d % each:
            symbols = np.concatenate((symbols, np.full((*batch, rest), self.most)), axis=-1)
        return (symbols.reshape(*batch, (d + rest) // each, each) @ self._places).astype(np.int64)

    def _book(self, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which code [*], and the bits of all codewords in it [*]."""
        lengths, magnitude, edges = _tables(self.base)
        # Whole numbers are added up: both runtimes, whatever the order, take the same code.
        mean = magnitude[blocks].sum(-1) / max(1, blocks.shape[-1] * together(self.base))
        number = np.searchsorted(edges, mean)
        own = lengths[number[..., None], blocks].sum(-1)
        alike = lengths[-1][blocks].sum(-1)
        return np.where(alike < own, BOOKS - 1, number), np.minimum(own, alike)


def _bytes(bits: Count) -> Count:
    """Of a message with so many bits of codewords: the code's number before them, a 1 behind them."""
    return (NUMBER + bits + 1 + 7) // 8


def _rows(x: Tensor) -> np.ndarray:
    """[*, width] -> [rows, width]."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).cpu().numpy()


@lru_cache
def _tables(base: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths of all codes [codes, blocks], a block's magnitudes added up [blocks], and from where on the next code is better."""
    lengths = np.stack([book.lengths for book in books(base)])
    block = np.arange(lengths.shape[-1])
    magnitude = np.sum([np.abs(block // base**k % base - base // 2) for k in range(together(base))], axis=0)
    return lengths, magnitude, borders(base)
