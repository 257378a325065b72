"""Sums over the samples of one node, in one pass: how many, their mean, and their products around it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.problems.blocks import padded, spread

NEAR = 10.0
"""Standard deviations that the mean may lie from where products were taken around; else they are taken again, around the mean:
the difference of two large sums would lose its digits."""
ROUNDING = 1e-10
"""Of a mean: columns that are constant lie nowhere else."""


@dataclass(frozen=True)
class Moments:
    """Of z = (features, targets) of one node, with weights s."""

    weight: Tensor
    """Σ s."""
    mean: Tensor
    """(1/Σ s) Σ s z [d + k]."""
    products: Tensor
    """Σ s (z - mean)(z - mean)ᵀ [d + k, d + k]."""

    @property
    def finite(self) -> bool:
        return bool(torch.isfinite(self.products).all())

    def around(self, centre: Tensor) -> Tensor:
        """Σ s (z - centre)(z - centre)ᵀ: what is added is not negative, so no digits are lost."""
        away = self.mean - centre
        return self.products + self.weight * torch.outer(away, away)


def moments_of(X: Tensor, Y: Tensor, weights: Tensor | None, at_once: int) -> Moments:
    """Of features [N, d] and targets [N] or [N, k], so many rows at a time."""
    Y = Y.reshape(len(Y), -1)
    centre = torch.cat((X[:at_once].mean(0), Y[:at_once].to(X.dtype).mean(0)))
    found = _around(centre, X, Y, weights, at_once)
    away = found.mean - centre
    far = away.square() * found.weight > NEAR**2 * found.products.diagonal()
    if bool((far & (away.abs() > ROUNDING * centre.abs())).any()):
        found = _around(found.mean, X, Y, weights, at_once)
    return found


def _around(centre: Tensor, X: Tensor, Y: Tensor, weights: Tensor | None, at_once: int) -> Moments:
    d, columns, own = X.shape[1], len(centre), threading.local()
    width = padded(columns + 1)

    def one(first: int) -> Tensor:
        rows = slice(first, min(first + at_once, len(X)))
        buffer: Tensor | None = getattr(own, "buffer", None)
        if buffer is None:
            own.buffer = buffer = torch.zeros(at_once, width, dtype=X.dtype)
        Z = buffer[: rows.stop - first]
        torch.sub(X[rows], centre[:d], out=Z[:, :d])
        torch.sub(Y[rows], centre[d:], out=Z[:, d:columns])
        Z[:, columns] = 1  # whose products are the sums
        return (Z.mT @ (Z if weights is None else weights[rows].unsqueeze(-1) * Z))[: columns + 1, : columns + 1]

    with torch.no_grad():
        sums = sum(spread(one, range(0, len(X), at_once)), X.new_zeros(()))
    weight, away = sums[-1, -1], sums[:-1, -1]
    shift = away / weight.clamp(min=torch.finfo(X.dtype).tiny)
    return Moments(weight, centre + shift, sums[:-1, :-1] - torch.outer(away, shift))
