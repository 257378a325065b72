"""One regression or classification whose samples lie at several sites: the objective is that of all samples together.

It is solved in variables of its own, z = s x, which changes the problem's units and nothing else: columns are divided by their
pooled size s and centred where an intercept takes up the shift, and the penalty is r(z / s).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network import Network
from milodo.network.consensus import average, maximum
from milodo.problems.lasso import LeastSquares
from milodo.problems.logistic import LogisticRegression
from milodo.problems.ragged import BLOCK, Rows, ragged
from milodo.problems.regularizers import L1, ElasticNet, Regularizer, Rescaled, Sparing, Zero
from milodo.problems.sampled import Sampled
from milodo.problems.softmax import Softmax
from milodo.types import NodeTensor

LOSSES: dict[str, type[Sampled]] = {"squared": LeastSquares, "logistic": LogisticRegression, "softmax": Softmax}
Total = Callable[[NodeTensor], NodeTensor]
"""Σ over all nodes, at every node held here."""


def total_of(net: Network, *, reliable: bool) -> Total:
    """Over the spanning tree where links hold, exactly; else by gossip, to rounding. The very same numbers at every node: sites
    that scaled by different ones would solve different problems, and decide differently."""
    return net.total if reliable else lambda x: maximum(net, net.topology.n * average(net, x))


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x - mean) / scale, feature by feature, as this process's nodes learned it [n, d]."""

    mean: NodeTensor
    scale: NodeTensor
    samples: NodeTensor
    """Of all sites together [n, 1]."""
    weight: NodeTensor
    """Of all samples together [n, 1]: how many there are, unless they were weighed."""
    target: NodeTensor
    """The mean of the targets [n, 1]; of k classes their shares [n, k]."""


def scaling(
    features: Sequence[Tensor], targets: Sequence[Tensor], total: Total, *, centre: bool, weights: Sequence[Tensor] | None = None
) -> Scaling:
    """Counts, means and sizes of the pooled data: a site tells its neighbours sums, never samples.

    Sizes in a second pass around the mean: the difference of two large sums would lose half of their digits. Columns that are not
    centred have their size around 0. A sample of weight 2 counts as two.
    """
    each: Sequence[Tensor | None] = weights or [None] * len(features)
    sums = [
        torch.cat((X.new_tensor([len(X)]), *([] if s is None else [s.sum().reshape(1)]), _sum(X, s), _sum(y, s)))
        for X, y, s in zip(features, targets, each, strict=True)
    ]
    d, counts = features[0].shape[1], 1 if weights is None else 2
    count, means, target = total(torch.stack(sums)).split((counts, d, len(sums[0]) - counts - d), dim=-1)
    samples = count[..., :1].round()
    weight = samples if weights is None else count[..., 1:]
    if not bool((weight > 0).all()):
        raise InvalidInput("the samples of all sites together weigh nothing, so there is nothing to fit. Give weights above 0.")
    mean = means / weight
    around = mean if centre else torch.zeros_like(mean)
    squares = [_squares(X, m, s) for X, m, s in zip(features, around, each, strict=True)]
    scale = (total(torch.stack(squares)) / weight).clamp(min=0).sqrt()
    nothing = 10 * torch.finfo(torch.float64).eps * mean.abs() * samples  # what rounding leaves of a constant column
    return Scaling(around, torch.where(scale <= nothing * centre, 1.0, scale), samples, weight, target / weight)


def _sum(values: Tensor, weights: Tensor | None) -> Tensor:
    """Of all samples, a number for each column."""
    return (values.sum(0) if weights is None else weights @ values).reshape(-1)


def _squares(X: Tensor, around: Tensor, weights: Tensor | None) -> Tensor:
    """Σ (x - around)² of each column, a block of rows at a time."""
    step = max(1, BLOCK // X.shape[1])
    total = torch.zeros_like(around)
    for first in range(0, len(X), step):
        rows = slice(first, first + step)
        total += _sum((X[rows] - around).square_(), None if weights is None else weights[rows])
    return total


def penalty(l1: float, scale: Tensor | None, l2: float = 0.0) -> Regularizer:
    """l1 ‖x‖₁ + l2/2 ‖x‖², in the variables z = scale · x; of z itself where there is no scale."""
    if not l1 and not l2:
        return Zero()
    reg = ElasticNet(l1, l2) if l2 else L1(l1)
    return reg if scale is None else Rescaled(reg, scale, torch.ones((), dtype=scale.dtype))


def pooled_problem(
    loss: str, features: Sequence[Tensor], targets: Sequence[Tensor], scaled: Scaling, reg: Regularizer,
    *, n: int, intercept: bool, weights: Sequence[Tensor] | None = None,
) -> Sampled:  # fmt: skip
    """(1/n) Σ_i f_i + r = (1/S) Σ s ℓ over all samples of the n sites + r, the intercepts last and spared.

    f_i = (n/S) Σ_j s_ij ℓ(a_ijᵀx, b_ij) with weights s, all 1 unless given, whose sum is S. Large sites are not copied, and small
    ones filled up to a common size with samples of weight 0 (milodo/problems/ragged.py). Targets are centred where there is an
    intercept and the loss allows it.
    """
    rows = Rows(features, scaled.mean, scaled.scale, intercept=intercept)
    samples = rows.length if rows.together is None else rows.together.shape[1]
    b = [y - t if intercept and LOSSES[loss].translates else y.double() for y, t in zip(targets, scaled.target, strict=True)]
    each = [torch.ones(len(y), dtype=torch.float64) for y in targets] if weights is None else weights
    shares = [n * samples / total * s for total, s in zip(scaled.weight, each, strict=True)]
    reg = Sparing(reg, scaled.target.shape[-1]) if intercept else reg
    held, placed = rows.place(b), rows.place(shares)
    if rows.together is None:
        return ragged(LOSSES[loss])(rows, held, reg, placed)
    sizes = rows.together.shape[:2]
    return LOSSES[loss](rows.together, held[0].unflatten(0, sizes), reg, placed[0].unflatten(0, sizes))
