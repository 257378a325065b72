"""A network that carries its messages by another one, simulated or real, and does something to them on the way."""

from __future__ import annotations

from torch import Tensor

from milodo.network.base import Network
from milodo.network.hops import Hop
from milodo.types import EdgeTensor, NodeTensor


class WrappedNetwork(Network):
    """Same nodes, edges, weights and traffic as the inner network."""

    def __init__(self, inner: Network) -> None:
        self.inner = inner
        self.topology, self.nodes, self.arcs = inner.topology, inner.nodes, inner.arcs
        self.w64, self.w, self.mixing = inner.w64, inner.w, inner.mixing
        self._source, self._degree = inner._source, inner._degree
        self.traffic = inner.traffic

    @property
    def iteration(self) -> int:
        return self.inner.iteration

    @iteration.setter
    def iteration(self, k: int) -> None:
        self.inner.iteration = k

    @property
    def first_round(self) -> int:
        return self.inner.first_round

    @first_round.setter
    def first_round(self, rounds: int) -> None:
        self.inner.first_round = rounds

    def _permute(self, e: EdgeTensor) -> EdgeTensor:
        return self.inner._permute(e)

    def _relay(self, x: NodeTensor, hop: Hop) -> Tensor:
        return self.inner._relay(x, hop)

    def _fetch(self, x: NodeTensor) -> EdgeTensor:
        return self.inner._fetch(x)
