"""n small recurrent networks side by side, one a node, applied to every coordinate alike."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from milodo.learned import fused


class Bank(nn.Module):
    """LSTM cell -> Linear -> ReLU -> Linear at each of n nodes, as batched matrix products.

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

    def forward(self, v: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs v [*batch, n, inputs, d] and state h, c [*batch, n, hidden, d] -> outputs [*batch, n, outputs, d], h, c."""
        weights = (self.w_x, self.w_h, self.b_x, self.b_h, self.w_1, self.b_1, self.w_2, self.b_2)
        if fused.applies(v, h, c, weights):
            return fused.bank(v, h, c, weights)
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
