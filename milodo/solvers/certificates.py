"""How wrong can x be: bounds that prove how far its objective is above the minimum, or an honest word that nothing is proven.

Each proof is a strategy of its own; a problem says which apply to it (`certificates()`), in the order in which they are tried.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from milodo.network import StackedObserver
from milodo.types import Point

if TYPE_CHECKING:
    from milodo.solvers.objective import Objective

OBSERVER = StackedObserver()
EPS, TINY = torch.finfo(torch.float64).eps, torch.finfo(torch.float64).tiny
NEAR = 1e-6
"""A relative KKT residual above this proves nothing that duality does not: strong convexity squares it."""
DENSE = 2000
"""Unknowns up to which eigenvalues of a Hessian are worth their time."""
SIGN = 1e-8
"""Of the objective at the start: a KKT residual is believed where the Hessian says that no more than this is left to gain."""


@dataclass(frozen=True)
class Certified:
    """One number an instance: by how much F(x) can exceed the minimum, relative to |F(x)|."""

    bound: Tensor
    kinds: tuple[str, ...]
    """What proves it, for each instance in flat order."""
    distance: Tensor
    """A bound on ‖x - x*‖; NaN where there is none."""


@dataclass(frozen=True)
class Proof:
    """The best so far for one instance: F(x) - F* <= bound |F(x)|."""

    bound: float
    kind: str
    distance: float = math.nan
    enough: bool = False
    """Whether no other needs to be tried."""
    measured: bool = False
    """Whether curvature has said what there is to say: then a residual, which proves nothing, must not replace it."""

    def or_better(self, other: Proof) -> Proof:
        return replace(other, measured=self.measured or other.measured) if other.bound < self.bound else self


class Evaluation:
    """A problem at x, all instances at once: what several proofs look at."""

    def __init__(self, problem: Objective, x: Point, unit: Tensor, gradients: Tensor, enough: float) -> None:
        """`unit` is |F| and `gradients` the size of gradients at the start; a bound up to `enough` need not be improved."""
        self.problem, self.x, self.unit, self.enough = problem, x, unit, enough
        self.value = problem.objective(x, OBSERVER).abs()
        self.against = torch.maximum(self.value, EPS * unit).clamp(min=TINY)
        self.gradient, self.slopes = problem.exact_gradient(x)
        self.residual = problem.reg.distance(x, -self.gradient).norm(dim=-1)
        """‖e‖, e the shortest subgradient of F."""
        size = torch.maximum(gradients, problem.gradient_size(x)).clamp(min=TINY)
        self.relative = self.residual / size
        self._spectra: dict[tuple[int, ...], tuple[Tensor, Tensor, float]] = {}

    @cached_property
    def duality_gap(self) -> Tensor | None:
        return self.problem.exact_gap(self.x, self.gradient, self.slopes)

    def spectrum(self, index: tuple[int, ...]) -> tuple[Tensor, Tensor, float]:
        """Eigenvalues and eigenvectors of ∇²f of one instance, and how large an eigenvalue of 0 may be by rounding."""
        if index not in self._spectra:
            values, vectors = torch.linalg.eigh(self.problem.mean_hessian(self.x, index))
            self._spectra[index] = values, vectors, 10 * self.problem.d * EPS * float(values[-1].abs())
        return self._spectra[index]

    def bound(self, gap: float, index: tuple[int, ...]) -> float:
        return gap / float(self.against[index])


class Certificate(ABC):
    """One way to bound F(x) - F*."""

    kind: ClassVar[str]
    proves: ClassVar[bool] = True

    @abstractmethod
    def improve(self, best: Proof, at: Evaluation, index: tuple[int, ...]) -> Proof:
        """The best proof of instance `index` so far, or a better one."""


class DualityGap(Certificate):
    """Fenchel's, where r* allows a feasible dual."""

    kind: ClassVar[str] = "duality gap"

    def improve(self, best: Proof, at: Evaluation, index: tuple[int, ...]) -> Proof:
        if at.duality_gap is None:
            return best
        bound = float((at.duality_gap / at.against)[index])
        return Proof(bound, self.kind, enough=bound <= at.enough or not float(at.relative[index]) <= NEAR)


