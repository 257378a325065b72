"""Least squares, and the paper's synthetic LASSO and linear regression (Appendix E.2)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from milodo.problems.linear import LinearModel
from milodo.problems.synthetic import SyntheticFamily
from milodo.solvers.certificates import Certificate, Projection


class LeastSquares(LinearModel):
    """f_i(x) = 1/(2N) ‖A_i x - b_i‖².

    The paper prints LASSO without 1/N but ran it with it: only then do its step sizes converge. With 1/N the objective is
    that of scikit-learn's Lasso on the pooled data.
    """

    curvature = 1.0
    bending = 0.0
    homogeneous = translates = attained = canonical = True
    reach = math.inf

    def certificates(self) -> tuple[Certificate, ...]:
        duality, convexity, *others = super().certificates()
        return duality, convexity, *([Projection()] if self.reg.vanishes else []), *others

    def loss(self, u: Tensor) -> Tensor:
        return (u - self.b).square() / 2

    def loss_slope(self, u: Tensor) -> Tensor:
        return u - self.b

    def loss_curvature(self, u: Tensor) -> Tensor:
        return torch.ones_like(u)

    def constant(self, mean: Tensor) -> Tensor:
        return mean

    def fenchel_gap(self, u: Tensor, v: Tensor) -> Tensor:
        return (u - self.b - v).square() / 2


NOISE = 0.1
"""Scale ε of the noise in b = A x + ε z (Appendix E.2)."""


class Lasso(SyntheticFamily):
    """LASSO(n, d, N, lam): b = A x + 0.1 z. With lam = 0 it is linear regression.

    >>> problem = Lasso(10, 300, 10, 0.1).sample(seeds=[0, 1])
    >>> problem.batch, problem.n, problem.d
    ((2,), 10, 300)
    """

    model: ClassVar[type[LinearModel]] = LeastSquares

    def labels(self, u: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return u + NOISE * rng.standard_normal(len(u))
