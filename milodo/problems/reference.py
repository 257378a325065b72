"""The certified optimum: x* and f* in fp64, each with a bound on how wrong they can be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import hessian

from milodo.errors import InvalidInput
from milodo.network import StackedObserver
from milodo.problems.base import Problem
from milodo.problems.linear import LinearModel
from milodo.problems.synthetic import ROWS_AT_ONCE
from milodo.types import Point

OBSERVER = StackedObserver()
NEWTON_LIMIT = 6000
"""Free coordinates above which a dense Newton system is too large, and first-order steps go on alone."""
GRAM_LIMIT = 2000
"""Rows or columns of the pooled data up to which its own Lipschitz constant is worth computing; it is smaller than the mean's."""
NEWTON_STEPS = 12
"""Newton steps after each block of first-order steps; they stop as soon as no instance gains."""
LARGEST_BLOCK = 6400
"""First-order steps between two attempts at Newton; the first block has 100, and each is twice the one before."""
PATIENCE = 3
"""Largest blocks in a row in which no instance improves its certificate by a tenth before we stop."""
CERTIFIED = 1e-8
"""Certificates above this do not certify: gaps measured against such a value would be fiction."""


@dataclass(frozen=True)
class Reference:
    """min f + r of every instance."""

    x: Point
    value: Tensor
    """f(x) + r(x) [*batch]."""
    certificate: Tensor
    """By how much `value` can exceed the minimum, relative to max(|value|, 1e-30): a duality gap; or the KKT residual."""
    kind: str
    """'duality gap' or 'KKT residual'."""

    @property
    def certified(self) -> Tensor:
        """Which instances have a certificate worth the name."""
        return self.certificate <= CERTIFIED


@torch.no_grad()
def optimum(
    problem: Problem,
    tolerance: float = 1e-14,
    *,
    iterations: int = 200_000,
    progress: Callable[[float], None] | None = None,
) -> Reference:
    """Solves the pooled problem of every instance at once.

    Accelerated proximal gradient with restarts (O'Donoghue and Candès 2015) finds which coordinates stay at a kink of r;
    semismooth Newton on the others then ends at rounding. What is returned is certified, not believed: the duality gap
    where the problem is a linear model and r* allows one, else the distance of -∇f(x) to ∂r(x).
    """
    if problem.dtype != torch.float64:
        raise InvalidInput(
            f"a certified optimum needs float64, but the problem is in {problem.dtype}. Sample it with dtype=torch.float64."
        )
    L = OBSERVER.mean(problem.lipschitz(), dim=-1).unsqueeze(-1)  # f = mean of f_i, so L <= mean of L_i
    if isinstance(problem, LinearModel):
        problem = _pooled(problem)
        if min(problem.samples, problem.d) <= GRAM_LIMIT:
            L = problem.lipschitz()
    x = first_order = problem.start()[..., 0, :]
    best = Reference(x, problem.objective(x, OBSERVER), *_certificate(problem, x))
    block, done, stale = 100, 0, 0
    while done < iterations and stale < PATIENCE and bool((best.certificate > tolerance).any()):
        before = best.certificate
        x = first_order = _accelerated(problem, first_order, L, block)
        best = _better(problem, best, x)
        for _ in range(NEWTON_STEPS):
            x = _newton(problem, x, L)
            last, best = best, _better(problem, best, x)
            if not bool((best.certificate < last.certificate).any()):
                break
        if progress:
            progress(float(best.certificate.max()))
        done += block
        # At the floor of fp64 nothing helps any more, and going on would only burn time.
        stuck = (best.certificate <= tolerance) | (best.certificate > 0.9 * before)
        stale = stale + 1 if block == LARGEST_BLOCK and bool(stuck.all()) else 0
        block = min(2 * block, LARGEST_BLOCK)
    return best


def _pooled(problem: LinearModel) -> LinearModel:
    """The same objective with all data at one node: (1/n) Σ (1/N) Σ is the mean over all samples. A view, not a copy."""
    weights = None if problem.weights is None else problem.weights.flatten(-2).unsqueeze(-2)
    return type(problem)(problem.A.flatten(-3, -2).unsqueeze(-3), problem.b.flatten(-2).unsqueeze(-2), problem.reg, weights)


def _accelerated(problem: Problem, x: Point, L: Tensor, steps: int) -> Point:
    """FISTA, each instance restarting when its momentum points uphill."""
    y, t = x, torch.ones_like(L)
    for _ in range(steps):
        x_next = problem.reg.prox(y - _gradient(problem, y) / L, 1 / L)
        uphill = ((y - x_next) * (x_next - x)).sum(-1, keepdim=True) > 0
        t = torch.where(uphill, 1.0, t)
        t_next = (1 + (1 + 4 * t * t).sqrt()) / 2
        y = x_next + torch.where(uphill, 0.0, (t - 1) / t_next) * (x_next - x)
        x, t = x_next, t_next
    return x


def _gradient(problem: Problem, x: Point) -> Point:
    return OBSERVER.mean(problem.grad(problem.everywhere(x)), dim=-2)


