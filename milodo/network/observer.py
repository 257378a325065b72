"""Averages over all nodes: for metrics, stopping rules and the meta-loss. No method ever receives one."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from milodo.network.base import Network
from milodo.network.distributed import Peers
from milodo.network.frames import OBSERVED_DOWN, OBSERVED_UP
from milodo.network.traffic import Traffic
from milodo.topology import spanning_tree


class Observer(Protocol):
    """Sees all nodes at once; a real network has no such thing while it computes, and pays for it with sums of their own."""

    traffic: Traffic
    """What its sums send, beside the traffic of the method."""

    def mean(self, x: Tensor, dim: int) -> Tensor:
        """Mean over all nodes of the network, which lie along `dim`; that axis disappears."""
        ...

    def total(self, x: Tensor) -> Tensor:
        """Sum over all processes."""
        ...

    def agreed(self, x: Tensor) -> Tensor:
        """One answer for all processes where each has its own: their mean, a process counting as much as it holds nodes."""
        ...

    def price(self, x: Tensor) -> int:
        """Bytes that this process sends for `total(x)`."""
        ...


class StackedObserver:
    """All nodes are in this process. Of a network it counts what a process a node would send for the same sums (`TreeObserver`);
    of none it counts nothing."""

    def __init__(self, net: Network | None = None) -> None:
        self.traffic = Traffic() if net is None else net.checks
        self._messages, self._rounds = (0, 0) if net is None else (2 * (net.topology.n - 1), 2 * net.topology.tree.height)

    def mean(self, x: Tensor, dim: int) -> Tensor:
        return self.total(x.mean(dim))

    def total(self, x: Tensor) -> Tensor:
        if self._messages:
            self.traffic.count(messages=self._messages, numbers=x.numel(), size=_size(x), rounds=self._rounds)
        return x

    def agreed(self, x: Tensor) -> Tensor:
        return self.total(x)

    def price(self, x: Tensor) -> int:
        return self._messages * _size(x)


class TreeObserver:
    """Nodes are in many processes: sums go up a spanning tree of neighbours to its root, and the result comes down again.

    Collective operations of torch.distributed would open connections between processes that hold no neighbours. All processes
    get the very same numbers, so they stop at the same iteration. What moves here is not the method's traffic: it is counted in
    `checks`, that of the network if it is given.
    """

    def __init__(self, peers: Peers, n: int, device: torch.device | str = "cpu", *, checks: Traffic | None = None) -> None:
        self.peers, self.n, self.device = peers, n, device
        self.traffic = Traffic() if checks is None else checks
        tree = spanning_tree(peers.graph)  # where every node has a process of its own, the tree of Network.total
        self.children = tree.children(peers.rank)
        self.parent = tree.parent[peers.rank] if peers.rank != tree.root else None
        self._rounds = 2 * tree.height

    @torch.no_grad()
    def mean(self, x: Tensor, dim: int) -> Tensor:
        return self.total(x.sum(dim)) / self.n

    @torch.no_grad()
    def total(self, x: Tensor) -> Tensor:
        peers, total = self.peers, x.detach().to(self.device).clone().contiguous()
        if self._rounds:
            self.traffic.count(messages=self._messages, numbers=total.numel(), size=_size(total), rounds=self._rounds)
        parts = [(rank, torch.empty_like(total)) for rank in self.children]
        peers.number += 1  # of all processes, whether they have children or not
        peers.wait(peers.exchange([], parts, OBSERVED_UP))
        for _, part in parts:
            total += part
        if self.parent is not None:
            peers.wait(peers.exchange([(self.parent, total)], [], OBSERVED_UP))
            peers.wait(peers.exchange([], [(self.parent, total)], OBSERVED_DOWN))
        peers.wait(peers.exchange([(rank, total) for rank in self.children], [], OBSERVED_DOWN))
        return total.to(x.device)

    @property
    def _messages(self) -> int:
        """That this process sends for one sum."""
        return len(self.children) + (self.parent is not None)

    def agreed(self, x: Tensor) -> Tensor:
        return self.total(x * (len(self.peers.held[self.peers.rank]) / self.n))

    def price(self, x: Tensor) -> int:
        return self._messages * _size(x)

    def barrier(self) -> None:
        """Returns when every process has come here."""
        self.total(torch.zeros(1))


def _size(x: Tensor) -> int:
    return x.numel() * x.element_size()
