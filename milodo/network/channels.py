"""What happens to messages on their way: a format shortens them, an outage loses some. Values, applied in this order."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, as_float, quoted, whole
from milodo.network.digits import digits_size, pack_digits, unpack_digits
from milodo.topology import Schedule


@dataclass(frozen=True)
class Outage:
    """In every round each link is down with probability p, in both directions, and both ends know it.

    A node that hears nothing over a link takes what it said itself for what it would have heard: x_i - x_j counts as 0, so that
    lap stays symmetric and sums over all nodes (of duals, of tracked gradients) stay what they were. `both` is 0 over such a
    link: what was not agreed upon is not used. A link that is down carries no bytes; in the real runtime the outage is drawn, not
    suffered.
    """

    p: float
    seed: int = 0

    def __post_init__(self) -> None:
        number = as_float(self.p)
        if number is None or not 0 <= number < 1:
            raise InvalidInput(f"links are down with probability {quoted(self.p)}, but it must be at least 0 and below 1.")
        whole("seed", self.seed)

    def up(self, edges: int, k: int, round: int) -> Tensor:
        """Which undirected edges work in a round of iteration k: the same in every process, whatever ran before."""
        return torch.from_numpy(np.random.default_rng([self.seed, k, round]).random(edges) >= self.p)


class Format(ABC):
    """What a message looks like on its way, at the price of accuracy: both ends use what it still says.

    Q(x_i) - Q(x_j) keeps lap symmetric and its sum zero. The price is a floor: nodes agree up to the format's rounding, and no
    better (docs/decentralised.md has figures).
    """

    sparse: ClassVar[bool] = False
    """Whether coordinates are left out, which suits iterates and not weights, nor sums."""
    varies: ClassVar[bool] = False
    """Whether what a message says decides on its length: then zeros behind its last byte, which is none, do not travel."""

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """[*, d] -> what is sent, [*, width]."""

    @abstractmethod
    def decode(self, message: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        """What is received -> [*, d]."""

    @abstractmethod
    def understood(self, x: Tensor) -> Tensor:
        """decode(encode(x)), in a form that can be differentiated."""

    @abstractmethod
    def numbers(self, d: int) -> int:
        """In a message of d coordinates."""

    @abstractmethod
    def size(self, d: int, dtype: torch.dtype) -> int:
        """Bytes of a message of d coordinates, of the longest where they vary."""

    def sizes(self, x: Tensor) -> Tensor:
        """Bytes of each of these messages, [*, d] -> [*]."""
        return torch.full(x.shape[:-1], self.size(x.shape[-1], x.dtype))

    def measured(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """understood(x) and sizes(x), of which one may give the other."""
        return self.understood(x), self.sizes(x)

    def wire(self, dtype: torch.dtype) -> torch.dtype:
        """The type of what is sent."""
        return torch.uint8


@dataclass(frozen=True)
class Cast(Format):
    """Every number in a shorter floating-point type."""

    to: torch.dtype

    def __str__(self) -> str:
        return str(self.to).removeprefix("torch.")

    def encode(self, x: Tensor) -> Tensor:
        return x.to(self.to)

    def decode(self, message: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        return message.to(dtype)

    def understood(self, x: Tensor) -> Tensor:
        return x.to(self.to).to(x.dtype)

    def numbers(self, d: int) -> int:
        return d

    def size(self, d: int, dtype: torch.dtype) -> int:
        return d * self.to.itemsize

    def wire(self, dtype: torch.dtype) -> torch.dtype:
        return self.to


@dataclass(frozen=True)
class TopK(Format):
    """Of every message the largest coordinates in magnitude, each with its place; the others arrive as zeros."""

    fraction: float
    sparse = True

    def __str__(self) -> str:
        return f"top {self.fraction:.2g}"

    def encode(self, x: Tensor) -> Tensor:
        places = self._places(x)
        values = x.gather(-1, places).contiguous()
        return torch.cat((values.view(torch.uint8), places.to(torch.int32).view(torch.uint8)), dim=-1)

    def decode(self, message: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        size = torch.finfo(dtype).bits // 8
        count = message.shape[-1] // (size + 4)
        values = message[..., : count * size].clone(memory_format=torch.contiguous_format).view(dtype)
        places = message[..., count * size :].clone(memory_format=torch.contiguous_format).view(torch.int32).long()
        if places.numel() and not (int(places.min()) >= 0 and int(places.max()) < d):
            raise InvalidInput(
                f"a message speaks of a coordinate that does not exist among {d}. Do both ends run one experiment?"
            )
        return values.new_zeros(*message.shape[:-1], d).scatter(-1, places, values)

    def understood(self, x: Tensor) -> Tensor:
        places = self._places(x)
        return torch.zeros_like(x).scatter(-1, places, x.gather(-1, places))

    def numbers(self, d: int) -> int:
        return max(1, round(self.fraction * d))

    def size(self, d: int, dtype: torch.dtype) -> int:
        return self.numbers(d) * (dtype.itemsize + 4)

    def _places(self, x: Tensor) -> Tensor:
        return x.abs().topk(self.numbers(x.shape[-1]), dim=-1).indices


class Symbols(Format):
    """Every number as one of a few equally spaced ones, packed; s, the largest magnitude, is sent along.

    Rounding is deterministic, to the nearest. Of s a message has 16 bits and its power of two, so that other units, however far
    off, give the same symbols. What is not finite arrives as NaN: a method that diverges is seen to diverge at both ends.
    """

    SCALE: ClassVar[int] = 4
    """Bytes of s."""

    @property
    @abstractmethod
    def most(self) -> int:
        """Symbols are whole numbers from -most to most."""

    @property
    def beyond(self) -> float:
        """How far s lies beyond the last symbol, in units of a symbol."""
        return 0.0

    @abstractmethod
    def _packed(self, symbols: Tensor) -> Tensor:
        """Symbols from 0 to 2 most, as bytes."""

    @abstractmethod
    def _unpacked(self, message: Tensor, d: int) -> Tensor:
        """What `_packed` was given."""

    def encode(self, x: Tensor) -> Tensor:
        symbols, mantissa, power = self._quantized(x)
        message = self._packed(torch.from_numpy(symbols + self.most))
        return torch.cat((_bytes(mantissa, 2), _bytes(power + BIAS, 2), message), dim=-1).to(x.device)

    def decode(self, message: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        head = message[..., : self.SCALE].cpu().numpy().astype(np.int32)
        mantissa, power = head[..., 0:1] + 256 * head[..., 1:2], head[..., 2:3] + 256 * head[..., 3:4] - BIAS
        unit = torch.from_numpy(self._unit(mantissa, power)).to(message.device)
        return ((self._unpacked(message[..., self.SCALE :], d).double() - self.most) * unit).to(dtype)

    def understood(self, x: Tensor) -> Tensor:
        return self._received(x, *self._quantized(x))

    def _received(self, x: Tensor, symbols: np.ndarray, mantissa: np.ndarray, power: np.ndarray) -> Tensor:
        received = torch.from_numpy(symbols * self._unit(mantissa, power)).to(x.device, x.dtype)
        learns = torch.is_grad_enabled() and x.requires_grad
        return (
            x + (received - x).detach() if learns else received
        )  # rounding has no slope: it is learned through as if it were not there

    def numbers(self, d: int) -> int:
        return d

    def _quantized(self, x: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Symbols, whole numbers in fp64 like all that is computed here, and the mantissa and the power of s [*, 1]:

        s = mantissa/2¹⁶ · 2^power, at least the largest magnitude; a mantissa of 0 says that s is not finite. In numpy, because
        messages are short and packed on the host, and a call of torch takes three times as long.
        """
        values = x.detach().cpu().numpy().astype(np.float64, copy=False)
        largest = np.abs(values).max(-1, keepdims=True, initial=0.0)
        fine = np.isfinite(largest)
        share, power = np.frexp(np.where(fine, largest, 0.0))
        mantissa = np.where(fine, np.ceil(share * 2**16).clip(1, 2**16 - 1), 0).astype(np.int32)  # 1 where everything is 0
        with np.errstate(over="ignore", invalid="ignore"):
            symbols = np.rint(values / np.maximum(self._unit(mantissa, power), TINY)).clip(-self.most, self.most)
        if not fine.all():
            symbols[np.isnan(symbols)] = 0
        return symbols, mantissa, power

    def _unit(self, mantissa: np.ndarray, power: np.ndarray) -> np.ndarray:
        """s / (most + beyond)."""
        share = np.where(mantissa > 0, mantissa / (2**15 * (self.most + self.beyond)), np.nan)
        return np.ldexp(share, power - 1)  # half the power, which may be one more than fp64 has


