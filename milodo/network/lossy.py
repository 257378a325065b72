"""Links that are down now and then."""

from __future__ import annotations

import numpy as np
import torch

from milodo.errors import InvalidInput, as_float, quoted, whole
from milodo.network.base import Network
from milodo.network.wrapped import WrappedNetwork
from milodo.types import EdgeTensor, NodeTensor


class LossyNetwork(WrappedNetwork):
    """In every round each link is down with probability p, in both directions, and both ends know it.

    A node that hears nothing over a link takes its own value for the neighbour's: x_i - x_j counts as 0, so that lap stays
    symmetric and sums over all nodes (of duals, of tracked gradients) stay what they were. `both` is 0 over such a link: what
    was not agreed upon is not used. A link that is down carries no bytes; in the real runtime the outage is drawn, not suffered.
    """

    def __init__(self, inner: Network, p: float, *, seed: int = 0) -> None:
        number = as_float(p)
        if number is None or not 0 <= number < 1:
            raise InvalidInput(f"links are down with probability {quoted(p)}, but it must be at least 0 and below 1.")
        super().__init__(inner)
        self.p, self.seed = p, whole("seed", seed)
        number = {edge: k for k, edge in enumerate(self.topology.edges)}
        self._edge = np.array([number[min(arc), max(arc)] for arc in self.arcs], dtype=np.int64)
        self._up = torch.ones(len(self.arcs), 1, dtype=torch.bool, device=self.device)

    def _count(self, d: int, itemsize: int) -> None:
        """Draws which links are up in the round that begins: the same in every process."""
        draws = np.random.default_rng([self.seed, self.traffic.rounds - self.first_round]).random(len(self.topology.edges))
        up = draws[self._edge] >= self.p
        self._up = torch.from_numpy(up).unsqueeze(-1).to(self.device)
        self.traffic.count(edges=int(up.sum()), d=d, itemsize=itemsize)

    def _permute(self, e: EdgeTensor) -> EdgeTensor:
        return torch.where(self._up, self.inner._permute(e), e)

    def _fetch(self, x: NodeTensor) -> EdgeTensor:
        return torch.where(self._up, self.inner._fetch(x), self.spread(x))

    def total(self, x: NodeTensor) -> NodeTensor:
        raise InvalidInput(
            f"a sum over a spanning tree breaks if one message is lost, and links are down {self.p:.0%} of the time here. "
            "Use a method that gossips, e.g. accelerated-ed."
        )

    def both(self, e: EdgeTensor) -> EdgeTensor:
        agreed = super().both(e)
        return torch.where(self._up, agreed, torch.zeros_like(agreed))
