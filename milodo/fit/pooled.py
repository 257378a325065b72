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
from milodo.problems.moments import Moments, moments_of
from milodo.problems.ragged import Origin, ragged
from milodo.problems.regularizers import L1, ElasticNet, Regularizer, Rescaled, Sparing, Zero
from milodo.problems.rows import Rows, is_large, rows_at_once
from milodo.problems.sampled import Sampled
from milodo.problems.softmax import Softmax
from milodo.types import NodeTensor

LOSSES: dict[str, type[Sampled]] = {"squared": LeastSquares, "logistic": LogisticRegression, "softmax": Softmax}
MANY = 4
"""Rows for each column from which on products of columns are kept: they are at most a quarter of the data."""
ROUNDING = 1e-9
"""More than what rounding adds to the size of a column."""
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
    own: Sequence[Moments | None] = ()
    """Of the large nodes held here, what one pass over their rows found; nobody is told of it."""


def scaling(
    features: Sequence[Tensor], targets: Sequence[Tensor], total: Total, *, centre: bool, weights: Sequence[Tensor] | None = None
) -> Scaling:
    """Counts, means and sizes of the pooled data: a site tells its neighbours sums, never samples.

    Sizes in a second pass around the mean: the difference of two large sums would lose half of their digits. Columns that are not
    centred have their size around 0. A sample of weight 2 counts as two.
    """
    each: Sequence[Tensor | None] = weights or [None] * len(features)
    own = [_moments(X, y, s) for X, y, s in zip(features, targets, each, strict=True)]
    sums = [
        torch.cat((X.new_tensor([len(X)]), *([] if s is None else [s.sum().reshape(1)]), _sums(X, y, s, m)))
        for X, y, s, m in zip(features, targets, each, own, strict=True)
    ]
    d, counts = features[0].shape[1], 1 if weights is None else 2
    count, means, target = total(torch.stack(sums)).split((counts, d, len(sums[0]) - counts - d), dim=-1)
    samples = count[..., :1].round()
    weight = samples if weights is None else count[..., 1:]
    if not bool((weight > 0).all()):
        raise InvalidInput("the samples of all sites together weigh nothing, so there is nothing to fit. Give weights above 0.")
    mean = means / weight
    around = mean if centre else torch.zeros_like(mean)
    squares = [_squares(X, c, s, m) for X, c, s, m in zip(features, around, each, own, strict=True)]
    scale = (total(torch.stack(squares)) / weight).clamp(min=0).sqrt()
    nothing = 10 * torch.finfo(torch.float64).eps * mean.abs() * samples  # what rounding leaves of a constant column
    return Scaling(around, torch.where(scale <= nothing * centre, 1.0, scale), samples, weight, target / weight, own)


def _moments(X: Tensor, y: Tensor, weights: Tensor | None) -> Moments | None:
    """Of a large site with many more rows than columns: all that a fit asks of it before its first step, in one pass."""
    columns = X.shape[1] + 1
    if not is_large(len(X), columns) or len(X) < MANY * columns:
        return None
    found = moments_of(X, y, weights, rows_at_once(columns))
    return found if found.finite else None


def _sums(X: Tensor, y: Tensor, weights: Tensor | None, known: Moments | None) -> Tensor:
    """Of features and targets, a number for each column."""
    return torch.cat((_sum(X, weights), _sum(y, weights))) if known is None else known.weight * known.mean


def _sum(values: Tensor, weights: Tensor | None) -> Tensor:
    return (values.sum(0) if weights is None else weights @ values).reshape(-1)


def _squares(X: Tensor, around: Tensor, weights: Tensor | None, known: Moments | None) -> Tensor:
    """Σ (x - around)² of each column, a block of rows at a time."""
    if known is not None:
        return known.around(torch.cat((around, known.mean[len(around) :]))).diagonal()[: len(around)].clamp(min=0)
    step = rows_at_once(X.shape[1])
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
    known = {i: own for i, own in enumerate(scaled.own) if own is not None}
    rows = Rows(features, scaled.mean, scaled.scale, intercept=intercept, finite=known)
    samples = rows.length if rows.together is None else rows.together.shape[1]
    b = [y - t if intercept and LOSSES[loss].translates else y.double() for y, t in zip(targets, scaled.target, strict=True)]
    each = [torch.ones(len(y), dtype=torch.float64) for y in targets] if weights is None else weights
    shares = [n * samples / total * s for total, s in zip(scaled.weight, each, strict=True)]
    reg = Sparing(reg, scaled.target.shape[-1]) if intercept else reg
    held, placed = rows.place(b), rows.place(shares)
    if rows.together is None:
        centred = intercept and LOSSES[loss].translates
        origins = {i: _origin(own, scaled, i, n, intercept=intercept, centred=centred) for i, own in known.items()}
        problem: Sampled = ragged(LOSSES[loss])(rows, held, reg, placed, origins)
    else:
        sizes = rows.together.shape[:2]
        problem = LOSSES[loss](rows.together, held[0].unflatten(0, sizes), reg, placed[0].unflatten(0, sizes))
    problem.column = 1 + ROUNDING  # what columns were scaled to; a constant one is 0
    return problem


def _origin(own: Moments, scaled: Scaling, node: int, n: int, *, intercept: bool, centred: bool) -> Origin:
    """Products of the scaled columns with each other and with the targets, from those of the columns as they are."""
    d, target = scaled.mean.shape[-1], scaled.target[node]
    centre = torch.cat((scaled.mean[node], target if centred else torch.zeros_like(target)))
    scale = torch.cat((scaled.scale[node], torch.ones_like(target)))
    products, away = own.around(centre) / scale / scale.unsqueeze(-1), (own.mean - centre) / scale
    if intercept:  # a column of ones, between features and targets
        row = torch.cat((away[:d], torch.ones(1, dtype=away.dtype), away[d:])) * own.weight
        wide = products.new_zeros(len(row), len(row))
        kept = torch.arange(len(row)) != d
        wide[kept.unsqueeze(-1) & kept] = products.flatten()
        wide[d], wide[:, d] = row, row
        products = wide
    share, columns = n / scaled.weight[node], d + intercept
    gram, cross = share * products[:columns, :columns], share * products[:columns, columns:]
    return Origin(gram[tuple(torch.triu_indices(columns, columns))], cross.squeeze(-1))
