"""One estimator for every loss and penalty."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, Tags
from sklearn.utils.metaestimators import available_if

from milodo.errors import unknown
from milodo.fit import Fit
from milodo.sklearn.base import ITERATIONS, TOLERANCE, penalty
from milodo.sklearn.classification import OfClasses
from milodo.sklearn.regression import OfNumbers

REGRESSIONS, CLASSIFICATIONS = ("squared",), ("logistic",)
PENALTIES = ("l1", "l2", "elasticnet")


def _of_classes(model: DecentralizedGLM) -> bool:
    """Whether the targets are classes; others have no probabilities."""
    return model.loss in CLASSIFICATIONS


class DecentralizedGLM(OfClasses, OfNumbers):
    """A linear model of all sites' rows together, (1/n) Σ loss + alpha · penalty, for any loss and penalty.

    loss: 'squared' makes it a regressor, 'logistic' a classifier (of two classes, or of several by softmax).
    penalty: 'l1' is ‖w‖₁, 'l2' is ½ ‖w‖², 'elasticnet' l1_ratio of the first and 1 - l1_ratio of the second, None nothing.
    """

    def __init__(
        self, loss: str = "squared", penalty: str | None = "l2", *, alpha: float = 1.0, l1_ratio: float = 0.5,
        fit_intercept: bool = True, tol: float = TOLERANCE, max_iter: int = ITERATIONS, n_sites: int = 3, graph: str = "ring",
        method: str | None = None, messages: str | None = None,
    ) -> None:  # fmt: skip
        self.loss = loss
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.n_sites = n_sites
        self.graph = graph
        self.method = method
        self.messages = messages

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier" if _of_classes(self) else "regressor"
        tags.classifier_tags = ClassifierTags() if _of_classes(self) else None
        tags.regressor_tags = None if _of_classes(self) else RegressorTags()
        tags.target_tags.required = True
        return tags

    @property
    def _loss(self) -> str:
        return super()._loss if _of_classes(self) else self.loss

    def _penalties(self, weight: float) -> tuple[float, float]:
        if self.penalty is None:
            return 0.0, 0.0
        if self.penalty not in PENALTIES:
            raise unknown("penalty", self.penalty, PENALTIES)
        alpha = penalty("alpha", self.alpha)
        ratio = penalty("l1_ratio", self.l1_ratio, most=1.0) if self.penalty == "elasticnet" else float(self.penalty == "l1")
        return alpha * ratio, alpha * (1 - ratio)

    def _take(self, fit: Fit) -> None:
        (OfClasses if _of_classes(self) else OfNumbers)._take(self, fit)

    def fit(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> Self:
        """`sites` names the site that holds each row; without it rows are dealt out to `n_sites` sites."""
        if self.loss not in REGRESSIONS + CLASSIFICATIONS:
            raise unknown("loss", self.loss, REGRESSIONS + CLASSIFICATIONS)
        return (self._fit_classes if _of_classes(self) else self._fit_numbers)(X, y, sites, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Numbers, or classes."""
        return self._likeliest(X) if _of_classes(self) else self._linear(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of numbers, accuracy of classes."""
        return float((accuracy_score if _of_classes(self) else r2_score)(y, self.predict(X), sample_weight=sample_weight))

    @available_if(_of_classes)
    def decision_function(self, X: Any) -> np.ndarray:
        """Log odds of the second of two classes [N]; of several the scores [N, k] whose softmax are their probabilities."""
        return self._scores(X)

    @available_if(_of_classes)
    def predict_proba(self, X: Any) -> np.ndarray:
        """[N, k], the classes in the order of `classes_`."""
        return self._probabilities(X)
