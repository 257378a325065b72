"""Newton's method on sums: where features are few, summing curvatures beats summing gradients again and again.

In every iteration the sites add up A_iᵀ D A_i (D = diag ℓ'') and ∇f_i over the spanning tree; then each solves the same problem,

    x̂ = argmin_z ⟨ḡ, z - x⟩ + ½ (z - x)ᵀ H̄ (z - x) + r(z),        x⁺ = x + α (x̂ - x),

α the best of a few, by one more sum of values or two. For the squared loss H̄ and ḡ are the moments of the data: one sum, and x̂ is
the answer. What rounding leaves is mended by sums of gradients alone. The gradient at x⁺, which the next iteration needs, is
summed first, with f: by it the stopping rule knows whether there is a next iteration, and no curvature is asked for in vain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.fit.pooled import Total
from milodo.problems import Regularizer
from milodo.problems.regularizers import Sparing
from milodo.problems.sampled import Sampled
from milodo.problems.softmax import FLAT
from milodo.types import NodeTensor, Point

WORTH = {"squared": 100, "logistic": 50, "softmax": 50}
"""Sums of gradients that one sum of curvatures may cost. Iterating takes some hundred of the former (docs/results.md), Newton
one of the latter for the squared loss, and about ten for logistic regression."""
LENGTHS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)
"""α that are tried; their values travel in one short message, or in two."""
FIRST = 3
"""Points that are looked at first: x, a full step and half of it. Most steps are taken whole, and values cost a pass."""
MOST, PATIENCE, GAIN = 60, 6, 0.9
"""Iterations before the method gives up, and iterations in a row in which it comes no tenth nearer."""
BESIDE = 1e-100
"""So near to the kink at 0 that the slope of r is that of its absolute values alone."""
SIGNS = 20
"""Sets of signs that are looked at, at most, for each unknown."""
FALLS, FAR = 1e-10, 1e6
"""From which part of all slopes on one along which nothing bends counts; and how far to look along it for a sign that changes."""


def numbers(d: int) -> int:
    """In a message for d unknowns: the upper half of H, and g."""
    return d * (d + 3) // 2


def is_cheaper(loss: str, d: int) -> bool:
    """Than iterating with gradients."""
    return numbers(d) <= WORTH[loss] * (d + 3)


@dataclass(frozen=True)
class Here:
    """What all sites know of a point."""

    x: Point
    g: Point
    """∇f there."""
    value: Tensor
    """f + r there."""
    curvature: Tensor | None
    """The columns of H̄ that belong to intercepts [d, intercepts], where it is the same everywhere."""


@dataclass(frozen=True)
class Newton:
    """On one problem whose sums over all n nodes `total` gives."""

    problem: Sampled
    total: Total
    n: int
    nodes: Sequence[int]
    """Which of them are held here."""

    @torch.no_grad()
    def run(
        self, x: Point, off: Callable[[int, Here], float], tolerance: float, H: Tensor | None = None
    ) -> tuple[Point, float, int]:
        """Until off(k, here) <= tolerance, or until steps no longer help: the best point, how far off it is, and k. H̄ is asked
        for unless it is known and the same everywhere."""
        best, where, found, here = math.inf, x, 0, None
        for k in range(1, MOST + 1):
            if H is None or not self.problem.quadratic:
                H, g = self._moments(x, here and here.g)
            else:
                g = (here or self._here(x, H)).g
            before, x = x, self._towards(x, minimise(H, g, x, self.problem.reg))
            here = self._here(x, H)
            now = off(k, here)
            found = k if now < GAIN * best else found
            best, where = min((best, where), (now, x), key=lambda pair: pair[0])
            # What a fit begins at may differ between sites by rounding, and what they decide by must not.
            if best <= tolerance or (k > 1 and torch.equal(before, x)) or k - found >= PATIENCE:
                return where, best, k
        return where, best, MOST

    def _mean(self, own: Tensor) -> Tensor:
        return self.total(own)[0] / self.n

    def _here(self, x: Point, H: Tensor) -> Here:
        """ḡ and f + r at x, by one sum."""
        problem = self.problem
        value, own = problem.value_and_grad_from(problem.look(problem.everywhere(x)))
        numbers = (value + problem.reg.value(x)).unsqueeze(-1)
        g, value = self._mean(torch.cat((own, numbers), dim=-1)).tensor_split((-1,))
        spared = problem.reg.spares
        return Here(x, g, value[0], H[:, -spared:] if spared and problem.quadratic else None)

    def _moments(self, x: Point, g: Point | None) -> tuple[Tensor, Point]:
        """H̄ and ḡ at x, which may be known."""
        problem, d = self.problem, self.problem.d
        u = problem.look(problem.everywhere(x))
        rows, columns = torch.triu_indices(d, d)
        own = [problem.hessian_from(u), *([problem.value_and_grad_from(u)[1]] if g is None else [])]
        halves, rest = self._mean(torch.cat(own, dim=-1)).tensor_split((len(rows),))
        H = torch.zeros(d, d, dtype=problem.dtype)
        H[rows, columns] = H[columns, rows] = halves
        return H, rest if g is None else g

    def _towards(self, x: Point, aim: Point) -> Point:
        """The best point on the way; x itself if none is better. The same at every site: node 0's aim travels with the values."""
        if self.problem.quadratic:
            return self.total(self._of_first(aim))[0]
        lengths = torch.tensor((0.0, *LENGTHS), dtype=x.dtype)
        told = self.total(torch.cat((self._values(x, aim, lengths[:FIRST]), self._of_first(aim)), dim=-1))[0]
        loss, aim = told[:FIRST] / self.n, told[FIRST:]
        # A full step whose gain is lost in rounding is taken: there Newton's method knows better than values do.
        rounding = 10 * torch.finfo(loss.dtype).eps * loss[0].abs()
        if bool(loss[1] <= loss.min() + rounding):
            return aim
        best = int(torch.cat((loss, self._mean(self._values(x, aim, lengths[FIRST:])))).argmin())
        return x + lengths[best] * (aim - x) if best else x

    def _of_first(self, own: Point) -> NodeTensor:
        """What node 0 has, and 0 for all others: its sum is the same everywhere, to the bit. Small problems that are solved on
        different machines differ by roundings."""
        first = torch.tensor([node == 0 for node in self.nodes]).unsqueeze(-1)
        return torch.where(first, self.problem.everywhere(own), 0.0)

    def _values(self, x: Point, aim: Point, lengths: Tensor) -> NodeTensor:
        """f_i + r on the way from x to the aim [n, points]. Sums of r round differently at different sites: it is averaged, too,
        so that all decide alike."""
        points = x + lengths.unsqueeze(-1) * (aim - x)
        return (self.problem.between(x, aim, lengths) + self.problem.reg.value(points).unsqueeze(-1)).mT


