"""Symmetric matrices as messages: their upper triangle, row by row."""

from __future__ import annotations

import torch
from torch import Tensor


def packed_size(d: int) -> int:
    """Numbers in the upper triangle of a d x d matrix."""
    return d * (d + 1) // 2


def pack(H: Tensor) -> Tensor:
    """The upper triangle [*, d (d + 1) / 2] of symmetric matrices [*, d, d]."""
    rows, columns = torch.triu_indices(H.shape[-1], H.shape[-1], device=H.device)
    return H[..., rows, columns]


def unpack(triangle: Tensor, d: int) -> Tensor:
    """Symmetric matrices [*, d, d] from their upper triangle [*, d (d + 1) / 2]; gradients flow through it."""
    rows, columns = torch.triu_indices(d, d, device=triangle.device)
    place = torch.empty(d, d, dtype=torch.long, device=triangle.device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=triangle.device)
    return triangle[..., place.flatten()].unflatten(-1, (d, d))


def last_column(triangle: Tensor, d: int) -> Tensor:
    """The last column [*, d] of symmetric matrices, from their upper triangle."""
    return triangle[..., torch.triu_indices(d, d, device=triangle.device)[1] == d - 1]
