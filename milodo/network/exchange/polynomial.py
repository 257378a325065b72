"""Polynomials of the mixing matrix: K rounds that mix better than K times one round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from milodo.errors import unknown
from milodo.network.base import Network
from milodo.network.channels import Format
from milodo.network.exchange.exchanges import Exchange
from milodo.network.exchange.gossip import Gossip
from milodo.network.replica import Replica, collected
from milodo.network.requirement import Requirement
from milodo.topology.filters import FILTERS, FastMix, Filter, Series, polynomial
from milodo.topology.mixing import Mixing
from milodo.types import NodeTensor


@dataclass(frozen=True)
class Polynomial(Exchange):
    """A = p(W) of degree K, made for the spectrum of the network's own weights (milodo/topology/filters.py)."""

    kind: str = "minimax"
    """One of FILTERS."""
    K: int = 1
    compressor: Format | None = None

    def __post_init__(self) -> None:
        if self.kind not in FILTERS:
            raise unknown("polynomial", self.kind, FILTERS)

    def __str__(self) -> str:
        return f"{self.kind} with K = {self.K}"

    @property
    def requires(self) -> frozenset[Requirement]:
        """Of degree one, beside FastMix, it is W or a multiple of the Laplacian, on any graph."""
        return frozenset() if self.K == 1 and self.kind != "fastmix" else frozenset({Requirement.FIXED_GRAPH})

    def filter(self, mixing: Mixing) -> Filter:
        return polynomial(self.kind, mixing, self.K)

    def init(self, x: NodeTensor, net: Network) -> Any:
        """A replica for each of the K rounds."""
        self.check(net)
        gossip = Gossip(self.compressor)
        return None if self.compressor is None else collected([gossip.init(x, net) for _ in range(self.K)])

    def __call__(self, x: NodeTensor, state: Any, net: Network) -> tuple[NodeTensor, Any]:
        """A x."""
        return self.average(x, state, net)

    def average(self, x: NodeTensor, state: Any, net: Network) -> tuple[NodeTensor, Any]:
        filter = self.filter(net.mixing)
        if not isinstance(filter, FastMix):
            residual, state = self.residual(x, state, net)
            return x - residual, state
        rounds, last = Rounds(self.compressor, state, net), x
        for _ in range(self.K):
            x, last = torch.lerp(last, rounds.mix(x), 1 + filter.momentum), x  # lerp(a, b, t) = a + t (b - a)
        return x, rounds.state

    def residual(self, x: NodeTensor, state: Any, net: Network) -> tuple[NodeTensor, Any]:
        filter = self.filter(net.mixing)
        if not isinstance(filter, Series):
            mixed, state = self.average(x, state, net)
            return x - mixed, state
        rounds = Rounds(self.compressor, state, net)
        scale = 2 / filter.mixing.high if filter.mixing.high else 1.0
        first = scale * rounds.lap(x)
        before, d, found = torch.zeros_like(x), first, filter.coefficients[1] * first
        for c in filter.coefficients[2:]:
            before, d = d, 2 * (first + d - scale * rounds.lap(d)) - before
            found = found + c * d
        return found, rounds.state

    def rounds(self, mixing: Mixing) -> int:
        return self.K

    def contraction(self, mixing: Mixing) -> float:
        return self.filter(mixing).contraction

    def noise_gain(self, mixing: Mixing) -> float:
        return self.filter(mixing).noise_gain


class Rounds:
    """The rounds of one application; the k-th has the k-th replica."""

    def __init__(self, compressor: Format | None, state: Any, net: Network) -> None:
        self.gossip, self.before, self.net = Gossip(compressor), state, net
        self.after = list[Replica | None]()

    def _next(self) -> Replica | None:
        return None if self.before is None else self.before[len(self.after)]

    def lap(self, x: NodeTensor) -> NodeTensor:
        lap, replica = self.gossip.lap(x, self._next(), self.net)
        self.after.append(replica)
        return lap

    def mix(self, x: NodeTensor) -> NodeTensor:
        mixed, replica = self.gossip.mix(x, self._next(), self.net)
        self.after.append(replica)
        return mixed

    @property
    def state(self) -> Any:
        return None if self.before is None else collected(self.after)
