"""The certified optimum: x* and f* in fp64, each with a bound on how wrong they can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.problems.base import Problem
from milodo.problems.certify import KINDS, OBSERVER, Certifier, hessian_blocks, mean_gradient, slope_and_gradient, unbounded
from milodo.problems.linear import LinearModel
from milodo.problems.units import Units, own_units
from milodo.solvers.fista import fista
from milodo.solvers.prox_newton import shortest_solution
from milodo.types import Point

SMALLEST = 5e-324
"""The distance of neighbouring numbers below fp64's normal ones."""
SEPARABLE = "the two classes can be told apart without a mistake, so without a penalty the loss falls for ever: add a penalty"
NEWTON_LIMIT = 6000
"""Free coordinates above which a dense Newton system is too large, and first-order steps go on alone."""
GRAM_LIMIT = 2000
"""Rows or columns of the pooled data up to which its own Lipschitz constant, which is smaller than the mean's, is computed from
their products; beyond, by Lanczos."""
MARGIN = 1.02
"""Times what Lanczos finds, which is from below, to a thousandth."""
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
    """By how much `value` can exceed the minimum, relative to |value| (milodo/problems/certify.py)."""
    kind: str
    """What proves it: 'duality gap', 'strong convexity' or 'projection'; a 'KKT residual' measures, and proves no bound."""
    distance: Tensor
    """A bound on ‖x - x*‖ [*batch]; NaN where none is known."""
    why: str = ""
    """Why an instance has no certificate, if one has none."""

    @property
    def certified(self) -> Tensor:
        """Which instances have a certificate worth the name."""
        return self.certificate <= CERTIFIED


@torch.no_grad()
def optimum(
    problem: Problem, tolerance: float = 1e-14, *, iterations: int = 200_000, progress: Callable[[float], None] | None = None
) -> Reference:
    """Solves the pooled problem of every instance at once, in units of its own.

    Accelerated proximal gradient with restarts (O'Donoghue and Candès 2015) finds which coordinates stay at a kink of r;
    semismooth Newton on the others then ends at rounding. What is returned is certified, not believed.
    """
    if problem.dtype != torch.float64:
        raise InvalidInput(
            f"a certified optimum needs float64, but the problem is in {problem.dtype}. Sample it with dtype=torch.float64."
        )
    if not isinstance(problem, LinearModel):
        best = _solved(problem, OBSERVER.mean(problem.lipschitz(), dim=-1).unsqueeze(-1), tolerance, iterations, progress)
        return best.reference(problem, best.x)
    together = problem.pooled()
    pooled, units = own_units(together)
    # f = mean of f_i, so L <= mean of L_i; the pooled data's own is smaller.
    L = pooled.lipschitz() if min(pooled.samples, pooled.d) <= GRAM_LIMIT else _lanczos(pooled)
    best = _solved(pooled, L, tolerance, iterations, progress)
    x = best.x / units.scale
    best.take(x * units.scale, everywhere=True)  # what is returned is what is certified, also where units underflow
    return best.reference(together, x, units)


def _solved(problem: Problem, L: Tensor, tolerance: float, iterations: int, progress: Callable[[float], None] | None) -> _Best:
    best = _Best(problem, tolerance)
    first_order = best.x
    block, done, stale = 100, 0, 0
    while done < iterations and stale < PATIENCE and not bool(best.settled.all()):
        before = best.bound
        x = first_order = fista(first_order, partial(mean_gradient, problem), problem.reg.prox, 1 / L, block)
        best.take(x)
        for _ in range(NEWTON_STEPS):
            x = _newton(problem, x, L)
            if not best.take(x):
                break
        if progress:
            progress(float(best.bound.max()))
        done += block
        # At the floor of fp64 nothing helps any more, and going on would only burn time.
        stuck = best.settled | (best.bound > 0.9 * before)
        stale = stale + 1 if block == LARGEST_BLOCK and bool(stuck.all()) else 0
        block = min(2 * block, LARGEST_BLOCK)
    return best


