"""n small recurrent networks side by side, one a node, applied to every coordinate alike."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Bank(nn.Module):
    """LSTM cell -> Linear -> ReLU -> Linear at each of n nodes, as batched matrix products.

    Coordinates come last: gates are [*batch, n, 4h, d], so that each gate is one contiguous block.
    Initialised as PyTorch initialises nn.LSTMCell and nn.Linear; gates in PyTorch's order i, f, g, o.
    """

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

    def forward(self, v: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs v [*batch, n, inputs, d] and state h, c [*batch, n, hidden, d] -> outputs [*batch, n, outputs, d], h, c."""
        gates = self.w_x @ v + self.w_h @ h + (self.b_x + self.b_h).unsqueeze(-1)  # [*batch, n, 4h, d]
        i, f, g, o = gates.chunk(4, dim=-2)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        inner = (self.w_1 @ h + self.b_1.unsqueeze(-1)).relu()
        return self.w_2 @ inner + self.b_2.unsqueeze(-1), h, c
