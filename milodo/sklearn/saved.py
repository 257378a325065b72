"""A fit of the command line as an estimator."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from milodo.fit.saved import Saved, read_fit
from milodo.sklearn.base import Decentralized
from milodo.sklearn.classification import DecentralizedLogisticRegression
from milodo.sklearn.regression import DecentralizedElasticNet, DecentralizedLasso, DecentralizedLinearRegression


def load(path: str | Path) -> Decentralized:
    """What `milodo solve` or `milodo node` fitted, from its folder or fit.json, ready to predict. Nothing in the file is run.

    Classes that are numbers come back as numbers. Coefficients are in the units of the data, also where the penalty was one of
    standardised features; fitting such an estimator again would penalise the features as they are.
    """
    saved = read_fit(path)
    model = _model(saved)
    model.n_features_in_ = len(saved.columns)
    model.feature_names_in_ = np.array(saved.columns, dtype=object)
    if isinstance(model, DecentralizedLogisticRegression) and saved.classes is not None:
        model.classes_ = _numbers_if_they_are(saved.classes)
    return model._keep(saved.fit, [])


def _model(saved: Saved) -> Decentralized:
    """The estimator with the penalty of the fit, in scikit-learn's terms."""
    task = saved.task
    l1, l2 = task.l1, task.l2
    shared = {
        "fit_intercept": task.intercept, "tol": task.tolerance, "max_iter": task.iterations, "graph": task.graph,
        "method": task.method, "messages": task.messages,
    }  # fmt: skip
    alpha = l1 + l2
    ratio = l1 / alpha if alpha else 0.0
    if task.loss == "logistic":
        return DecentralizedLogisticRegression(C=1 / (alpha * saved.samples) if alpha else np.inf, l1_ratio=ratio, **shared)
    if not alpha:
        return DecentralizedLinearRegression(**shared)
    return DecentralizedElasticNet(alpha, l1_ratio=ratio, **shared) if l2 else DecentralizedLasso(l1, **shared)


def _numbers_if_they_are(classes: tuple[str, ...]) -> np.ndarray:
    """Texts that are all whole numbers become such, or else numbers."""
    for kind in (int, float):
        try:
            return np.array([kind(name) for name in classes])
        except ValueError:
            continue
    return np.array(classes)
