"""Averages over all nodes: for metrics, stopping rules and the meta-loss. No method ever receives one."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Observer(Protocol):
    """Sees all nodes at once; a real network has no such thing while it computes."""

    def mean(self, x: Tensor, dim: int) -> Tensor:
        """Mean over all nodes of the network, which lie along `dim`; that axis disappears."""
        ...


class StackedObserver:
    """All nodes are in this process."""

    def mean(self, x: Tensor, dim: int) -> Tensor:
        return x.mean(dim)
