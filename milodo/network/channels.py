"""What happens to messages on their way: a format shortens them, an outage loses some. Values, applied in this order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, as_float, quoted, unknown, whole


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


@dataclass(frozen=True)
class Cast(Format):
    """Every number in a shorter floating-point type."""

    to: torch.dtype

    def encode(self, x: Tensor) -> Tensor:
        return x.to(self.to)

    def decode(self, message: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        return message.to(dtype)

    def understood(self, x: Tensor) -> Tensor:
        return x.to(self.to).to(x.dtype)

    def numbers(self, d: int) -> int:
        return d


@dataclass(frozen=True)
class TopK(Format):
    """Of every message the largest coordinates in magnitude, each with its place; the others arrive as zeros."""

    fraction: float
    sparse = True

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

    def _places(self, x: Tensor) -> Tensor:
        return x.abs().topk(self.numbers(x.shape[-1]), dim=-1).indices


Channel = Format | Outage
"""A network has at most one of each (`Network.through`)."""
CASTS = ("float32", "float16", "bfloat16")
FORMATS = ("full", *CASTS, "top-10%")
"""Names, by example."""


def message_format(name: str) -> Format | None:
    """'full' sends what there is; 'float16' and its like cast; 'top-5%' sends the largest twentieth of the coordinates."""
    if not isinstance(name, str):
        raise unknown("kind of messages", name, FORMATS)
    if name == "full":
        return None
    if name in CASTS:
        return Cast(getattr(torch, name))
    if not (name.startswith("top-") and name.endswith("%")):
        raise unknown("kind of messages", name, FORMATS)
    try:
        percent = float(name[4:-1])
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise InvalidInput(f"messages = {quoted(name)}: the percentage must lie above 0 and at most at 100, e.g. 'top-10%'.")
    return TopK(percent / 100)
