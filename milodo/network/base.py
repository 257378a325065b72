"""All a node can do to the world is `swap`; everything else here is local arithmetic on top of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network.traffic import Traffic
from milodo.topology import Topology, contraction, topology
from milodo.topology import weights as edge_weights
from milodo.types import EdgeTensor, NodeTensor


class Network(ABC):
    """The links of the nodes held here.

    swap(e)_ij = e_ji            the only operation that crosses the boundary of a node
    spread(x)_ij = x_i           pull(x)_ij = x_j = swap(spread(x))
    diff(x)_ij = x_i - x_j       sum(e)_i = Σ_{j in N(i)} e_ij
    lap(x)_i = Σ_j w_ij (x_i - x_j)         mix(x) = x - lap(x), the robust W x     (eq. robust-implementation)
    both(e)_ij = (e_ij + e_ji) / 2          the same at both ends of an edge        (eq. module-symmetric-composite)
    """

    iteration = 0
    """The one under way, where a loop says so: for messages to people."""
    first_round = 0
    """Rounds before the run under way: what is drawn by the round is drawn alike whatever ran before."""

    def __init__(
        self,
        graph: str | Topology | nx.Graph,
        weights: str | np.ndarray = "metropolis",
        *,
        nodes: Sequence[int] | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.topology = topology(graph)
        self.nodes = tuple(range(self.topology.n)) if nodes is None else tuple(nodes)
        if sorted(set(self.nodes)) != list(self.nodes) or not set(self.nodes) <= set(range(self.topology.n)):
            raise InvalidInput(f"nodes {self.nodes} must be distinct, sorted, and nodes of {self.topology}.")
        per_edge = edge_weights(self.topology, weights)
        self.contraction = contraction(self.topology, per_edge)
        """λ = max_{i >= 2} |λ_i(W)|, known to every node before the first iteration."""
        self.traffic = Traffic()

        weight = {edge: float(value) for edge, value in zip(self.topology.edges, per_edge, strict=True)}
        held = {node: row for row, node in enumerate(self.nodes)}
        self.arcs = tuple(arc for arc in self.topology.arcs if arc[0] in held)
        """Directed edges (i, j) that leave a node held here: the rows of an EdgeTensor."""
        on_arcs = [[weight[min(arc), max(arc)]] for arc in self.arcs]
        self.w64 = torch.tensor(on_arcs, dtype=torch.float64, device=device).reshape(-1, 1)
        """Mixing weights [m, 1] before rounding to dtype."""
        self.w = self.w64.to(dtype)
        """Mixing weights [m, 1]."""
        self._source = torch.tensor([held[i] for i, _ in self.arcs], dtype=torch.long, device=device)
        degrees = {self.topology.degrees[node] for node in self.nodes}
        self._degree = degrees.pop() if len(degrees) == 1 else None

    @property
    def n(self) -> int:
        """Nodes held here."""
        return len(self.nodes)

    @property
    def dtype(self) -> torch.dtype:
        return self.w.dtype

    @property
    def device(self) -> torch.device:
        return self.w.device

    @abstractmethod
    def _permute(self, e: EdgeTensor) -> EdgeTensor:
        """The transport: row (i, j) of the result is row (j, i) of e."""

    def _fetch(self, x: NodeTensor) -> EdgeTensor:
        """Row (i, j) of the result is x_j."""
        return _Swap.apply(self.spread(x), self)

    def _count(self, d: int, itemsize: int) -> None:
        self.traffic.count(edges=len(self.arcs), d=d, itemsize=itemsize)

    def swap(self, e: EdgeTensor) -> EdgeTensor:
        """Send e_ij to j, receive e_ji. One round."""
        self._count(e.shape[-1], e.element_size())
        return _Swap.apply(e, self)

    def spread(self, x: NodeTensor) -> EdgeTensor:
        return x.index_select(-2, self._source)

    def pull(self, x: NodeTensor) -> EdgeTensor:
        """x_j for every neighbour j. One round."""
        self._count(x.shape[-1], x.element_size())
        return self._fetch(x)

    def diff(self, x: NodeTensor) -> EdgeTensor:
        """x_i - x_j for every neighbour j. One round."""
        if self._degree:  # broadcasting x_i over its edges saves the gather of spread
            return (x.unsqueeze(-2) - self.pull(x).unflatten(-2, (self.n, self._degree))).flatten(-3, -2)
        return self.spread(x) - self.pull(x)

    def both(self, e: EdgeTensor) -> EdgeTensor:
        """(e_ij + e_ji) / 2, in which both ends of an edge agree. One round."""
        return (e + self.swap(e)) / 2

    def sum(self, e: EdgeTensor) -> NodeTensor:
        if self._degree:
            return e.unflatten(-2, (self.n, self._degree)).sum(-2)
        zero = e.new_zeros((*e.shape[:-2], self.n, e.shape[-1]))
        return zero.index_add(-2, self._source, e)

    def lap(self, x: NodeTensor) -> NodeTensor:
        """Σ_j w_ij (x_i - x_j). One round."""
        if self._degree:  # one small product a node, without storing w_ij (x_i - x_j)
            w = self.w.view(self.n, 1, self._degree)
            return (w @ self.diff(x).unflatten(-2, (self.n, self._degree))).squeeze(-2)
        return self.sum(self.w * self.diff(x))

    def mix(self, x: NodeTensor) -> NodeTensor:
        """W x in the form that stays row-stochastic in any precision (eq. robust-implementation). One round."""
        return x - self.lap(x)

    def randn(self, *shape: int, seed: int) -> Tensor:
        """Standard normal numbers [n, *shape] that depend on the seed and the node's id, not on the process that holds it."""
        rows = [np.random.default_rng([seed, node]).standard_normal(shape) for node in self.nodes]
        return torch.from_numpy(np.stack(rows)).to(self.dtype).to(self.device)


class _Swap(torch.autograd.Function):
    """swap is a symmetric permutation, so it is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, e: Tensor, net: Network) -> Tensor:
        ctx.net = net
        return net._permute(e)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Swap.apply(grads[0], ctx.net), None
