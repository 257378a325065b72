"""Prefix codes for symbols of which small ones are frequent: lengths that can be added up without writing a bit."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from milodo.errors import InvalidInput

NUMBER = 4
"""Bits by which a message says which of the books it uses."""
BOOKS = 2**NUMBER
"""Codes to choose from, by how far symbols lie from 0 on average; in the last one all blocks are about as long."""
NARROWEST, WIDEST = 0.12, 0.5
"""Laplace's scale of the first one, in symbols, and of the last but one, in those of the largest symbol; others lie evenly
between on a logarithmic axis."""
RARE = 2.0**-6
"""Share of the blocks that may be any: no codeword gets too long."""
LARGEST_BLOCK = 256
"""Different blocks of symbols, at most, where more than one symbol makes a block."""
WEIGHTS = 2**24
"""Shares are whole numbers of so many parts: two machines whose exponentials differ in the last digit make the same codes."""


@lru_cache
def together(base: int) -> int:
    """Symbols in a block: one bit is the shortest codeword, and most symbols say less than that.

    >>> [together(base) for base in (3, 5, 7, 15, 17)]
    [5, 3, 2, 2, 1]
    """
    return max(1, int(math.log(LARGEST_BLOCK) / math.log(base) + 1e-9))


@dataclass(frozen=True)
class Book:
    """A canonical Huffman code (Huffman 1952): codewords in ascending order are those of blocks by length, then by number."""

    mean: float
    """Average magnitude of the symbols it is made for."""
    lengths: np.ndarray
    """Bits of each block's codeword."""
    codes: np.ndarray
    """The codewords."""
    order: np.ndarray
    """Blocks in ascending order of their codewords."""
    aligned: np.ndarray
    """These, in that order, with zeros behind them to `WINDOW` bits."""


WINDOW = 32
"""Bits that are looked at to find a codeword; none is longer."""


@lru_cache
def books(base: int) -> tuple[Book, ...]:
    """For blocks of symbols 0 .. base - 1, of which the one in the middle is 0: magnitudes fall off like Laplace's."""
    magnitude, found = np.abs(np.arange(base) - base // 2), list[Book]()
    for scale in np.geomspace(NARROWEST, WIDEST * (base // 2), BOOKS - 1):
        share = np.where(magnitude == 0, 2 * math.expm1(-0.5 / scale) / math.expm1(-1 / scale), np.exp((0.5 - magnitude) / scale))
        share /= share.sum()
        found.append(_book(_blocks(share, together(base)), float(share @ magnitude)))
    return (*found, _book(np.ones(base ** together(base)), math.inf))


def _blocks(share: np.ndarray, count: int) -> np.ndarray:
    """How frequent blocks are whose symbols do not know of each other; the first symbol is the lowest digit."""
    every = np.ones(1)
    for _ in range(count):
        every = np.outer(share, every).ravel()
    return (1 - RARE) * every + RARE / len(every)


def _book(share: np.ndarray, mean: float) -> Book:
    lengths = _lengths(share)
    order = np.lexsort((np.arange(len(share)), lengths))
    code, last, codes = 0, 0, np.zeros(len(share), dtype=np.int64)
    for block in order.tolist():
        code <<= int(lengths[block]) - last
        codes[block], last = code, int(lengths[block])
        code += 1
    return Book(mean, lengths, codes, order, codes[order] << (WINDOW - lengths[order]))


def _lengths(share: np.ndarray) -> np.ndarray:
    """Of the codewords: the two rarest are joined until one is left, of equally rare ones the first."""
    lengths, weights = np.zeros(len(share), dtype=np.int64), np.round(WEIGHTS * share / share.sum()).astype(np.int64)
    heap = [(weight, block, [block]) for block, weight in enumerate(weights.tolist())]
    heapq.heapify(heap)
    while len(heap) > 1:
        p, first, some = heapq.heappop(heap)
        q, _, others = heapq.heappop(heap)
        lengths[some] += 1
        lengths[others] += 1
        heapq.heappush(heap, (p + q, first, some + others))
    return lengths


@lru_cache
def borders(base: int) -> np.ndarray:
    """Mean magnitudes of symbols from which on the next book suits better."""
    means = np.array([book.mean for book in books(base)[:-1]])
    return np.sqrt(means[1:] * means[:-1])


def written(blocks: np.ndarray, number: int, base: int) -> bytes:
    """The number of a book, blocks as it has them, a 1, and zeros up to whole bytes; what comes first has the highest bits."""
    book = books(base)[number]
    lengths, codes = np.append(NUMBER, book.lengths[blocks]), np.append(number, book.codes[blocks])
    ends = lengths.cumsum()
    left = np.repeat(ends, lengths) - 1 - np.arange(ends[-1])
    return np.packbits(np.append((np.repeat(codes, lengths) >> left) & 1, 1).astype(np.uint8)).tobytes()


def read(message: np.ndarray, count: int, base: int) -> np.ndarray:
    """So many blocks; behind their end there may be zeros. What is no such message is refused."""
    book = books(base)[int(message[0]) >> (8 - NUMBER)]
    padded = np.concatenate((message, np.zeros(4, dtype=np.uint8))).astype(np.int64)
    words = np.sum([padded[k : len(message) + k] << (8 * (4 - k)) for k in range(5)], axis=0)  # 40 bits from each byte on
    places = np.arange(8 * len(message))
    window = (words[places >> 3] >> (8 - (places & 7))) & (2**WINDOW - 1)
    block = book.order[np.searchsorted(book.aligned, window, side="right") - 1]  # if a codeword began at that bit
    after, starts, place = (places + book.lengths[block]).tolist(), list[int](), NUMBER
    for _ in range(count):
        if place >= len(after):
            break
        starts.append(place)
        place = after[place]
    behind = np.unpackbits(message[place >> 3 :])[place & 7 :]
    if len(starts) < count or not (len(behind) and behind[0] == 1 and not behind[1:].any()):
        raise InvalidInput(f"a message does not end where its {count} blocks of symbols do. Do both ends run one experiment?")
    return block[starts]
