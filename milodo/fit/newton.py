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
from milodo.problems.sampled import Sampled
from milodo.solvers.line_search import FIRST, WHOLE, best_length, lengths_like
from milodo.solvers.prox_newton import model_minimum
from milodo.solvers.triangles import packed_size, unpack
from milodo.types import NodeTensor, Point

WORTH = {"squared": 100, "logistic": 50, "softmax": 50}
"""Sums of gradients that one sum of curvatures may cost. Iterating takes some hundred of the former (docs/results.md), Newton
one of the latter for the squared loss, and about ten for logistic regression."""
MOST, PATIENCE, GAIN = 60, 6, 0.9
"""Iterations before the method gives up, and iterations in a row in which it comes no tenth nearer."""


def numbers(d: int) -> int:
    """In a message for d unknowns: the upper half of H, and g."""
    return packed_size(d) + d


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
            before, x = x, self._towards(x, model_minimum(H, g, x, self.problem.reg))
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
        spared = problem.reg.unpenalized
        return Here(x, g, value[0], H[:, -spared:] if spared and problem.quadratic else None)

    def _moments(self, x: Point, g: Point | None) -> tuple[Tensor, Point]:
        """H̄ and ḡ at x, which may be known."""
        problem, d = self.problem, self.problem.d
        u = problem.look(problem.everywhere(x))
        own = [problem.hessian_from(u), *([problem.value_and_grad_from(u)[1]] if g is None else [])]
        triangle, rest = self._mean(torch.cat(own, dim=-1)).tensor_split((packed_size(d),))
        return unpack(triangle, d), rest if g is None else g

    def _towards(self, x: Point, aim: Point) -> Point:
        """The best point on the way; x itself if none is better. The same at every site: node 0's aim travels with the values."""
        if self.problem.quadratic:
            return self.total(self._of_first(aim))[0]
        lengths = lengths_like(x)
        told = self.total(torch.cat((self._values(x, aim, lengths[:FIRST]), self._of_first(aim)), dim=-1))[0]
        loss, aim = told[:FIRST] / self.n, told[FIRST:]
        if int(best_length(loss)) == WHOLE:
            return aim
        best = int(best_length(torch.cat((loss, self._mean(self._values(x, aim, lengths[FIRST:]))))))
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
