"""Networks that belong to nodes (Appendix E.3), how edges are laid out for them, and optimizers that have them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from milodo.learned import fused
from milodo.learned.base import Learned
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.topology import Topology, topology
from milodo.types import EdgeTensor, NodeTensor


class PerNodeLSTM(nn.Module):
    """n small recurrent networks side by side, one a node, applied to every coordinate alike:

    LSTM cell -> Linear -> ReLU -> Linear at each of n nodes, as batched matrix products.

    Coordinates come last: gates are [*batch, n, 4h, d], so that each gate is one contiguous block.
    Initialised as PyTorch initialises nn.LSTMCell and nn.Linear; gates in PyTorch's order i, f, g, o.
    """

    twice_g: Tensor
    """[4h, 1]: 2 for the rows of gate g, 1 for the others."""

    def __init__(self, n: int, inputs: int, outputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.w_x = nn.Parameter(torch.empty(n, 4 * hidden, inputs))
        self.w_h = nn.Parameter(torch.empty(n, 4 * hidden, hidden))
        self.b_x = nn.Parameter(torch.empty(n, 4 * hidden))
        self.b_h = nn.Parameter(torch.empty(n, 4 * hidden))
        self.w_1 = nn.Parameter(torch.empty(n, hidden, hidden))
        self.b_1 = nn.Parameter(torch.empty(n, hidden))
        self.w_2 = nn.Parameter(torch.empty(n, outputs, hidden))
        self.b_2 = nn.Parameter(torch.empty(n, outputs))
        for parameter in self.parameters():  # all of nn.LSTMCell's and nn.Linear's bounds are 1/√hidden here
            nn.init.uniform_(parameter, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))
        twice_g = torch.ones(4, hidden, 1)
        twice_g[2] = 2
        self.register_buffer("twice_g", twice_g.reshape(-1, 1), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.w_2.dtype

    def forward(self, v: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs v [*batch, n, inputs, d] and state h, c [*batch, n, hidden, d] -> outputs [*batch, n, outputs, d], h, c."""
        weights = (self.w_x, self.w_h, self.b_x, self.b_h, self.w_1, self.b_1, self.w_2, self.b_2)
        if fused.applies(v, h, c, weights):
            return fused.per_node_lstm(v, h, c, weights)
        return self.by_torch(v, h, c)

    def by_torch(self, v: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In operations of torch: any precision, any device, no compiler."""
        one = v.new_ones(()).expand(*v.shape[:-2], 1, v.shape[-1])
        weights = torch.cat((self.w_x, self.w_h, (self.b_x + self.b_h).unsqueeze(-1)), dim=-1) * self.twice_g
        gates = weights @ torch.cat((v, h, one), dim=-2)  # [*batch, n, 4h, d]
        h, c = _Cell.apply(gates, c)
        inner = (self.w_1 @ h + self.b_1.unsqueeze(-1)).relu()
        return self.w_2 @ inner + self.b_2.unsqueeze(-1), h, c


class _Cell(torch.autograd.Function):
    """c⁺ = σ(f) c + σ(i) tanh(g);  h⁺ = σ(o) tanh(c⁺), from the gates i, f, 2g, o.

    By hand because autograd keeps eleven tensors where three do, and with tanh(g) = 2σ(2g) - 1, because sigmoid takes a third
    of the time of tanh (benchmarks/training.py).
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        s = gates.sigmoid()
        i, f, g, o = s.chunk(4, dim=-2)
        c_next = f * c
        c_next += (2 * i).mul_(g)
        c_next -= i
        t = (2 * c_next).sigmoid_().mul_(2).sub_(1)  # tanh(c⁺)
        ctx.save_for_backward(s, c, t)
        return o * t, c_next

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        dh, dc_next = grads
        s, c, t = ctx.saved_tensors
        i, f, g, o = s.chunk(4, dim=-2)
        dc_next = dc_next + torch.ops.aten.tanh_backward(dh * o, t)
        ds = torch.empty_like(s)
        di, df, dg, do = ds.chunk(4, dim=-2)
        torch.mul(dc_next, (2 * g).sub_(1), out=di)
        torch.mul(dc_next, c, out=df)
        torch.mul(dc_next, 2 * i, out=dg)
        torch.mul(dh, t, out=do)
        return torch.ops.aten.sigmoid_backward(ds, s), dc_next.mul_(f)


class EdgePadding(nn.Module):
    """Edges laid out by node, because networks whose input width is the degree need a rectangle: between [*batch, m, d] and
    [*batch, n, width, d], each node's edges in order; where degrees differ, zeros fill up."""

    position: Tensor
    """Of each edge in [n · width]."""

    def __init__(self, graph: Topology, nodes: Sequence[int]) -> None:
        super().__init__()
        self.n, self.width = len(nodes), max(graph.degrees, default=0)
        position = [row * self.width + k for row, node in enumerate(nodes) for k in range(graph.degrees[node])]
        self.register_buffer("position", torch.tensor(position), persistent=False)

    def by_node(self, e: EdgeTensor) -> Tensor:
        shape = (*e.shape[:-2], self.n, self.width, e.shape[-1])
        if e.shape[-2] == self.n * self.width:
            return e.reshape(shape)
        padded = e.new_zeros(*e.shape[:-2], self.n * self.width, e.shape[-1])
        return padded.index_copy(-2, self.position, e).reshape(shape)

    def by_edge(self, v: Tensor) -> EdgeTensor:
        flat = v.flatten(-3, -2)
        return flat if flat.shape[-2] == len(self.position) else flat.index_select(-2, self.position)


class Hidden(NamedTuple):
    """States of three LSTM cells [*batch, n, hidden, d]."""

    h_m: Tensor
    c_m: Tensor
    h_s: Tensor
    c_s: Tensor
    h_u: Tensor
    c_u: Tensor


def first_hidden(x0: NodeTensor, net: Network, d: int, size: int, seed: int, dtype: torch.dtype) -> Hidden:
    """From N(0, 1), keyed by node and the same for all instances."""
    start = net.randn(6, size, d, seed=seed).to(dtype)  # [n, 6, size, d]
    h_m, c_m, h_s, c_s, h_u, c_u = (part.expand(*x0.shape[:-2], *part.shape) for part in start.unbind(1))
    return Hidden(h_m, c_m, h_s, c_s, h_u, c_u)


class PerNode(Learned):
    """A learned optimizer whose networks belong to nodes: every parameter has the nodes held here as its first axis."""

    exchange: Gossip = Gossip()
    hidden: int
    seed: int
    """Of the first hidden states."""

    def __init__(self, graph: str | Topology, nodes: Sequence[int] | None) -> None:
        super().__init__()
        self.topology = topology(graph)
        self.nodes = tuple(range(self.topology.n)) if nodes is None else tuple(nodes)
        self.padding = EdgePadding(self.topology, self.nodes)

    @classmethod
    @abstractmethod
    def build(cls, graph: Topology, settings: Any, nodes: Sequence[int] | None = None) -> Self: ...

    def fits(self, graph: Topology) -> str | None:
        if graph == self.topology:
            return None
        return (
            f"{self.label} was made for {self.topology} and cannot run on {graph}: its networks belong to nodes. "
            "Train it on this topology (milodo train ...)."
        )

    def at(self, nodes: Sequence[int]) -> Self:
        rows = [self.nodes.index(node) for node in nodes]
        part = self.build(self.topology, self.settings(), nodes).to(self.dtype)
        part = part if self.compressor is None else part.compressed(self.compressor)
        part.load_state_dict({name: value[rows] for name, value in self.state_dict().items()})
        return part.requires_grad_(next(self.parameters()).requires_grad)
