"""Messages in fewer bytes, at the price of accuracy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.errors import InvalidInput, quoted, unknown
from milodo.network.base import Network
from milodo.network.hops import Hop
from milodo.network.lossy import LossyNetwork
from milodo.network.wrapped import WrappedNetwork
from milodo.types import EdgeTensor, NodeTensor


class Codec(ABC):
    """What a message looks like on its way."""

    sparse = False
    """Whether coordinates are left out, which suits iterates and not weights."""

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """[*, d] -> what is sent, [*, width]."""

    @abstractmethod
    def decode(self, message: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        """What is received -> [*, d]."""


@dataclass(frozen=True)
class Cast(Codec):
    """Every number in a shorter floating-point type."""

    to: torch.dtype

    def encode(self, x: Tensor) -> Tensor:
        return x.to(self.to)

    def decode(self, message: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        return message.to(dtype)


@dataclass(frozen=True)
class TopK(Codec):
    """Of every message the largest coordinates in magnitude, each with its place; the others arrive as zeros."""

    fraction: float
    sparse = True

    def encode(self, x: Tensor) -> Tensor:
        count = max(1, round(self.fraction * x.shape[-1]))
        places = x.abs().topk(count, dim=-1).indices
        values = x.gather(-1, places).contiguous()
        return torch.cat((values.view(torch.uint8), places.to(torch.int32).view(torch.uint8)), dim=-1)

    def decode(self, message: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        size = torch.finfo(dtype).bits // 8
        count = message.shape[-1] // (size + 4)
        values = message[..., : count * size].clone(memory_format=torch.contiguous_format).view(dtype)
        places = message[..., count * size :].clone(memory_format=torch.contiguous_format).view(torch.int32).long()
        if count and not (int(places.min()) >= 0 and int(places.max()) < d):
            raise InvalidInput(
                f"a message speaks of a coordinate that does not exist among {d}. Do both ends run one experiment?"
            )
        return values.new_zeros(*message.shape[:-1], d).scatter(-1, places, values)


CODECS = ("full", "float32", "float16", "bfloat16", "top-10%")
"""Names, by example."""


def codec(name: str) -> Codec | None:
    """'full' sends what there is; 'float16' and its like cast; 'top-5%' sends the largest twentieth of the coordinates."""
    if not isinstance(name, str):
        raise unknown("kind of messages", name, CODECS)
    if name == "full":
        return None
    if name in ("float32", "float16", "bfloat16"):
        return Cast(getattr(torch, name))
    if name.startswith("top-") and name.endswith("%"):
        try:
            percent = float(name[4:-1])
        except ValueError:
            percent = 0.0
        if 0 < percent <= 100:
            return TopK(percent / 100)
        raise InvalidInput(f"messages = {quoted(name)}: the percentage must lie above 0 and at most at 100, e.g. 'top-10%'.")
    raise unknown("kind of messages", name, CODECS)


class CompressedNetwork(WrappedNetwork):
    """Sends encoded iterates, and uses the decoded ones at both ends: Q(x_i) - Q(x_j) keeps lap symmetric and its sum zero.

    The price is a floor: nodes agree up to the codec's rounding, and no better (docs/decentralised.md has figures). Weights
    that `both` and `swap` carry are cast, but never made sparse.
    """

    def __init__(self, inner: Network, codec: Codec) -> None:
        if not isinstance(codec, Codec):
            raise InvalidInput(f"{quoted(codec)} is no codec. Give one by its name to degraded(net, messages=...).")
        super().__init__(inner)
        self.codec = codec

    def _received(self, x: NodeTensor) -> tuple[Tensor, EdgeTensor]:
        """What the neighbours know of x, and what we know of theirs. One round."""
        message, decode, before = self.codec.encode(x), self.codec.decode, self.traffic.floats
        arrived = self.inner.pull(message)
        if self.codec.sparse:  # packed into bytes: a value and its place are counted as one float
            sent = self.traffic.floats - before
            self.traffic.recount(floats=sent // (x.element_size() + 4), of=sent)
        return decode(message, x.shape[-1], x.dtype), decode(arrived, x.shape[-1], x.dtype)

    def pull(self, x: NodeTensor) -> EdgeTensor:
        return self._received(x)[1]

    def diff(self, x: NodeTensor) -> EdgeTensor:
        own, theirs = self._received(x)
        return self.spread(own) - theirs

    def total(self, x: NodeTensor) -> NodeTensor:
        if self.codec.sparse:
            raise InvalidInput(
                "a sum over a spanning tree needs every coordinate, and these messages leave most of them out. "
                "Use messages = 'float32' or shorter, or a method that gossips, e.g. accelerated-ed."
            )
        return super().total(x)

    def _itemsize(self, x: Tensor) -> int:
        return self.codec.encode(x[..., :1, :1]).element_size()

    def _total(self, x: NodeTensor) -> NodeTensor:
        up, down = self._hops
        for hop in up:
            x = x.index_add(-2, hop.targets, self._relay(x, hop))
        x = self.codec.decode(self.codec.encode(x), x.shape[-1], x.dtype)  # the root, too, goes on with what it sends
        for hop in down:
            x = x.index_copy(-2, hop.targets, self._relay(x, hop))
        return x

    def _relay(self, x: NodeTensor, hop: Hop) -> Tensor:
        return self.codec.decode(self.inner._relay(self.codec.encode(x), hop), x.shape[-1], x.dtype)

    def _cast(self, e: EdgeTensor) -> EdgeTensor:
        return e if self.codec.sparse else self.codec.encode(e)

    def swap(self, e: EdgeTensor) -> EdgeTensor:
        return self.inner.swap(self._cast(e)).to(e.dtype)

    def both(self, e: EdgeTensor) -> EdgeTensor:
        return self.inner.both(self._cast(e)).to(e.dtype)


def degraded(net: Network, *, outage: float = 0.0, messages: str = "full", seed: int = 0) -> Network:
    """The network with links that fail and short messages, as far as asked for."""
    if outage:
        net = LossyNetwork(net, outage, seed=seed)
    how = codec(messages)
    return net if how is None else CompressedNetwork(net, how)
