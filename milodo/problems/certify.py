"""How wrong can x be: bounds that prove how far its objective is above the minimum, or an honest word that nothing is proven.

duality gap          Fenchel's, where r* allows a feasible dual
strong convexity     F(x + v) >= F(x) - ‖e‖‖v‖ + c μ‖v‖² with e the shortest subgradient of F at x and μ the smallest eigenvalue
                     of ∇²f(x), so that F(x) - F* <= ‖e‖²/(4 c μ) and ‖x - x*‖ <= ‖e‖/(c μ). For the squared loss c = 1/2. Where
                     |ℓ'''| <= τ ℓ'', with R = τ max_j ‖a_j‖, it holds with c = 1/e for ‖v‖ <= 1/R (Bach 2010, Proposition 1), and
                     ‖e‖ R / μ < 1/e makes F larger than F(x) on that sphere: then, and only then, a minimum is known to exist.
not below 0          F(x) - F* <= F(x): losses and penalties are not negative, and some models fit their data exactly
projection           r = 0 and the squared loss: F(x) - F* = ½ ‖P(Ax - b)‖²/M, P the projection on the range of A
KKT residual         no bound: ‖e‖ relative to the gradients it is the difference of, and ‖e‖‖x‖ relative to F
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import hessian

from milodo.network import StackedObserver
from milodo.problems.base import Problem
from milodo.problems.lasso import LeastSquares
from milodo.problems.linear import AT_ONCE, LinearModel
from milodo.problems.regularizers import Zero
from milodo.types import Point

OBSERVER = StackedObserver()
EPS, TINY = torch.finfo(torch.float64).eps, torch.finfo(torch.float64).tiny
NEAR = 1e-6
"""A relative KKT residual above this proves nothing that duality does not: strong convexity squares it."""
FAR = 1e100
"""No wall stands that far out."""
DENSE = 2000
"""Unknowns up to which eigenvalues of a Hessian are worth their time."""
KINDS = ("duality gap", "strong convexity", "not below 0", "projection", "KKT residual")
BOUNDS = KINDS[:-1]


@dataclass(frozen=True)
class Certificate:
    """One number an instance: by how much F(x) can exceed the minimum, relative to |F(x)|."""

    bound: Tensor
    kinds: tuple[str, ...]
    """Which of KINDS, for each instance in flat order."""
    distance: Tensor
    """A bound on ‖x - x*‖; NaN where there is none."""


@dataclass(frozen=True)
class _Proof:
    """F(x) - F* <= gap."""

    gap: float
    kind: str
    distance: float = math.nan


class Certifier:
    """Certificates of one problem (of a linear model with all data at one node), at any x."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.start = problem.reg.inside(torch.zeros(*problem.batch, problem.d, dtype=problem.dtype, device=problem.device))
        self.unit = problem.objective(self.start, OBSERVER).abs()
        """|F| at the start: F(x) far below it is rounding."""
        self.gradients = self._gradients(self.start)

    def __call__(self, x: Point, enough: float) -> Certificate:
        """A duality gap above `enough` is compared with what strong convexity proves."""
        problem = self.problem
        value = problem.objective(x, OBSERVER).abs()
        against = torch.maximum(value, EPS * self.unit).clamp(min=TINY)
        duality = None
        if isinstance(problem, LinearModel):
            u, v, gradient = slope_and_gradient(problem, x)
            dual = problem.feasible(u, v, OBSERVER)
            pulled = gradient if dual is v else OBSERVER.mean(problem.pull_back(dual), dim=-2)
            duality = problem.duality_gap(x, u, dual, pulled, OBSERVER)
        else:
            gradient = mean_gradient(problem, x)
        bound = torch.full_like(value, math.inf) if duality is None else duality / against
        kinds, distance = ["duality gap"] * bound.numel(), torch.full_like(value, math.nan)
        residual = problem.reg.distance(x, -gradient).norm(dim=-1)
        relative = residual / torch.maximum(self.gradients, self._gradients(x)).clamp(min=TINY)
        kkt = torch.maximum(relative, residual * x.norm(dim=-1) / against)
        for number, index in enumerate(np.ndindex(problem.batch)):
            if float(bound[index]) <= enough or (duality is not None and not float(relative[index]) <= NEAR):
                continue
            proven = self._by_curvature(x, gradient[index], float(residual[index]), index)
            found = (proven.gap / float(against[index]), proven.kind) if proven else (float(kkt[index]), "KKT residual")
            if isinstance(problem, LinearModel) and float(value[index] / against[index]) < found[0]:
                found = (float(value[index] / against[index]), "not below 0")
            if found[0] < float(bound[index]):
                bound[index], kinds[number] = found
                distance[index] = proven.distance if proven else math.nan
        return Certificate(bound, tuple(kinds), distance)

    def _by_curvature(self, x: Point, gradient: Tensor, e: float, index: tuple[int, ...]) -> _Proof | None:
        """What the eigenvalues of ∇²f prove; an infinite gap where they show that nothing can be."""
        problem = self.problem
        if not math.isfinite(e) or separates(problem, x, index):
            return _Proof(math.inf, "KKT residual")
        smooth = isinstance(problem.reg, Zero)
        few = isinstance(problem, LinearModel) and problem.n * problem.samples < problem.d  # ∇²f is singular
        if problem.d > DENSE or (few and not smooth):
            return None
        values, vectors = torch.linalg.eigh(curvature(problem, x, index))
        blurred, mu = 10 * problem.d * EPS * float(values[-1].abs()), float(values[0])
        if mu > blurred:
            R = problem.turning(index) if isinstance(problem, LinearModel) else 0.0
            c = 1 / math.e if R else 0.5
            if not isinstance(problem, LinearModel):
                # Exact for a quadratic. Of this f no more is known than its Hessian here: no proof, but a sign of how far it is.
                return None if e * e / (2 * mu) <= 1e-8 * float(self.unit[index]) else _Proof(math.inf, "KKT residual")
            if e * R / mu < 1 / math.e:
                return _Proof(e * e / (4 * c * mu), "strong convexity", e / (c * mu) if R else e / mu)
            return _Proof(math.inf, "KKT residual")
        if smooth and isinstance(problem, LeastSquares):
            along, known = vectors.mT @ gradient, values > blurred
            return _Proof(float((along[known].square() / values[known]).sum() / 2), "projection")
        return None

    def _gradients(self, x: Point) -> Tensor:
        """The size of the gradients whose mean is ∇f(x): of all samples, or of all nodes."""
        problem = self.problem
        if not isinstance(problem, LinearModel):
            return OBSERVER.mean(problem.grad(problem.everywhere(x)).norm(dim=-1), dim=-1)
        v = problem.loss_slope(problem.predict(problem.everywhere(x)))
        return problem.mean(v.abs() * torch.linalg.vector_norm(problem.A, dim=-1), OBSERVER)


