"""Newton's method on sums: where features are few, summing curvatures beats summing gradients again and again.

In every iteration the sites add up A_iᵀ D A_i (D = diag ℓ'') and ∇f_i over the spanning tree; then each solves the same problem,

    x̂ = argmin_z ⟨ḡ, z - x⟩ + ½ (z - x)ᵀ H̄ (z - x) + r(z),        x⁺ = x + α (x̂ - x),

α the best of a few, by one more sum of values. For the squared loss H̄ and ḡ are the moments of the data: one sum, and x̂ is the
answer. What rounding leaves is mended by sums of gradients alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.fit.pooled import Total
from milodo.problems import LeastSquares, Regularizer, optimum
from milodo.problems.linear import LinearModel
from milodo.problems.regularizers import Sparing
from milodo.types import Point

WORTH = {"squared": 100, "logistic": 50}
"""Sums of gradients that one sum of curvatures may cost. Iterating takes some hundred of the former (docs/results.md), Newton
one of the latter for the squared loss, and about ten for logistic regression."""
LENGTHS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)
"""α that are tried; values of all of them travel in one short message."""
MOST = 60
"""Iterations before the method gives up."""


def numbers(d: int) -> int:
    """In a message for d unknowns: the upper half of H, and g."""
    return d * (d + 3) // 2


def is_cheaper(loss: str, d: int) -> bool:
    """Than iterating with gradients."""
    return numbers(d) <= WORTH[loss] * (d + 3)


@dataclass(frozen=True)
class Newton:
    """On one problem whose sums over all n nodes `total` gives."""

    problem: LinearModel
    total: Total
    n: int

    @torch.no_grad()
    def run(self, x: Point, enough: Callable[[int, Point], bool]) -> tuple[Point, int]:
        """Until `enough(k, x)`, or until a step no longer helps: the last point and how many iterations it took."""
        H = None
        for k in range(1, MOST + 1):
            if H is None or not isinstance(self.problem, LeastSquares):
                H, g = self._moments(x)
            else:
                g = self._mean(self.problem.grad(self.problem.everywhere(x)))
            aim = minimise(H, g, x, self.problem.reg)
            before, x = x, self._towards(x, aim)
            if torch.equal(before, x) or enough(k, x):
                return x, k
        return x, MOST

    def _mean(self, own: Tensor) -> Tensor:
        return self.total(own)[0] / self.n

    def _moments(self, x: Point) -> tuple[Tensor, Point]:
        """H̄ and ḡ at x."""
        problem, d = self.problem, self.problem.d
        u = problem.predict(problem.everywhere(x))
        weight = problem.weigh(problem.loss_curvature(u)) / problem.samples
        own = problem.A.mT @ (weight.unsqueeze(-1) * problem.A)  # [n, d, d]
        rows, columns = torch.triu_indices(d, d)
        gradient = problem.pull_back(problem.loss_slope(u))
        halves, g = self._mean(torch.cat((own[:, rows, columns], gradient), dim=-1)).split((len(rows), d))
        H = torch.zeros(d, d, dtype=problem.dtype)
        H[rows, columns] = H[columns, rows] = halves
        return H, g

    def _towards(self, x: Point, aim: Point) -> Point:
        """The best point on the way; x itself if none is better."""
        if isinstance(self.problem, LeastSquares):
            return aim
        points = [x + length * (aim - x) for length in (0.0, *LENGTHS)]
        values = [self.problem.value(self.problem.everywhere(point)) for point in points]
        loss = self._mean(torch.stack(values, dim=-1)) + torch.stack([self.problem.reg.value(point) for point in points])
        # A full step whose gain is lost in rounding is taken: there Newton's method knows better than values do.
        rounding = 10 * torch.finfo(loss.dtype).eps * loss[0].abs()
        best = 1 if bool(loss[1] <= loss[0] + rounding) and bool(loss[1] <= loss.min() + rounding) else int(loss.argmin())
        return points[best]


def minimise(H: Tensor, g: Tensor, x: Point, reg: Regularizer) -> Point:
    """argmin_z ⟨g, z - x⟩ + ½ (z - x)ᵀ H (z - x) + r(z); an intercept, which r spares, is eliminated first."""
    if not isinstance(reg, Sparing):
        return optimum(as_least_squares(H, H @ x - g, reg)).x
    h, h00, g0 = H[:-1, -1], H[-1, -1].clamp(min=torch.finfo(H.dtype).tiny), g[-1]
    z = minimise(H[:-1, :-1] - torch.outer(h, h) / h00, g[:-1] - h * g0 / h00, x[:-1], reg.reg)
    return torch.cat((z, (x[-1] - (g0 + h @ (z - x[:-1])) / h00).reshape(1)))


def as_least_squares(H: Tensor, c: Tensor, reg: Regularizer) -> LeastSquares:
    """½ zᵀHz - cᵀz + r(z), up to a constant, as 1/(2d) ‖Bz - b‖² + r(z) with B = √d Λ^½ Qᵀ for H = QΛQᵀ."""
    d = len(c)
    values, vectors = torch.linalg.eigh(H)
    known = values > d * torch.finfo(H.dtype).eps * values[-1].clamp(min=0)
    root = torch.where(known, values, 0.0).sqrt()
    b = torch.where(known, (vectors.mT @ c) / torch.where(known, root, 1.0), 0.0)
    return LeastSquares((d**0.5 * root.unsqueeze(-1) * vectors.mT).unsqueeze(0), (d**0.5 * b).unsqueeze(0), reg)
