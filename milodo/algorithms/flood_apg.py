"""Accelerated proximal gradient on sums of what everybody tells everybody: the fewest rounds, and the most messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from milodo.algorithms.tree_apg import TreeAPG
from milodo.network.exchange import AllGather, TreeAllReduce


@dataclass(frozen=True, kw_only=True)
class FloodAPG(TreeAPG):
    """Tree-APG with sums of what everybody tells everybody: the fewest rounds there can be, n(n - 1) messages."""

    exchange: TreeAllReduce | AllGather = AllGather()

    label: ClassVar[str] = "Flood-APG"
