"""Gossip: every node tells its neighbours, in one round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network.base import Exchanged, Network
from milodo.network.channels import Format
from milodo.network.exchange.exchanges import Exchange
from milodo.network.replica import ARCS, NODES, Replica
from milodo.topology.filters import DIGITS
from milodo.topology.mixing import Mixing
from milodo.types import EdgeTensor, NodeTensor


@dataclass(frozen=True)
class Gossip(Exchange):
    """x_j of every neighbour j, and what is made of them: differences, the Laplacian, W x."""

    compressor: Format | None = None

    def __str__(self) -> str:
        return "gossip"

    def init(self, x: Tensor, net: Network, *, by_node: bool = True) -> Replica | None:
        """Of messages with a row a node [*batch, n, d]; with by_node=False, as for `both`, a row a directed edge [*batch, m, d].
        Where links fail or come and go what one link carried another did not: then there is a replica for each of them."""
        self.check(net)
        if self.compressor is None:
            return None
        m = len(net.arcs)
        by_node = by_node and net.holds
        received = x.new_zeros(*x.shape[:-2], m, x.shape[-1])
        return Replica(torch.zeros_like(x) if by_node else received, received, NODES if by_node else ARCS)

    def __call__(self, x: NodeTensor, state: Replica | None, net: Network) -> tuple[EdgeTensor, Replica | None]:
        """x_j of every neighbour j."""
        exchanged, state = self._exchanged(x, state, net)
        return exchanged.received, state

    def diff(self, x: NodeTensor, state: Replica | None, net: Network) -> tuple[EdgeTensor, Replica | None]:
        """x_i - x_j for every neighbour j."""
        exchanged, state = self._exchanged(x, state, net)
        return net.diff_of(exchanged), state

    def lap(self, x: NodeTensor, state: Replica | None, net: Network) -> tuple[NodeTensor, Replica | None]:
        """Σ_j w_ij (x_i - x_j)."""
        exchanged, state = self._exchanged(x, state, net)
        return net.lap_of(x, exchanged), state

    def mix(self, x: NodeTensor, state: Replica | None, net: Network) -> tuple[NodeTensor, Replica | None]:
        """W x."""
        exchanged, state = self._exchanged(x, state, net)
        return net.mix_of(x, exchanged), state

    def both(
        self, e: EdgeTensor, state: Replica | None, net: Network, *, smaller: bool = False
    ) -> tuple[EdgeTensor, Replica | None]:
        """(e_ij + e_ji) / 2, or the smaller of them, in which both ends of an edge agree; 0 where they could not."""
        exchanged, state = self._exchanged(e, state, net, by_node=False)
        return net.both_of(exchanged, smaller=smaller), state

    average, residual = mix, lap

    def rounds(self, mixing: Mixing) -> int:
        return 1

    def contraction(self, mixing: Mixing) -> float:
        return round(mixing.contraction, DIGITS)

    def noise_gain(self, mixing: Mixing) -> float:
        return round(mixing.high, DIGITS)

    def _exchanged(
        self, x: Tensor, state: Replica | None, net: Network, *, by_node: bool = True
    ) -> tuple[Exchanged, Replica | None]:
        if state is None:
            return net.exchanged(x, by_node=by_node), None
        assert self.compressor is not None and state.received is not None
        if torch.is_grad_enabled() and x.requires_grad:
            raise InvalidInput("compressed differences cannot be learned through. Train without a compressor, and run with it.")
        by_edge = by_node and state.route == ARCS
        if by_edge:
            x = net.spread(x)
        route, up = net.routes.of_nodes if state.route == NODES else net.routes.of_arcs, net.working()
        q, came = net.send(x - state.sent, route, self.compressor, up=up)
        sent, received = state.sent + q, state.received + came
        if up is None:
            return Exchanged(sent, received, None, by_edge), Replica(sent, received, state.route)
        # Where nothing arrived both ends go on with what they had: their replicas stay equal.
        up = up[route.edges].unsqueeze(-1)
        kept = Replica(torch.where(up, sent, state.sent), torch.where(up, received, state.received), state.route)
        return Exchanged(sent, torch.where(up, received, sent), up, by_edge), kept
