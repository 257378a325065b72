"""An elastic net with weights of each coordinate's own, however large or small."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.problems.regularizers import Regularizer
from milodo.types import Step

NO_SLOPE, NO_BEND = 1e-100, 1e-22
"""Weights of |x_l| and of x_l²/2 below which a coordinate counts as free where a duality gap is asked for: columns being of size
1, what rounding leaves of a gradient, squared and divided by the latter, is more than any tolerance."""


@dataclass(frozen=True)
class Weighed(Regularizer):
    """r(x) = Σ_l lam_l |x_l| + mu_l/2 x_l²."""

    lam: Tensor
    mu: Tensor

    def each(self, x: Tensor) -> Tensor:
        return self.lam * x.abs() + self.mu / 2 * x * x

    def prox(self, v: Tensor, step: Step) -> Tensor:
        return v.sign() * (v.abs() - step * self.lam).clamp(min=0) / (1 + step * self.mu)

    def distance(self, x: Tensor, v: Tensor) -> Tensor:
        v = v - self.mu * x
        return torch.where(x == 0, (v.abs() - self.lam).clamp(min=0), (v - self.lam * x.sign()).abs())

    def conjugate(self, v: Tensor) -> Tensor:
        beyond = (v.abs() - self.lam).clamp(min=0)
        return torch.where(self.mu > NO_BEND, beyond.square() / (2 * self.mu.clamp(min=NO_BEND)), 0.0)

    def dual_scaling(self, v: Tensor) -> Tensor | None:
        bounded = self.mu <= NO_BEND  # there v must not be larger than lam
        if bool((bounded & (self.lam <= NO_SLOPE)).any()):
            return None
        size = torch.where(bounded, v.abs(), 0.0)
        return torch.where(size > self.lam, self.lam / size, 1.0).amin(-1)

    def free(self, x: Tensor) -> Tensor:
        return (x != 0) | (self.lam == 0)

    def slope(self, x: Tensor) -> Tensor:
        return self.lam * x.sign() + self.mu * x

    def curvature(self, x: Tensor) -> Tensor:
        return self.mu.expand_as(x)
