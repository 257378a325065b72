"""Simulation: every node lives in one tensor, and a message is a row that changes place."""

from __future__ import annotations

from typing import Any, Self

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network.base import Exchanged, Network
from milodo.network.channels import Channel, Format
from milodo.network.routes import Route
from milodo.network.wire import measured
from milodo.topology import Schedule, Topology
from milodo.types import EdgeTensor, NodeTensor


class StackedNetwork(Network):
    """All nodes in this process.

    >>> net = StackedNetwork("ring(4)")
    >>> net.mix(torch.tensor([[1.0], [0.0], [0.0], [0.0]], dtype=torch.float64)).flatten().tolist()
    [0.33333333333333337, 0.3333333333333333, 0.0, 0.3333333333333333]
    """

    def __init__(
        self,
        graph: str | Topology | nx.Graph,
        weights: str | np.ndarray = "metropolis",
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(graph, weights, dtype=dtype, device=device)

    def _carry(self, message: Tensor, route: Route, up: Tensor | None = None, *, varies: bool = False) -> Tensor:
        return message.index_select(-2, route.rows)

    def _differentiably(self, x: Tensor, by_node: bool) -> EdgeTensor:
        # swap(spread(x)) in one gather instead of two.
        return x.index_select(-2, self.routes.of_nodes.rows) if by_node else super()._differentiably(x, by_node)

    def say(self, x: Tensor, route: Route, form: Format | None, exact: int, up: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # Nothing is packed that nobody carries.
        said, sizes = measured(form, x, exact)
        if sizes is not None:
            self._weigh(sizes, route, up)
        return said, said.index_select(-2, route.rows)

    def scatter(self, x: NodeTensor, form: Format | None, exact: int) -> NodeTensor:
        # What would come down is what the root has.
        root = x.narrow(-2, self.topology.tree.root, 1)
        said, sizes = measured(form if self.n > 1 else None, root, exact)
        if sizes is not None:
            for hop in self.routes.down:
                self._weigh(sizes.expand(*sizes.shape[:-1], len(hop.senders)), hop)
        return said.expand_as(x).contiguous()

    def told(self, x: NodeTensor, form: Format | None, exact: int) -> Tensor:
        said, sizes = measured(form, x, exact)
        if sizes is not None:
            known = sizes.repeat(*[1] * (x.ndim - 2), self.n)  # every node passes on what each has said
            for hop in self.routes.flood:
                self._weigh(known, hop)
        return said


class CommonMixingNetwork(StackedNetwork):
    """Mixes with Σ_j w_ij x_j, i itself included (eq. normal-implementation): only to show what Appendix D warns of.

    Rounded weights no longer sum to 1, so every round scales x by 1 + δ: in fp32 methods stall where the robust form goes on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Rounded from its exact value, as if W had been written down and then stored.
        self.w_own = (1 - self.sum(self.w64)).to(self.dtype)
        """w_ii [n, 1]."""

    def through(self, *channels: Channel) -> Self:
        if any(isinstance(channel, Schedule) for channel in channels):
            raise InvalidInput("common mixing is for one fixed graph. Remove the schedule, or use a StackedNetwork.")
        return super().through(*channels)

    def mix_of(self, x: NodeTensor, exchanged: Exchanged) -> NodeTensor:
        return self.w_own * x + self.sum(self.w * exchanged.received)

    def lap_of(self, x: NodeTensor, exchanged: Exchanged) -> NodeTensor:
        return x - self.mix_of(x, exchanged)
