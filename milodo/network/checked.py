"""Real links for fits, where every message that arrives is looked at: the node that sends what is not finite is named.

Nobody passes on what it has refused, so the neighbour from which such a message came is the node that is at fault; of a sum over
a spanning tree that is a child on the way up, or the parent on the way down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from milodo.errors import FaultyNode
from milodo.network.channels import Format
from milodo.network.distributed import DistributedNetwork
from milodo.network.routes import Route
from milodo.types import NodeTensor


def _finite(x: Tensor) -> bool:
    return bool(torch.isfinite(x).all())


def is_moderate(x: Tensor) -> bool:
    """Whether its numbers are finite and far from the largest there are. Where a method diverges, neighbours grow alike, and who
    is near the end of the numbers blames nobody."""
    return bool((x.abs() < torch.finfo(x.dtype).max ** 0.5).all())  # which NaN is not


class CheckedNetwork(DistributedNetwork):
    """Ends with FaultyNode where a node with moderate numbers of its own receives NaN or an infinity."""

    _own = True
    """Whether what the nodes held here put into the sum that is under way is moderate."""

    def begin_sum(self, what: str, hops: Sequence[Route], x: NodeTensor, form: Format | None, exact: int) -> None:
        self._own = is_moderate(x)
        super().begin_sum(what, hops, x, form, exact)

    def say(self, x: Tensor, route: Route, form: Format | None, exact: int, up: Tensor | None = None) -> tuple[Tensor, Tensor]:
        said, heard = super().say(x, route, form, exact, up)
        if not _finite(heard) and (is_moderate(x) if len(route.leaving) else self._own):
            for link in route.links:
                part = heard.index_select(-2, link.coming)
                if not _finite(part):
                    self._blame(self.peers.held[link.rank][0], part)
        return said, heard

    def scatter(self, x: NodeTensor, form: Format | None, exact: int) -> NodeTensor:
        found, (node, *_), tree = super().scatter(x, form, exact), self.nodes, self.topology.tree
        if not _finite(found) and node != tree.root and is_moderate(x):
            self._blame(tree.parent[node], found)
        return found

    def told(self, x: NodeTensor, form: Format | None, exact: int) -> Tensor:
        told = super().told(x, form, exact)
        if not _finite(told) and self._own:
            for node, row in enumerate(told.unbind(-2)):
                if not _finite(row):
                    self._blame(node, row)
        return told

    def _blame(self, node: int, received: Tensor) -> NoReturn:
        value = float(received[~torch.isfinite(received)][0])
        raise FaultyNode(
            node,
            f"sent {value:g} to node {self.nodes[0]} ({self.peers.doing}): its process computes wrongly, or its numbers are "
            "larger than a float can hold. Check its data and its machine; no model was saved",
        )