@dataclass(frozen=True)
class Bits(Symbols):
    """Every number as one of 2ᵇ - 1 between -s and s, in b bits."""

    b: int

    def __post_init__(self) -> None:
        if whole("the number of bits", self.b, least=2) > 10:
            raise InvalidInput(f"{self.b} bits: between 2 and 10 are packed. Use 'float16' or longer messages instead.")

    @property
    def most(self) -> int:
        return 2 ** (self.b - 1) - 1

    def size(self, d: int, dtype: torch.dtype) -> int:
        return self.SCALE + packed_size(d, self.b)

    def _packed(self, symbols: Tensor) -> Tensor:
        return pack(symbols, self.b)

    def _unpacked(self, message: Tensor, d: int) -> Tensor:
        return unpack(message, self.b, d)

    def __str__(self) -> str:
        return f"{self.b} bits"


@dataclass(frozen=True)
class Levels(Symbols):
    """Every number as one of an odd number of levels, the last of them half a step short of s: nothing is off by more than a
    level's share of s. Five, in 2.34 bits a number, took the iterations of 3 bits, which are seven that reach s."""

    levels: int

    def __post_init__(self) -> None:
        if whole("the number of levels", self.levels, least=3) > 255 or self.levels % 2 == 0:
            raise InvalidInput(f"{self.levels} levels: give an odd number between 3 and 255, so that 0 is one of them.")

    @property
    def most(self) -> int:
        return self.levels // 2

    @property
    def beyond(self) -> float:
        return 0.5

    def size(self, d: int, dtype: torch.dtype) -> int:
        return self.SCALE + digits_size(d, self.levels)

    def _packed(self, symbols: Tensor) -> Tensor:
        return pack_digits(symbols.to(torch.int64), self.levels)

    def _unpacked(self, message: Tensor, d: int) -> Tensor:
        return unpack_digits(message, self.levels, d)

    def __str__(self) -> str:
        return f"{self.levels} levels"


