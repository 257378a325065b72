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
from milodo.network.consensus import average
from milodo.problems.lasso import LeastSquares
from milodo.problems.linear import LinearModel
from milodo.problems.logistic import LogisticRegression
from milodo.problems.regularizers import L1, ElasticNet, Regularizer, Rescaled, Sparing, Zero
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
    weight: NodeTensor
    """Of all samples together [n, 1]: how many there are, unless they were weighed."""
    target: NodeTensor
    """The mean of the targets [n, 1]."""


def scaling(
    features: Sequence[Tensor], targets: Sequence[Tensor], total: Total, *, centre: bool, weights: Sequence[Tensor] | None = None
) -> Scaling:
    """Counts, means and sizes of the pooled data: a site tells its neighbours sums, never samples.

    Sizes in a second pass around the mean: the difference of two large sums would lose half of their digits. Columns that are not
    centred have their size around 0. A sample of weight 2 counts as two.
    """
    d, counts = features[0].shape[1], [[float(len(X))] for X in features]
    if weights is not None:
        counts = [[*count, float(s.sum())] for count, s in zip(counts, weights, strict=True)]
        targets = [s * y for s, y in zip(weights, targets, strict=True)]
    own = [X.sum(0) if s is None else s @ X for X, s in zip(features, weights or [None] * len(features), strict=True)]
    sums = [torch.cat((m.new_tensor(count), m, y.sum().reshape(1))) for count, m, y in zip(counts, own, targets, strict=True)]
    count, means, target = total(torch.stack(sums)).split((len(counts[0]), d, 1), dim=-1)
    samples = count[..., :1].round()
    weight = samples if weights is None else count[..., 1:]
    if not bool((weight > 0).all()):
        raise InvalidInput("the samples of all sites together weigh nothing, so there is nothing to fit. Give weights above 0.")
    mean = means / weight
    around = mean if centre else torch.zeros_like(mean)
    apart = [(X - m).square() for X, m in zip(features, around, strict=True)]
    squares = [X.sum(0) if s is None else s @ X for X, s in zip(apart, weights or [None] * len(apart), strict=True)]
    scale = (total(torch.stack(squares)) / weight).clamp(min=0).sqrt()
    nothing = 10 * torch.finfo(torch.float64).eps * mean.abs() * samples  # what rounding leaves of a constant column
    return Scaling(around, torch.where(scale <= nothing * centre, 1.0, scale), samples, weight, target / weight)


def penalty(l1: float, scale: Tensor | None, l2: float = 0.0) -> Regularizer:
    """l1 ‖x‖₁ + l2/2 ‖x‖² in the variables z = scale · x; of z itself where there is no scale."""
    if not l1 and not l2:
        return Zero()
    reg = ElasticNet(l1, l2) if l2 else L1(l1)
    return reg if scale is None else Rescaled(reg, scale, torch.ones((), dtype=scale.dtype))


def pooled_problem(
    loss: str, features: Sequence[Tensor], targets: Sequence[Tensor], scaled: Scaling, reg: Regularizer,
    *, n: int, intercept: bool, weights: Sequence[Tensor] | None = None,
) -> LinearModel:  # fmt: skip
    """(1/n) Σ_i f_i + r = (1/S) Σ s ℓ over all samples of the n sites + r, the intercept last and spared.

    f_i = (n/S) Σ_j s_ij ℓ(a_ijᵀx, b_ij) with weights s, all 1 unless given, whose sum is S; sites with fewer
    samples than others held here are filled up with samples of weight 0.
    Targets are centred where there is an intercept and the loss allows it.
    """
    longest = max(len(X) for X in features)
    d = features[0].shape[1] + intercept
    A, b, shares = torch.zeros(len(features), longest, d, dtype=torch.float64), *torch.zeros(2, len(features), longest).double()
    for i, (X, y) in enumerate(zip(features, targets, strict=True)):
        A[i, : len(X), : X.shape[1]] = (X - scaled.mean[i]) / scaled.scale[i]
        if intercept:
            A[i, : len(X), -1] = 1
        b[i, : len(X)] = y - scaled.target[i] if intercept and LOSSES[loss].translates else y
        shares[i, : len(X)] = n * longest / scaled.weight[i] * (1.0 if weights is None else weights[i])
    return LOSSES[loss](A, b, Sparing(reg) if intercept else reg, shares)
