"""Exact sums of what everybody tells everybody: the fewest rounds there can be, and n(n - 1) messages."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from milodo.network.base import Network
from milodo.network.channels import Format
from milodo.network.exchange.all_reduce import ExactSum
from milodo.network.replica import FLOOD, Replica
from milodo.network.sums import in_one_order
from milodo.network.wire import beside, plus
from milodo.topology.mixing import Mixing
from milodo.types import NodeTensor


@dataclass(frozen=True)
class AllGather(ExactSum):
    """Everybody tells everybody: half the rounds of a tree on graphs without a middle, such as rings, and n/2 times as many
    messages. What a node says is passed on as it is, and added up in one order by all."""

    compressor: Format | None = None

    def __str__(self) -> str:
        return "a sum of what everybody says"

    def init(self, x: NodeTensor, net: Network) -> Replica | None:
        """Everybody has a replica of everybody."""
        self.check(net)
        if self.compressor is None:
            return None
        return Replica(torch.zeros_like(x), x.new_zeros(*x.shape[:-2], net.topology.n, x.shape[-1]), FLOOD)

    def __call__(self, x: NodeTensor, state: Replica | None, net: Network, exact: int = 0) -> tuple[NodeTensor, Replica | None]:
        """The last `exact` columns are added up as they are, and nothing of them is remembered."""
        d = x.shape[-1] - exact
        if state is None or d == 0:
            return net.total_by_all(x, exact), state
        assert state.received is not None
        net.begin_sum("a sum of what everybody says", net.routes.flood, x, self.compressor, exact)
        told = plus(state.received, net.told(beside(x[..., :d] - state.sent, x, d), self.compressor, exact), d)
        return in_one_order(told, x), state._replace(sent=told[..., net.nodes, :d], received=told[..., :d])

    def rounds(self, mixing: Mixing) -> int:
        return len(mixing.topology.flood.rounds)

    def messages(self, mixing: Mixing) -> int:
        return mixing.topology.flood.messages

    def noise_gain(self, mixing: Mixing) -> float:
        """Of n numbers that are each off by one, in their mean."""
        return 1.0