class _Best:
    """The best point so far, instance by instance: the one with the smallest certificate."""

    def __init__(self, problem: Problem, tolerance: float) -> None:
        self.problem, self.tolerance, self.certify = problem, tolerance, Certifier(problem)
        self.x = self.certify.start
        found = self.certify(self.x, tolerance)
        self.bound, self.distance, self.kinds = found.bound, found.distance, list(found.kinds)
        self.separated = torch.zeros_like(self.bound, dtype=torch.bool)

    @property
    def settled(self) -> Tensor:
        """Instances with nothing left to do: solved, or known to have no minimum."""
        return (self.bound <= self.tolerance) | self.separated

    def take(self, x: Point, *, everywhere: bool = False) -> bool:
        """Keeps x where it is better (or everywhere); whether it was anywhere."""
        found = self.certify(x, self.tolerance)
        better = (found.bound < self.bound) | everywhere  # False for NaN
        self.x = torch.where(better.unsqueeze(-1), x, self.x)
        self.bound = torch.where(better, found.bound, self.bound)
        self.distance = torch.where(better, found.distance, self.distance)
        for number, index in enumerate(np.ndindex(self.problem.batch)):
            self.kinds[number] = found.kinds[number] if bool(better[index]) else self.kinds[number]
            if not bool(self.bound[index] <= CERTIFIED) and unbounded(self.problem, x, index):
                self.separated[index] = True
        return bool(better.any())

    def reference(self, problem: Problem, x: Point, units: Units | None = None) -> Reference:
        """In the units the problem came in; what those cannot express is not certified."""
        value = problem.objective(x, OBSERVER)
        exact = self.problem.objective(self.x, OBSERVER) == 0
        coarse = torch.full_like(value, SMALLEST) / value.abs()  # relative size of a rounding below fp64's normal numbers
        bound = torch.maximum(self.bound, torch.where(exact, 0.0, coarse))
        bound = torch.where(value.isfinite() & ~self.separated, bound, math.inf)
        distance = self.distance if units is None else self.distance / units.scale.amin(-1)
        return Reference(x, value, bound, max(self.kinds, key=KINDS.index), distance, self._why(bound))

    def _why(self, bound: Tensor) -> str:
        if bool((bound <= CERTIFIED).all()):
            return ""
        if bool(self.separated.any()):
            return SEPARABLE
        if bool((self.bound <= CERTIFIED).all()):
            return "the objective is too small or too large a number for fp64: use other units"
        return f"the {max(self.kinds, key=KINDS.index)} stays at {float(bound.max()):.0e}, above {CERTIFIED:.0e}"


def _lanczos(pooled: LinearModel) -> Tensor:
    """The Lipschitz constant of each instance [*batch, 1]."""
    found = torch.empty(*pooled.batch, 1, dtype=pooled.dtype)
    for index in np.ndindex(pooled.batch):
        A = pooled.A[index][0]
        w = torch.ones_like(A[:, 0]) if pooled.weights is None else pooled.weights[index][0]

        def hessian(v: np.ndarray, A: Tensor = A, w: Tensor = w) -> np.ndarray:
            return (A.mT @ (w * (A @ torch.from_numpy(v.ravel())))).numpy()

        operator = LinearOperator((pooled.d, pooled.d), matvec=hessian, dtype=np.float64)  # type: ignore[call-arg]
        start = np.random.default_rng(0).standard_normal(pooled.d)
        largest = eigsh(operator, k=1, tol=1e-3, v0=start, return_eigenvectors=False)  # type: ignore[arg-type]
        found[index] = MARGIN * pooled.curvature / pooled.samples * float(largest[0])
    return found


def _newton(problem: Problem, x: Point, L: Tensor) -> Point:
    """One semismooth Newton step on x = prox_{r/L}(x - ∇f(x)/L).

    Coordinates whose prox p sits at a kink of ρ go there. On the free others, with H = ∇²f and that move put in, solve
        (H + ρ'') δ = -(∇f(x) + ρ'(p) + ρ'' (x - p)).
    Each instance on its own, because their free sets differ.
    """
    gradient = slope_and_gradient(problem, x)[-1] if isinstance(problem, LinearModel) else mean_gradient(problem, x)
    target = problem.reg.prox(x - gradient / L, 1 / L)
    free = problem.reg.free(target)
    bend = problem.reg.bend(x)
    remainder = gradient + problem.reg.slope(target) + bend * (x - target)
    step = target - x
    for index in np.ndindex(problem.batch):
        where = free[index]
        if not 0 < int(where.sum()) <= NEWTON_LIMIT:
            continue
        H, H_fixed = hessian_blocks(problem, index, x, where, step[index] * ~where)
        H.diagonal().add_(bend[index][where])
        right = -(remainder[index][where] + H_fixed)
        step[index][where] = shortest_solution(H, right)  # singular where the data do not determine x
    return x + step