class StrongConvexity(Certificate):
    """F(x + v) >= F(x) - ‖e‖‖v‖ + c μ‖v‖² with e the shortest subgradient of F at x and μ the smallest eigenvalue of ∇²f(x), so
    that F(x) - F* <= ‖e‖²/(4 c μ) and ‖x - x*‖ <= ‖e‖/(c μ). For the squared loss c = 1/2. Where |ℓ'''| <= τ ℓ'', with
    R = τ max_j ‖a_j‖, it holds with c = 1/e for ‖v‖ <= 1/R (Bach 2010, Proposition 1), and ‖e‖ R / μ < 1/e makes F larger than
    F(x) on that sphere: then, and only then, a minimum is known to exist.
    """

    kind: ClassVar[str] = "strong convexity"

    def improve(self, best: Proof, at: Evaluation, index: tuple[int, ...]) -> Proof:
        e, problem = float(at.residual[index]), at.problem
        if not math.isfinite(e) or problem.separates(at.x, index):
            return replace(best, measured=True)
        if problem.d > DENSE or problem.lacks_rank:
            return best
        values, _, blurred = at.spectrum(index)
        mu, R = float(values[0]), problem.turning(index)
        if mu <= blurred:
            return best
        best = replace(best, measured=True)
        if e * R / mu >= 1 / math.e:
            return best
        c = 1 / math.e if R else 0.5
        return best.or_better(Proof(at.bound(e * e / (4 * c * mu), index), self.kind, e / (c * mu) if R else e / mu))


class Projection(Certificate):
    """For r = 0 and the squared loss: F(x) - F* = ½ ‖P(Ax - b)‖²/M, P the projection on the range of A."""

    kind: ClassVar[str] = "projection"

    def improve(self, best: Proof, at: Evaluation, index: tuple[int, ...]) -> Proof:
        if best.measured or at.problem.d > DENSE:
            return best
        values, vectors, blurred = at.spectrum(index)
        along, known = vectors.mT @ at.gradient[index], values > blurred
        gap = float((along[known].square() / values[known]).sum() / 2)
        return replace(best, measured=True).or_better(Proof(at.bound(gap, index), self.kind))


class KKTResidual(Certificate):
    """No bound: ‖e‖ relative to the gradients it is the difference of, and ‖e‖‖x‖ relative to F."""

    kind: ClassVar[str] = "KKT residual"
    proves: ClassVar[bool] = False

    def improve(self, best: Proof, at: Evaluation, index: tuple[int, ...]) -> Proof:
        if best.measured or not self.believed(at, index):
            return best if best.bound < math.inf else replace(best, kind=self.kind)
        residual = at.residual * at.x.norm(dim=-1) / at.against
        return best.or_better(Proof(float(torch.maximum(at.relative, residual)[index]), self.kind))

    def believed(self, at: Evaluation, index: tuple[int, ...]) -> bool:
        return True


class KKTResidualWithHessian(KKTResidual):
    """The same where of f no more is known than its Hessian at x: believed where that shows little left to gain, which would be
    exact for a quadratic."""

    def believed(self, at: Evaluation, index: tuple[int, ...]) -> bool:
        e = float(at.residual[index])
        if not math.isfinite(e):
            return False
        if at.problem.d > DENSE:
            return True
        values, _, blurred = at.spectrum(index)
        mu = float(values[0])
        return mu <= blurred or e * e / (2 * mu) <= SIGN * float(at.unit[index])


class NotNegative(Certificate):
    """F(x) - F* <= F(x): losses and penalties are not negative, and some models fit their data exactly."""

    kind: ClassVar[str] = "not below 0"

    def improve(self, best: Proof, at: Evaluation, index: tuple[int, ...]) -> Proof:
        found = Proof(float(at.value[index] / at.against[index]), self.kind, best.distance)
        return best.or_better(found)


STRATEGIES = (DualityGap, StrongConvexity, NotNegative, Projection, KKTResidual)
KINDS = tuple(strategy.kind for strategy in STRATEGIES)
"""From the best proof to none: of several instances a result names the last."""
BOUNDS = tuple(strategy.kind for strategy in STRATEGIES if strategy.proves)


class Certifier:
    """Certificates of one problem (of a linear model with all data at one node), at any x."""

    def __init__(self, problem: Objective) -> None:
        self.problem, self.certificates = problem, problem.certificates()
        self.start = problem.reg.project(torch.zeros(*problem.batch, problem.d, dtype=problem.dtype, device=problem.device))
        self.unit = problem.objective(self.start, OBSERVER).abs()
        """|F| at the start: F(x) far below it is rounding."""
        self.gradients = problem.gradient_size(self.start)

    def __call__(self, x: Point, enough: float) -> Certified:
        """A duality gap above `enough` is compared with what other certificates prove."""
        at = Evaluation(self.problem, x, self.unit, self.gradients, enough)
        found = [self._of(at, index) for index in np.ndindex(self.problem.batch)]
        bound, distance = x.new_tensor([(proof.bound, proof.distance) for proof in found]).unbind(-1)
        batch = self.problem.batch
        return Certified(bound.view(batch), tuple(proof.kind for proof in found), distance.view(batch))

    def _of(self, at: Evaluation, index: tuple[int, ...]) -> Proof:
        best = Proof(math.inf, DualityGap.kind)
        for certificate in self.certificates:
            if best.enough:
                break
            best = certificate.improve(best, at, index)
        return best
