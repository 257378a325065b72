"""Exact sums over a spanning tree: the fewest messages there can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from milodo.network.base import Network
from milodo.network.channels import Format
from milodo.network.exchange.exchanges import Exchange
from milodo.network.replica import TOTAL, Replica, collected
from milodo.network.requirement import Requirement
from milodo.network.sums import REQUIRES
from milodo.network.wire import beside, plus
from milodo.topology.mixing import Mixing
from milodo.types import NodeTensor


class ExactSum(Exchange):
    """Σ_j x_j over all nodes, the very same numbers at every node."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return REQUIRES if self.compressor is None else REQUIRES - {Requirement.EVERY_COORDINATE}

    def average(self, x: NodeTensor, state: Any, net: Network) -> tuple[NodeTensor, Any]:
        total, state = self(x, state, net)
        return total / net.topology.n, state

    def residual(self, x: NodeTensor, state: Any, net: Network) -> tuple[NodeTensor, Any]:
        mean, state = self.average(x, state, net)
        return x - mean, state

    def contraction(self, mixing: Mixing) -> float:
        return 0.0


@dataclass(frozen=True)
class TreeAllReduce(ExactSum):
    """Partial sums go up a spanning tree and the total comes down: one message up and one down each of its edges, in as many
    rounds as the tree is high, twice."""

    compressor: Format | None = None

    def __str__(self) -> str:
        return "a sum over a spanning tree"

    def init(self, x: NodeTensor, net: Network) -> Any:
        """A replica for each edge of the tree on the way up, and one for all of the total."""
        self.check(net)
        if self.compressor is None:
            return None
        batch, d = x.shape[:-2], x.shape[-1]
        replicas = [
            Replica(x.new_zeros(*batch, len(hop.senders), d), x.new_zeros(*batch, hop.arrivals, d), f"up{number}")
            for number, hop in enumerate(net.routes.up)
        ]
        return collected([*replicas, *([Replica(torch.zeros_like(x), None, TOTAL)] if replicas else [])])

    def __call__(self, x: NodeTensor, state: Any, net: Network, exact: int = 0) -> tuple[NodeTensor, Any]:
        """The last `exact` columns are added up as they are, and nothing of them is remembered."""
        d = x.shape[-1] - exact
        if state is None or d == 0:
            return net.total(x, exact), state
        form, after = self.compressor, list[Replica]()
        net.begin_sum("a sum over a spanning tree", (*net.routes.up, *net.routes.down), x, form, exact)
        for hop, replica in zip(net.routes.up, state, strict=False):
            part = x.index_select(-2, hop.senders)
            q, came = net.say(beside(part[..., :d] - replica.sent, part, d), hop, form, exact)
            sent, received = plus(replica.sent, q, d), plus(replica.received, came, d)
            x = x.index_add(-2, hop.receivers, received)
            after.append(replica._replace(sent=sent[..., :d], received=received[..., :d]))
        if not after:  # alone
            return x, state
        total = state[-1]
        x = plus(total.sent, net.scatter(beside(x[..., :d] - total.sent, x, d), form, exact), d)
        return x, collected([*after, total._replace(sent=x[..., :d])])

    def rounds(self, mixing: Mixing) -> int:
        return 2 * mixing.topology.tree.height

    def messages(self, mixing: Mixing) -> int:
        return 2 * (mixing.topology.n - 1)

    def noise_gain(self, mixing: Mixing) -> float:
        """Errors on the way up are added up and divided by n, that of the total comes on top; no node's own is in its mean."""
        return 2.0
