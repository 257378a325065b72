"""Edges laid out by node: networks whose input width is the degree need a rectangle, and only they do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from milodo.topology import Topology
from milodo.types import EdgeTensor


class Slots(nn.Module):
    """Between [*batch, m, d] and [*batch, n, width, d], each node's edges in order; where degrees differ, zeros fill up."""

    place: Tensor
    """Where in [n · width] each edge has its place."""

    def __init__(self, graph: Topology, nodes: Sequence[int]) -> None:
        super().__init__()
        self.n, self.width = len(nodes), max(graph.degrees, default=0)
        place = [row * self.width + slot for row, node in enumerate(nodes) for slot in range(graph.degrees[node])]
        self.register_buffer("place", torch.tensor(place), persistent=False)

    def by_node(self, e: EdgeTensor) -> Tensor:
        shape = (*e.shape[:-2], self.n, self.width, e.shape[-1])
        if e.shape[-2] == self.n * self.width:
            return e.reshape(shape)
        padded = e.new_zeros(*e.shape[:-2], self.n * self.width, e.shape[-1])
        return padded.index_copy(-2, self.place, e).reshape(shape)

    def by_edge(self, v: Tensor) -> EdgeTensor:
        flat = v.flatten(-3, -2)
        return flat if flat.shape[-2] == len(self.place) else flat.index_select(-2, self.place)
