"""Regression: Lasso, elastic net and least squares."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from milodo.fit import Fit
from milodo.sklearn.base import ITERATIONS, TOLERANCE, Decentralized, penalty, weights_of


class OfNumbers(Decentralized):
    """Numbers as targets."""

    def _fit_numbers(self, X: Any, y: Any, sites: Any, sample_weight: Any) -> Self:
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        data = self._dealt(X, y, sites, weights_of(sample_weight, X))
        return self._keep(self._fitted(data), data.names)

    def _take(self, fit: Fit) -> None:
        self.coef_, self.intercept_ = fit.coefficients, float(fit.intercept)


class DecentralizedRegressor(RegressorMixin, OfNumbers):
    """Squared loss."""

    @property
    def _loss(self) -> str:
        return "squared"

    def fit(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> Self:
        """`sites` names the site that holds each row; without it rows are dealt out to `n_sites` sites."""
        return self._fit_numbers(X, y, sites, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        return self._linear(X)


class DecentralizedLasso(DecentralizedRegressor):
    """scikit-learn's Lasso of all sites' rows together: 1/(2n) ‖y - Xw‖² + alpha ‖w‖₁.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = DecentralizedLasso(alpha=0.5, n_sites=4).fit(X, y)
    >>> int((model.coef_ != 0).sum()), bool(model.dual_gap_ < 1e-6), model.rounds_
    (4, True, 40)
    """

    def __init__(
        self, alpha: float = 1.0, *, fit_intercept: bool = True, tol: float = TOLERANCE, max_iter: int = ITERATIONS,
        n_sites: int = 3, graph: str = "ring", method: str | None = None, messages: str | None = None,
    ) -> None:  # fmt: skip
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.n_sites = n_sites
        self.graph = graph
        self.method = method
        self.messages = messages

    def _penalties(self, weight: float) -> tuple[float, float]:
        return penalty("alpha", self.alpha), 0.0


class DecentralizedElasticNet(DecentralizedRegressor):
    """scikit-learn's ElasticNet of all sites' rows together:

    1/(2n) ‖y - Xw‖² + alpha (l1_ratio ‖w‖₁ + (1 - l1_ratio)/2 ‖w‖²)
    """

    def __init__(
        self, alpha: float = 1.0, *, l1_ratio: float = 0.5, fit_intercept: bool = True, tol: float = TOLERANCE,
        max_iter: int = ITERATIONS, n_sites: int = 3, graph: str = "ring", method: str | None = None,
        messages: str | None = None,
    ) -> None:  # fmt: skip
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.n_sites = n_sites
        self.graph = graph
        self.method = method
        self.messages = messages

    def _penalties(self, weight: float) -> tuple[float, float]:
        alpha, ratio = penalty("alpha", self.alpha), penalty("l1_ratio", self.l1_ratio, most=1.0)
        return alpha * ratio, alpha * (1 - ratio)


class DecentralizedLinearRegression(DecentralizedRegressor):
    """Least squares of all sites' rows together: 1/(2n) ‖y - Xw‖². Where the rows leave w open, any that is best."""

    def __init__(
        self, *, fit_intercept: bool = True, tol: float = TOLERANCE, max_iter: int = ITERATIONS, n_sites: int = 3,
        graph: str = "ring", method: str | None = None, messages: str | None = None,
    ) -> None:  # fmt: skip
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.n_sites = n_sites
        self.graph = graph
        self.method = method
        self.messages = messages

    def _penalties(self, weight: float) -> tuple[float, float]:
        return 0.0, 0.0
