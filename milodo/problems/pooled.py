"""One regression or classification whose samples lie at several sites: the objective is that of all samples together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.network import Network
from milodo.network.consensus import average
from milodo.problems.lasso import LeastSquares
from milodo.problems.linear import LinearModel
from milodo.problems.logistic import LogisticRegression
from milodo.problems.regularizers import L1, Regularizer, Sparing, Zero
from milodo.types import NodeTensor

LOSSES: dict[str, type[LinearModel]] = {"squared": LeastSquares, "logistic": LogisticRegression}


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x - mean) / scale, feature by feature, as this process's nodes learned it [n, d]."""

    mean: NodeTensor
    scale: NodeTensor
    samples: NodeTensor
    """Of all sites together [n, 1]."""


def scaling(features: Sequence[Tensor], net: Network, *, standardise: bool) -> Scaling:
    """Counts, means and variances of the pooled data, by consensus: a site tells its neighbours sums, never samples.

    Variances in a second pass around the mean: the difference of two large sums would lose half of their digits.
    """
    n = net.topology.n
    counts = torch.tensor([[float(len(X))] for X in features], dtype=torch.float64)
    samples = (n * average(net, counts)).round()
    d = features[0].shape[1]
    if not standardise:
        return Scaling(counts.new_zeros(len(features), d), counts.new_ones(len(features), d), samples)
    mean = n * average(net, torch.stack([X.sum(0) for X in features])) / samples
    squares = torch.stack([(X - m).square().sum(0) for X, m in zip(features, mean, strict=True)])
    scale = (n * average(net, squares) / samples).clamp(min=0).sqrt()
    constant = scale <= 10 * torch.finfo(torch.float64).eps * mean.abs() * samples  # what rounding leaves of a constant column
    return Scaling(mean, torch.where(constant, 1.0, scale), samples)


def pooled_problem(
    loss: str, features: Sequence[Tensor], targets: Sequence[Tensor], scaled: Scaling, *, n: int, l1: float, intercept: bool
) -> LinearModel:
    """(1/n) Σ_i f_i + r = (1/M) Σ ℓ over all M samples of the n sites + l1 ‖x‖₁, the intercept last and spared.

    f_i = (n/M) Σ_j ℓ(a_ijᵀx, b_ij); sites with fewer samples than others held here are filled up with samples of weight 0.
    """
    longest = max(len(X) for X in features)
    d = features[0].shape[1] + intercept
    A, b, weights = torch.zeros(len(features), longest, d, dtype=torch.float64), *torch.zeros(2, len(features), longest).double()
    for i, (X, y) in enumerate(zip(features, targets, strict=True)):
        A[i, : len(X), : X.shape[1]] = (X - scaled.mean[i]) / scaled.scale[i]
        if intercept:
            A[i, : len(X), -1] = 1
        b[i, : len(X)] = y
        weights[i, : len(X)] = n * longest / scaled.samples[i]
    reg: Regularizer = L1(l1) if l1 else Zero()
    return LOSSES[loss](A, b, Sparing(reg) if intercept else reg, weights)