def minimise(H: Tensor, g: Tensor, x: Point, reg: Regularizer) -> Point:
    """argmin_z ⟨g, z - x⟩ + ½ (z - x)ᵀ H (z - x) + r(z) for r = Σ w_l |z_l| + m_l/2 z_l²; intercepts, which r spares, are
    eliminated."""
    if isinstance(reg, Sparing):
        d = len(x) - reg.spares
        h, g0 = H[:d, d:], g[d:]
        solved = torch.linalg.pinv(H[d:, d:], rtol=FLAT, hermitian=True) @ torch.column_stack((h.mT, g0))  # [spares, d + 1]
        z = minimise(H[:d, :d] - h @ solved[:, :d], g[:d] - h @ solved[:, d], x[:d], reg.reg)
        return torch.cat((z, x[d:] - solved[:, d] - solved[:, :d] @ (z - x[:d])))
    bend = reg.bend(x)
    w = (reg.slope(torch.full_like(x, BESIDE)) - BESIDE * bend).clamp(min=0)
    return sparse_quadratic(H + torch.diag(bend), H @ x - g, w, x)


def sparse_quadratic(H: Tensor, c: Tensor, w: Tensor, z: Tensor) -> Tensor:
    """argmin_z ½ zᵀHz - cᵀz + Σ w_l |z_l| by a search over signs (Lee et al. 2007), exact however alike columns are.

    With the signs θ of the active coordinates fixed, the minimum solves H_AA z_A = c_A - w_A θ_A. On the way there the objective
    falls until the first coordinate changes its sign, and perhaps further: the best of the points where one does is taken.
    """
    z, theta = z.clone(), torch.where(w > 0, z.sign(), 1.0)  # without a penalty a coordinate is active, whatever its sign
    rounding = 1e-14 * float((H.abs() @ z.abs() + c.abs() + w).max())
    let_in = torch.zeros(len(c), dtype=torch.long)

    def value(point: Tensor) -> float:
        return float(point @ (H @ point) / 2 - c @ point + (w * point.abs()).sum())

    for _ in range(SIGNS * len(c)):
        aim = _aim(H, c - w * theta, z, theta != 0)
        turned = (theta != 0) & (w > 0) & (aim * theta < 0)
        if bool(turned.any()):
            points = [aim] if bool(torch.isfinite(aim).all()) else []
            for j in torch.nonzero(turned).flatten().tolist():
                point = z + z[j] / (z[j] - aim[j]) * (aim - z) if z[j] != 0 else z.clone()
                point[j] = 0.0
                points.append(point)
            z = min(points, key=value)
            theta = torch.where(w > 0, z.sign(), theta)
            continue
        z = aim
        slope = H @ z - c
        excess = torch.where((theta == 0) & (let_in < SIGNS), slope.abs() - w, 0.0)
        worst = int(excess.argmax())
        if float(excess[worst]) <= rounding:
            return z
        theta[worst] = -slope[worst].sign()
        let_in[worst] += 1
    return z


def _aim(H: Tensor, right: Tensor, z: Tensor, active: Tensor) -> Tensor:
    """z with its active coordinates where ½ zᵀHz - rightᵀz is least; far along a direction in which it falls for ever, if any."""
    aim = z.clone()
    if not bool(active.any()):
        return aim
    H, right, here = H[active][:, active], right[active], z[active]
    values, vectors = torch.linalg.eigh(H)
    known = values > len(right) * torch.finfo(H.dtype).eps * values[-1].clamp(min=0)
    lacking = vectors.mT @ (right - H @ here)  # along the eigenvectors
    free = torch.where(known, 0.0, lacking)
    if float(free.abs().max()) > FALLS * float(right.abs().max()):
        downhill = vectors @ free
        aim[active] = here + FAR * (float(here.abs().max()) or 1.0) * downhill / downhill.abs().max()
    else:
        aim[active] = here + vectors @ torch.where(known, lacking / torch.where(known, values, 1.0), 0.0)
    return aim
