"""Logistic regression, and the paper's synthetic family (Appendix E.2)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from milodo.errors import InvalidInput
from milodo.problems.linear import LinearModel
from milodo.problems.regularizers import Regularizer
from milodo.problems.sampled import exact_log
from milodo.problems.synthetic import SyntheticFamily


class LogisticRegression(LinearModel):
    """f_i(x) = (1/N) Σ_j b_ij ln(1 + exp(-a_ijᵀx)) + (1 - b_ij) ln(1 + exp(a_ijᵀx)), with b in {0, 1}."""

    curvature = 0.25
    bending = 1.0
    homogeneous = translates = attained = False
    canonical = True
    reach = 1.0

    def __init__(self, A: Tensor, b: Tensor, reg: Regularizer, weights: Tensor | None = None) -> None:
        super().__init__(A, b, reg, weights)
        wrong = b[(b != 0) & (b != 1)]
        if len(wrong):
            raise InvalidInput(f"labels must be 0 or 1, but {wrong[0].item():g} occurs. Map the two classes to 0 and 1.")

    def loss(self, u: Tensor) -> Tensor:
        # -ln σ is ln(1 + exp(-u)), and logsigmoid is stable for every u; b is 0 or 1.
        return -logsigmoid((2 * self.b - 1) * u)

    def loss_slope(self, u: Tensor) -> Tensor:
        return u.sigmoid() - self.b

    def loss_curvature(self, u: Tensor) -> Tensor:
        return u.sigmoid() * (-u).sigmoid()

    def constant(self, mean: Tensor) -> Tensor:
        return exact_log(mean) - exact_log(1 - mean)

    def margin(self, u: Tensor) -> Tensor:
        return (2 * self.b - 1) * u

    def fenchel_gap(self, u: Tensor, v: Tensor) -> Tensor:
        # ℓ*(v) is the negative entropy of q = v + b, so the gap is the Kullback-Leibler divergence of q from σ(u).
        q = (v + self.b).clamp(0, 1)
        entropy = torch.special.xlogy(q, q) + torch.special.xlogy(1 - q, 1 - q)
        return (entropy - q * logsigmoid(u) - (1 - q) * logsigmoid(-u)).clamp(min=0)


class Logistic(SyntheticFamily):
    """Logistic(n, d, N, lam): b = 1 where a·x >= 0, else 0."""

    model: ClassVar[type[LinearModel]] = LogisticRegression

    def labels(self, u: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return (u >= 0).astype(float)
