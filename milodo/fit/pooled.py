"""One regression or classification whose samples lie at several sites: the objective is that of all samples together.

It is solved in variables of its own, z = s x, which changes the problem's units and nothing else: columns are divided by their
pooled size s and centred where an intercept takes up the shift, and the penalty is r(z / s).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.network import Network
from milodo.network.consensus import average
from milodo.problems.lasso import LeastSquares
from milodo.problems.linear import LinearModel
from milodo.problems.logistic import LogisticRegression
from milodo.problems.regularizers import L1, Regularizer, Rescaled, Sparing, Zero
from milodo.types import NodeTensor

LOSSES: dict[str, type[LinearModel]] = {"squared": LeastSquares, "logistic": LogisticRegression}
Total = Callable[[NodeTensor], NodeTensor]
"""Σ over all nodes, at every node held here."""


def total_of(net: Network, *, reliable: bool) -> Total:
    """Over the spanning tree where links hold, exactly; else by gossip, to rounding."""
    return net.total if reliable else lambda x: net.topology.n * average(net, x)


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x - mean) / scale, feature by feature, as this process's nodes learned it [n, d]."""

    mean: NodeTensor
    scale: NodeTensor
    samples: NodeTensor
    """Of all sites together [n, 1]."""
    target: NodeTensor
    """The mean of the targets [n, 1]."""


def scaling(features: Sequence[Tensor], targets: Sequence[Tensor], total: Total, *, centre: bool) -> Scaling:
    """Counts, means and sizes of the pooled data: a site tells its neighbours sums, never samples.

    Sizes in a second pass around the mean: the difference of two large sums would lose half of their digits. Columns that are not
    centred have their size around 0.
    """
    d = features[0].shape[1]
    sums = [torch.cat((X.new_tensor([len(X)]), X.sum(0), y.sum().reshape(1))) for X, y in zip(features, targets, strict=True)]
    count, means, target = total(torch.stack(sums)).split((1, d, 1), dim=-1)
    samples = count.round()
    mean = means / samples
    around = mean if centre else torch.zeros_like(mean)
    squares = torch.stack([(X - m).square().sum(0) for X, m in zip(features, around, strict=True)])
    scale = (total(squares) / samples).clamp(min=0).sqrt()
    nothing = 10 * torch.finfo(torch.float64).eps * mean.abs() * samples  # what rounding leaves of a constant column
    return Scaling(around, torch.where(scale <= nothing * centre, 1.0, scale), samples, target / samples)


def penalty(l1: float, scale: Tensor | None) -> Regularizer:
    """l1 ‖x‖₁ in the variables z = scale · x; of z itself where there is no scale."""
    if not l1:
        return Zero()
    return L1(l1) if scale is None else Rescaled(L1(l1), scale, torch.ones((), dtype=scale.dtype))


def pooled_problem(
    loss: str, features: Sequence[Tensor], targets: Sequence[Tensor], scaled: Scaling, reg: Regularizer,
    *, n: int, intercept: bool,
) -> LinearModel:  # fmt: skip
    """(1/n) Σ_i f_i + r = (1/M) Σ ℓ over all M samples of the n sites + r, the intercept last and spared.

    f_i = (n/M) Σ_j ℓ(a_ijᵀx, b_ij); sites with fewer samples than others held here are filled up with samples of weight 0.
    Targets are centred where there is an intercept and the loss allows it.
    """
    longest = max(len(X) for X in features)
    d = features[0].shape[1] + intercept
    A, b, weights = torch.zeros(len(features), longest, d, dtype=torch.float64), *torch.zeros(2, len(features), longest).double()
    for i, (X, y) in enumerate(zip(features, targets, strict=True)):
        A[i, : len(X), : X.shape[1]] = (X - scaled.mean[i]) / scaled.scale[i]
        if intercept:
            A[i, : len(X), -1] = 1
        b[i, : len(X)] = y - scaled.target[i] if intercept and LOSSES[loss].translates else y
        weights[i, : len(X)] = n * longest / scaled.samples[i]
    return LOSSES[loss](A, b, Sparing(reg) if intercept else reg, weights)