def _slope_and_gradient(problem: LinearModel, x: Point) -> tuple[Tensor, Tensor, Point]:
    """u = A x, ℓ'(u) and ∇f(x), rounded to fp64 once at the end.

    In plain fp64 the cancellation in A x - b leaves an error in ∇f that shows as a relative duality gap of 1e-14 on
    LASSO(10,300,10,0.1); sums in extended precision bring it to 2e-15. A platform whose long double is a double loses only that.
    """
    A = problem.A.numpy(force=True).reshape(-1, problem.n, problem.samples, problem.d)
    points = x.numpy(force=True).reshape(-1, problem.d).astype(np.longdouble)
    high = np.empty(A.shape[:-1])
    low = np.empty(A.shape[:-1])
    for k, i, rows in _blocks(A.shape):
        u = A[k, i, rows].astype(np.longdouble) @ points[k]
        high[k, i, rows] = u
        low[k, i, rows] = u - high[k, i, rows]
    u = torch.from_numpy(high).reshape(problem.b.shape)
    slope = problem.loss_slope(u) + problem.loss_curvature(u) * torch.from_numpy(low).reshape(u.shape)
    flat = problem.weigh(slope).numpy().reshape(A.shape[:-1])
    total = np.zeros((A.shape[0], problem.d), dtype=np.longdouble)
    for k, i, rows in _blocks(A.shape):
        total[k] += flat[k, i, rows].astype(np.longdouble) @ A[k, i, rows].astype(np.longdouble)
    gradient = (total / (problem.n * problem.samples)).astype(np.float64)
    return u, slope, torch.from_numpy(gradient).reshape(x.shape)


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, int, slice]]:
    """Rows of A few enough that their copy in extended precision is small."""
    instances, n, N, d = shape
    size = max(1, ROWS_AT_ONCE // d)
    for k, i in itertools.product(range(instances), range(n)):
        for start in range(0, N, size):
            yield k, i, slice(start, start + size)


def _newton(problem: Problem, x: Point, L: Tensor) -> Point:
    """One semismooth Newton step on x = prox_{r/L}(x - ∇f(x)/L).

    Coordinates whose prox p sits at a kink of ρ go there. On the free others, with H = ∇²f and that move put in, solve
        (H + ρ'') δ = -(∇f(x) + ρ'(p) + ρ'' (x - p)).
    Each instance on its own, because their free sets differ.
    """
    gradient = _slope_and_gradient(problem, x)[-1] if isinstance(problem, LinearModel) else _gradient(problem, x)
    target = problem.reg.prox(x - gradient / L, 1 / L)
    free = problem.reg.free(target)
    bend = problem.reg.curvature
    remainder = gradient + problem.reg.slope(target) + bend * (x - target)
    step = target - x
    for index in _instances(problem.batch):
        where = free[index]
        if not 0 < int(where.sum()) <= NEWTON_LIMIT:
            continue
        H, H_fixed = _hessian_blocks(problem, index, x[index], where, step[index] * ~where)
        H.diagonal().add_(bend)
        right = -(remainder[index][where] + H_fixed)
        factor, failed = torch.linalg.cholesky_ex(H)
        if int(failed) == 0:
            step[index][where] = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
        else:  # singular where the data do not determine x: the shortest step
            step[index][where] = torch.linalg.lstsq(H, right.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
    return x + step


def _hessian_blocks(problem: Problem, index: tuple[int, ...], x: Tensor, free: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
    """∇²f restricted to the free coordinates, and ∇²f · fixed there."""
    if isinstance(problem, LinearModel):
        A = problem.A[index].flatten(0, 1)  # [n N, d]
        u = problem.predict(problem.everywhere(x.expand(*problem.batch, -1)))
        weight = (problem.weigh(problem.loss_curvature(u))[index].flatten() / A.shape[0]).unsqueeze(-1)
        A_free = A[:, free]
        return A_free.mT @ (weight * A_free), A_free.mT @ (weight.squeeze(-1) * (A @ fixed))

    def objective(point: Tensor) -> Tensor:
        return problem.value(problem.everywhere(point.expand(*problem.batch, -1))).mean(-1)[index]

    full = hessian(objective)(x)
    assert isinstance(full, Tensor)
    return full[free][:, free], full[free] @ fixed


def _instances(batch: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(size) for size in batch)))


def _better(problem: Problem, best: Reference, x: Point) -> Reference:
    """Instance by instance, whichever point has the smaller certificate."""
    certificate, kind = _certificate(problem, x)
    take = certificate < best.certificate  # False for NaN
    x = torch.where(take.unsqueeze(-1), x, best.x)
    return Reference(x, problem.objective(x, OBSERVER), torch.where(take, certificate, best.certificate), kind)


def _certificate(problem: Problem, x: Point) -> tuple[Tensor, str]:
    if not isinstance(problem, LinearModel):
        return problem.reg.distance(x, -_gradient(problem, x)).norm(dim=-1), "KKT residual"
    u, slope, gradient = _slope_and_gradient(problem, x)
    shrink = problem.reg.shrink(-gradient)
    if shrink is None:
        return problem.reg.distance(x, -gradient).norm(dim=-1), "KKT residual"
    return _duality_gap(problem, x, u, slope, gradient, shrink), "duality gap"


def _duality_gap(problem: LinearModel, x: Point, u: Tensor, slope: Tensor, gradient: Point, s: Tensor) -> Tensor:
    """[f(x) + f*(dual)] + [r(x) + r*(-Aᵀ dual)] with dual = s ℓ'(Ax)/M, written as two sums of non-negative terms:

    (1/M) Σ_j ℓ(u_j) + ℓ*(v_j) - u_j v_j   +   Σ_l ρ(x_l) + ρ*(-s g_l) + s g_l x_l,     v = s ℓ'(u)
    """
    smooth = problem.weigh(problem.fenchel_gap(u, s[..., None, None] * slope)).mean((-1, -2))
    v = -s.unsqueeze(-1) * gradient
    rho = problem.reg.value(x.unsqueeze(-1))  # ρ(x_l) [*batch, d]
    rest = (rho + problem.reg.conjugate(v) - v * x).clamp(min=0).sum(-1)
    return (smooth + rest) / problem.objective(x, OBSERVER).abs().clamp(min=1e-30)
