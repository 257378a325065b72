"""Simulation: every node lives in one tensor, and a message is a row that changes place."""

from __future__ import annotations

from typing import Any

import torch

from milodo.errors import InvalidInput
from milodo.network.base import Network
from milodo.network.hops import Hop
from milodo.types import EdgeTensor, NodeTensor


class StackedNetwork(Network):
    """All nodes in this process.

    >>> net = StackedNetwork("ring(4)")
    >>> net.mix(torch.tensor([[1.0], [0.0], [0.0], [0.0]], dtype=torch.float64)).flatten().tolist()
    [0.33333333333333337, 0.3333333333333333, 0.0, 0.3333333333333333]
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.n != self.topology.n:
            raise InvalidInput(f"a StackedNetwork holds all {self.topology.n} nodes of {self.topology}; leave out nodes=...")
        row = {arc: k for k, arc in enumerate(self.arcs)}
        self._reverse = torch.tensor([row[j, i] for i, j in self.arcs], dtype=torch.long, device=self.device)
        self._target = torch.tensor([j for _, j in self.arcs], dtype=torch.long, device=self.device)

    def _permute(self, e: EdgeTensor) -> EdgeTensor:
        return e.index_select(-2, self._reverse)

    def _fetch(self, x: NodeTensor) -> EdgeTensor:
        # swap(spread(x)) in one gather instead of two.
        return x.index_select(-2, self._target)

    def _relay(self, x: NodeTensor, hop: Hop) -> torch.Tensor:
        return x.index_select(-2, hop.sources)

    def _total(self, x: NodeTensor) -> NodeTensor:
        for hop in self._hops[0]:
            x = x.index_add(-2, hop.targets, self._relay(x, hop))
        # What would come down is what the root has.
        root = self.topology.tree.root
        return x.narrow(-2, root, 1).expand_as(x).contiguous()


class CommonMixingNetwork(StackedNetwork):
    """Mixes with Σ_j w_ij x_j, i itself included (eq. normal-implementation): only to show what Appendix D warns of.

    Rounded weights no longer sum to 1, so every round scales x by 1 + δ: in fp32 methods stall where the robust form goes on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Rounded from its exact value, as if W had been written down and then stored.
        self.w_own = (1 - self.sum(self.w64)).to(self.dtype)
        """w_ii [n, 1]."""

    def mix(self, x: NodeTensor) -> NodeTensor:
        return self.w_own * x + self.sum(self.w * self.pull(x))

    def lap(self, x: NodeTensor) -> NodeTensor:
        return x - self.mix(x)