def separates(problem: Problem, x: Point, index: tuple[int, ...]) -> bool:
    """Whether x tells two classes apart without a mistake: t x does so ever better as t grows, and F without a penalty falls."""
    if not isinstance(problem, LinearModel) or problem.attained:
        return False
    counted = problem.weigh(torch.ones_like(problem.b)) > 0
    return bool((problem.falling(problem.predict(problem.everywhere(x))) | ~counted)[index].all())


def unbounded(problem: Problem, x: Point, index: tuple[int, ...]) -> bool:
    """Whether x proves that there is no minimum: it separates two classes, and going on from it is free."""
    return separates(problem, x, index) and float(problem.reg.value(FAR * x)[index]) == 0


def slope_and_gradient(problem: LinearModel, x: Point) -> tuple[Tensor, Tensor, Point]:
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
    batch, n, N, d = shape
    size = max(1, AT_ONCE // d)
    for k, i, block in np.ndindex(batch, n, -(-N // size)):
        yield k, i, slice(block * size, (block + 1) * size)


def mean_gradient(problem: Problem, x: Point) -> Point:
    return OBSERVER.mean(problem.grad(problem.everywhere(x)), dim=-2)


def curvature(problem: Problem, x: Point, index: tuple[int, ...]) -> Tensor:
    """∇²f of one instance [d, d]."""
    if isinstance(problem, LinearModel):
        A, weight = problem.A[index].flatten(0, 1), _weight(problem, x, index)
        return A.mT @ (weight.unsqueeze(-1) * A)
    return _full_hessian(problem, x[index], index)


def hessian_blocks(problem: Problem, index: tuple[int, ...], x: Point, free: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
    """∇²f of one instance restricted to the free coordinates, and ∇²f · fixed there."""
    if isinstance(problem, LinearModel):
        A, weight = problem.A[index].flatten(0, 1), _weight(problem, x, index)  # [n N, d]
        A_free = A[:, free]
        return A_free.mT @ (weight.unsqueeze(-1) * A_free), A_free.mT @ (weight * (A @ fixed))
    full = _full_hessian(problem, x[index], index)
    return full[free][:, free], full[free] @ fixed


def _weight(problem: LinearModel, x: Point, index: tuple[int, ...]) -> Tensor:
    """ℓ'' of every sample, with its share in the mean."""
    u = problem.predict(problem.everywhere(x))
    return problem.weigh(problem.loss_curvature(u))[index].flatten() / (problem.n * problem.samples)


def _full_hessian(problem: Problem, x: Tensor, index: tuple[int, ...]) -> Tensor:
    def objective(point: Tensor) -> Tensor:
        return problem.value(problem.everywhere(point.expand(*problem.batch, -1))).mean(-1)[index]

    full = hessian(objective)(x)
    assert isinstance(full, Tensor)
    return full
