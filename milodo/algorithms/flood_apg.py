"""Accelerated proximal gradient on sums of what everybody tells everybody: the fewest rounds, and the most messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from milodo.algorithms.tree_apg import SumsAPG
from milodo.network import Network
from milodo.types import NodeTensor


@dataclass(frozen=True, kw_only=True)
class FloodAPG(SumsAPG):
    """With sums of what everybody tells everybody (Network.total_by_all): the fewest rounds there can be, n(n - 1) messages."""

    label: ClassVar[str] = "Flood-APG"
    needs: ClassVar[str] = "links that hold (a lost message breaks a sum); its rounds are the diameter, its messages grow like n²"

    def total(self, net: Network, x: NodeTensor, exact: int) -> NodeTensor:
        return net.total_by_all(x, exact)

    def rounds_on(self, net: Network) -> int:
        return len(net.topology.flood.rounds)

    def floats_on(self, net: Network, d: int) -> int:
        return net.topology.flood.messages * (d + 1)
