"""Classification: logistic regression of two classes, and of several."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from milodo.errors import InvalidInput, as_float, quoted, shortened
from milodo.fit import Fit
from milodo.sklearn.base import ITERATIONS, TOLERANCE, Decentralized, penalty, weights_of


class OfClasses(Decentralized):
    """Anything that can be sorted as targets: logistic loss for two classes, softmax for more."""

    classes_: np.ndarray

    @property
    def _loss(self) -> str:
        return "logistic" if len(self.classes_) == 2 else "softmax"

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(map(str, getattr(self, "classes_", ())))

    def _fit_classes(self, X: Any, y: Any, sites: Any, sample_weight: Any) -> Self:
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, place = np.unique(y, return_inverse=True)
        few, weights = len(self.classes_), weights_of(sample_weight, X)
        if few < 2:
            only = shortened(self.classes_[0], 30)
            raise InvalidInput(f"y holds only one class, {only}, and a classifier needs at least two. Add rows of another class.")
        for name, weight in zip(self.classes_, np.bincount(place, weights), strict=True):
            if not weight > 0:
                raise InvalidInput(f"all rows of class {shortened(name, 30)} have sample_weight 0. Remove them, or weigh some.")
        data = self._dealt(X, place.astype(float) if few == 2 else np.eye(few)[place], sites, weights)
        return self._keep(self._fitted(data), data.names)

    def _take(self, fit: Fit) -> None:
        self.coef_ = np.atleast_2d(fit.coefficients)
        self.intercept_ = np.atleast_1d(fit.intercept)

    def _scores(self, X: Any) -> np.ndarray:
        scores = self._linear(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def _likeliest(self, X: Any) -> np.ndarray:
        scores = self._scores(X)
        return self.classes_[scores.argmax(1) if scores.ndim > 1 else (scores > 0).astype(int)]

    def _probabilities(self, X: Any) -> np.ndarray:
        scores = self._scores(X)
        return softmax(scores, axis=1) if scores.ndim > 1 else np.column_stack((expit(-scores), expit(scores)))


class DecentralizedClassifier(ClassifierMixin, OfClasses):
    """A classifier of scikit-learn's."""

    def fit(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> Self:
        """`sites` names the site that holds each row; without it rows are dealt out to `n_sites` sites."""
        return self._fit_classes(X, y, sites, sample_weight)

    def decision_function(self, X: Any) -> np.ndarray:
        """Log odds of the second of two classes [N]; of several the scores [N, k] whose softmax are their probabilities."""
        return self._scores(X)

    def predict(self, X: Any) -> np.ndarray:
        return self._likeliest(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """[N, k], the classes in the order of `classes_`."""
        return self._probabilities(X)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        return np.log(self._probabilities(X))


class DecentralizedLogisticRegression(DecentralizedClassifier):
    """scikit-learn's LogisticRegression of all sites' rows together:

    C Σ ln(1 + exp(-(2y - 1)(wᵀx + b))) + l1_ratio ‖w‖₁ + (1 - l1_ratio)/2 ‖w‖²

    C = inf penalises nothing, l1_ratio = 1 is the L1 penalty, 0 is L2, and what lies between an elastic net. More than two
    classes get a softmax. Where several w are as good (an L1 penalty and an even number of classes), any of them.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> model = DecentralizedLogisticRegression(C=0.1, l1_ratio=1.0).fit(X / X.std(0), y)
    >>> model.coef_.shape, bool(model.score(X / X.std(0), y) > 0.95)
    ((3, 13), True)
    """

    def __init__(
        self, C: float = 1.0, *, l1_ratio: float = 0.0, fit_intercept: bool = True, tol: float = TOLERANCE,
        max_iter: int = ITERATIONS, n_sites: int = 3, graph: str = "ring", method: str | None = None,
        messages: str | None = None,
    ) -> None:  # fmt: skip
        self.C = C
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.n_sites = n_sites
        self.graph = graph
        self.method = method
        self.messages = messages

    def _penalties(self, weight: float) -> tuple[float, float]:
        C, ratio = as_float(self.C), penalty("l1_ratio", self.l1_ratio, most=1.0)
        if C is None or not C > 0:
            raise InvalidInput(f"C is {quoted(self.C)}, but it must be a number > 0; inf penalises nothing.")
        return ratio / (C * weight), (1 - ratio) / (C * weight)