BIAS = 1100
"""Added to powers of two, the lowest of which is that of the smallest number fp64 knows, so that none is negative."""
TINY = 5e-324
"""The smallest such number: what is divided by it instead of by 0 is 0."""


def _bytes(numbers: np.ndarray, count: int) -> Tensor:
    """The lowest bytes of whole numbers [*, 1] -> [*, count]."""
    return torch.from_numpy(np.concatenate([(numbers >> (8 * place)) & 255 for place in range(count)], axis=-1).astype(np.uint8))


def packed_size(d: int, b: int) -> int:
    """Bytes of d symbols of b bits."""
    if b > 8:
        return d + packed_size(d, b - 8)
    together = _together(b)
    return -(-d // together) * (together * b // 8)


def pack(symbols: Tensor, b: int) -> Tensor:
    """Whole numbers below 2ᵇ, [*, d], as bytes [*, packed_size(d, b)]; those above 8 bits in two layers."""
    if b > 8:
        symbols = symbols.to(torch.int16)
        return torch.cat((pack(symbols & 255, 8), pack(symbols >> 8, b - 8)), dim=-1)
    together, d = _together(b), symbols.shape[-1]
    symbols = torch.nn.functional.pad(symbols.to(_word(b)), (0, -d % together)).unflatten(-1, (-1, together))
    word = symbols[..., 0]
    for place in range(1, together):
        word = word | (symbols[..., place] << (place * b))
    if word.dtype == torch.uint8:
        return word
    return torch.stack([(word >> (8 * k)).to(torch.uint8) for k in range(together * b // 8)], dim=-1).flatten(-2)


def unpack(message: Tensor, b: int, d: int) -> Tensor:
    """What `pack` was given."""
    if b > 8:
        return unpack(message[..., :d], 8, d) | (unpack(message[..., d:], b - 8, d).to(torch.int16) << 8)
    together = _together(b)
    parts = message.to(_word(b)).unflatten(-1, (-1, together * b // 8))
    word = parts[..., 0]
    for k in range(1, parts.shape[-1]):
        word = word | (parts[..., k] << (8 * k))
    return torch.stack([(word >> (place * b)) & (2**b - 1) for place in range(together)], dim=-1).flatten(-2)[..., :d]


def _word(b: int) -> torch.dtype:
    """The shortest type that holds the bits of symbols that fill whole bytes together: half of the time is moving them."""
    bits = _together(b) * b
    return torch.uint8 if bits == 8 else torch.int32 if bits < 32 else torch.int64


def _together(b: int) -> int:
    """How many symbols of b <= 8 bits fill whole bytes."""
    return 8 // math.gcd(b, 8)


Channel = Format | Outage | Schedule
"""A network has at most one of each (`Network.through`)."""
