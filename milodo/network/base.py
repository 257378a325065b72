"""All a node can do to the world is `swap`; everything else here is local arithmetic on top of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import compress
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, whole
from milodo.network.hops import Hop, held
from milodo.network.hops import rounds as tree_rounds
from milodo.network.traffic import Traffic
from milodo.topology import Mixing, Topology, topology
from milodo.topology import weights as edge_weights
from milodo.types import EdgeTensor, NodeTensor


class Network(ABC):
    """The links of the nodes held here.

    swap(e)_ij = e_ji            the only operation that crosses the boundary of a node
    spread(x)_ij = x_i           pull(x)_ij = x_j = swap(spread(x))
    diff(x)_ij = x_i - x_j       sum(e)_i = Σ_{j in N(i)} e_ij
    lap(x)_i = Σ_j w_ij (x_i - x_j)         mix(x) = x - lap(x), the robust W x     (eq. robust-implementation)
    both(e)_ij = (e_ij + e_ji) / 2          the same at both ends of an edge        (eq. module-symmetric-composite)
    total(x)_i = Σ_j x_j                    over all nodes, by messages along a spanning tree: exact, on links that hold
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
        self.mixing = Mixing(self.topology, edge_weights(self.topology, weights))
        """W, and what every node knows of it before the first iteration."""
        self.traffic = Traffic()

        degrees = np.array(self.topology.degrees)
        leaves = np.isin(np.arange(self.topology.n), self.nodes).repeat(degrees)
        self.arcs = self.topology.arcs if nodes is None else tuple(compress(self.topology.arcs, leaves))
        """Directed edges (i, j) that leave a node held here: the rows of an EdgeTensor."""
        self.w64 = torch.from_numpy(self.mixing.w[self.topology.links[leaves]]).unsqueeze(-1).to(device)
        """Mixing weights [m, 1] before rounding to dtype."""
        self.w = self.w64.to(dtype)
        """Mixing weights [m, 1]."""
        held = degrees[list(self.nodes)]
        self._source = torch.from_numpy(np.arange(self.n).repeat(held)).to(device)
        self._degree = int(held[0]) if self.n and (held == held[0]).all() else None

    @property
    def n(self) -> int:
        """Nodes held here."""
        return len(self.nodes)

    @property
    def contraction(self) -> float:
        """λ = max_{i >= 2} |λ_i(W)|."""
        return self.mixing.contraction

    @property
    def eigenvalues(self) -> np.ndarray:
        """Of I - W, beside the 0 of consensus, in ascending order; of small graphs only."""
        return self.mixing.eigenvalues

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

    def total(self, x: NodeTensor) -> NodeTensor:
        """Σ_j x_j over all nodes, the very same numbers at every node.

        Partial sums go up the spanning tree and the total comes down: one message up and one down each edge of the tree, in as
        many rounds as the tree is high, twice.
        """
        for hop in (*self._hops[0], *self._hops[1]):
            self.traffic.count(edges=hop.sent, d=x.shape[-1], itemsize=self._itemsize(x))
        return _Total.apply(x, self)

    @cached_property
    def _hops(self) -> tuple[list[Hop], list[Hop]]:
        up, down = tree_rounds(self.topology.tree)
        return [self._hop(arcs) for arcs in up], [self._hop(arcs) for arcs in down]

    def _hop(self, arcs: list[tuple[int, int]]) -> Hop:
        row = {node: k for k, node in enumerate(self.nodes)}
        sent, inside, ending = held(arcs, self.nodes)
        sources, targets = ([row[i] for i, _ in inside], [row[j] for _, j in ending])
        return Hop(tuple(arcs), sent, *(torch.tensor(rows, dtype=torch.long, device=self.device) for rows in (sources, targets)))

    def _itemsize(self, x: Tensor) -> int:
        """Bytes of one number of x in a message."""
        return x.element_size()

    def _total(self, x: NodeTensor) -> NodeTensor:
        up, down = self._hops
        for hop in up:
            x = x.index_add(-2, hop.targets, self._relay(x, hop))
        for hop in down:
            x = x.index_copy(-2, hop.targets, self._relay(x, hop))
        return x

    @abstractmethod
    def _relay(self, x: NodeTensor, hop: Hop) -> Tensor:
        """The transport of one round in which only the arcs (i, j) of a hop carry x_i: what arrives here, in the hop's order."""

    def randn(self, *shape: int, seed: int) -> Tensor:
        """Standard normal numbers [n, *shape] that depend on the seed and the node's id, not on the process that holds it."""
        seed = whole("seed", seed)
        rows = [np.random.default_rng([seed, node]).standard_normal(shape) for node in self.nodes]
        return torch.from_numpy(np.stack(rows)).to(self.dtype).to(self.device)


class _Total(torch.autograd.Function):
    """The sum at every node is 11ᵀ, which is symmetric: its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, net: Network) -> Tensor:
        ctx.net = net
        return net._total(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Total.apply(grads[0], ctx.net), None


class _Swap(torch.autograd.Function):
    """swap is a symmetric permutation, so it is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, e: Tensor, net: Network) -> Tensor:
        ctx.net = net
        return net._permute(e)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Swap.apply(grads[0], ctx.net), None
