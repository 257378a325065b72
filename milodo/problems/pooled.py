"""One regression or classification whose samples lie at several sites: the objective is that of all samples together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.network import Network, Observer
from milodo.network.consensus import average
from milodo.problems.lasso import LeastSquares
from milodo.problems.linear import LinearModel
from milodo.problems.logistic import LogisticRegression
from milodo.problems.regularizers import L1, Regularizer, Sparing, Zero
from milodo.types import NodeTensor, Point

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


NEWTON = 50
"""Steps at most to settle the intercept."""


@torch.no_grad()
def settle_intercept(problem: LinearModel, x: Point, observer: Observer) -> Point:
    """x with the intercept, if there is one, that is best beside the other coefficients: Newton steps in one unknown."""
    if not isinstance(problem.reg, Sparing):
        return x
    x = x.clone()
    for _ in range(NEWTON):
        u = problem.predict(problem.everywhere(x))
        slope = float(observer.mean(problem.weigh(problem.loss_slope(u)).mean(-1), dim=-1))
        bend = float(observer.mean(problem.weigh(problem.loss_curvature(u)).mean(-1), dim=-1))
        if bend <= 0 or not math.isfinite(slope / bend):
            break
        before = float(x[-1])
        x[-1] -= slope / bend
        if abs(float(x[-1]) - before) <= 1e-15 * (1 + abs(before)):
            break
    return x


@torch.no_grad()
def duality_gap(problem: LinearModel, x: Point, observer: Observer) -> tuple[float, float]:
    """(objective, by how much it can exceed the minimum): Fenchel's gap at x with dual s ℓ'(Ax), where the dual is feasible.

    With an intercept the dual must sum to zero: x must have its intercept settled; what rounding leaves is taken off the dual.
    Without a penalty only the gradient's norm bounds anything, and the gap is NaN.
    """
    reg, spared = (problem.reg.reg, True) if isinstance(problem.reg, Sparing) else (problem.reg, False)
    u = problem.predict(problem.everywhere(x))
    v = problem.loss_slope(u)
    if spared:
        bend = problem.loss_curvature(u)
        off = observer.mean(problem.weigh(v).mean(-1), dim=-1) / observer.mean(problem.weigh(bend).mean(-1), dim=-1)
        v = v - off * bend
    weighed = problem.weigh(v) / problem.samples
    gradient = observer.mean((weighed.unsqueeze(-2) @ problem.A).squeeze(-2), dim=-2)
    value = float(problem.objective(x, observer))
    penalised = gradient[:-1] if spared else gradient
    s = reg.shrink(-penalised)
    if s is None:
        return value, float("nan")
    smooth = float(observer.mean(problem.weigh(problem.fenchel_gap(u, s * v)).mean(-1), dim=-1))
    free, dual = (x[:-1] if spared else x), -s * penalised
    rest = float((reg.value(free.unsqueeze(-1)) + reg.conjugate(dual) - dual * free).clamp(min=0).sum())
    return value, smooth + rest
