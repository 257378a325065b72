"""The certified optimum: x* and f* in fp64, each with a bound on how wrong they can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.solvers.certificates import KINDS, OBSERVER, Certifier
from milodo.solvers.fista import fista
from milodo.solvers.objective import Objective
from milodo.solvers.prox_newton import semismooth_step
from milodo.types import Point

SMALLEST = 5e-324
"""The distance of neighbouring numbers below fp64's normal ones."""
SEPARABLE = "the two classes can be told apart without a mistake, so without a penalty the loss falls for ever: add a penalty"
FAR = 1e100
"""No wall stands that far out."""
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
    """By how much `value` can exceed the minimum, relative to |value| (milodo/solvers/certificates.py)."""
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
    problem: Objective, tolerance: float = 1e-14, *, iterations: int = 200_000, progress: Callable[[float], None] | None = None
) -> Reference:
    """Solves the pooled problem of every instance at once, in units of its own.

    Accelerated proximal gradient with restarts (O'Donoghue and Candès 2015) finds which coordinates stay at a kink of r;
    semismooth Newton on the others then ends at rounding. What is returned is certified, not believed.
    """
    if problem.dtype != torch.float64:
        raise InvalidInput(
            f"a certified optimum needs float64, but the problem is in {problem.dtype}. Sample it with dtype=torch.float64."
        )
    together = problem.pooled()
    scaled, scale = together.in_own_units()
    best = _solved(scaled, tolerance, iterations, progress)
    x = best.x / scale
    best.take(x * scale, everywhere=True)  # what is returned is what is certified, also where units underflow
    return best.reference(together, x, scale)


def _solved(problem: Objective, tolerance: float, iterations: int, progress: Callable[[float], None] | None) -> _Best:
    best, L = _Best(problem, tolerance), problem.mean_lipschitz()

    first_order = best.x
    block, done, stale = 100, 0, 0
    while done < iterations and stale < PATIENCE and not bool(best.settled.all()):
        before = best.bound
        x = first_order = fista(first_order, problem.mean_gradient, problem.reg.prox, 1 / L, block)
        best.take(x)
        for _ in range(NEWTON_STEPS):
            x = semismooth_step(problem, x, L)
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

    def __init__(self, problem: Objective, tolerance: float) -> None:
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
            if not bool(self.bound[index] <= CERTIFIED) and _unbounded(self.problem, x, index):
                self.separated[index] = True
        return bool(better.any())

    def reference(self, problem: Objective, x: Point, scale: Tensor) -> Reference:
        """In the units the problem came in; what those cannot express is not certified."""
        value = problem.objective(x, OBSERVER)
        exact = self.problem.objective(self.x, OBSERVER) == 0
        coarse = torch.full_like(value, SMALLEST) / value.abs()  # relative size of a rounding below fp64's normal numbers
        bound = torch.maximum(self.bound, torch.where(exact, 0.0, coarse))
        bound = torch.where(value.isfinite() & ~self.separated, bound, math.inf)
        kind = max(self.kinds, key=KINDS.index)
        return Reference(x, value, bound, kind, self.distance / scale.amin(-1), self._why(bound))

    def _why(self, bound: Tensor) -> str:
        if bool((bound <= CERTIFIED).all()):
            return ""
        if bool(self.separated.any()):
            return SEPARABLE
        if bool((self.bound <= CERTIFIED).all()):
            return "the objective is too small or too large a number for fp64: use other units"
        return f"the {max(self.kinds, key=KINDS.index)} stays at {float(bound.max()):.0e}, above {CERTIFIED:.0e}"


def _unbounded(problem: Objective, x: Point, index: tuple[int, ...]) -> bool:
    """Whether x proves that there is no minimum: it separates two classes, and going on from it is free."""
    return problem.separates(x, index) and float(problem.reg.value(FAR * x)[index]) == 0
