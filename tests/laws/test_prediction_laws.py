"""Classes from scores, as scikit-learn has them: a score of exactly 0 is no sign of the second class."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from milodo.fit.saved import Saved
from milodo.sklearn import DecentralizedLogisticRegression

X = np.array([[0.0, 0.0], [1.0, -1.0], [2.0, 1.0], [-3.0, 1.0], [0.5, -0.5], [5e-324, 0.0]])
"""Rows whose scores are 0 for w = (1, 1), and others on both sides."""


def fitted(model, coef, intercept, classes):
    model.coef_, model.intercept_, model.classes_, model.n_features_in_ = coef, intercept, classes, X.shape[1]
    return model


@pytest.mark.parametrize("intercept", [0.0, -0.0, 2.0, -3.0])
def test_two_classes_are_told_apart_as_scikit_learn_does_also_where_the_score_is_zero(intercept):
    parts = (np.array([[1.0, 1.0]]), np.array([intercept]), np.array(["no", "yes"]))
    truth = fitted(LogisticRegression(), *parts)
    assert (truth.decision_function(X) == 0).any()
    ours = fitted(DecentralizedLogisticRegression(), *parts)
    saved = Saved.model_validate({
        "task": {"target": "y", "loss": "logistic", "l1": 0.1}, "columns": ["a", "b"], "coefficients": [1.0, 1.0],
        "intercept": intercept, "classes": ["no", "yes"], "samples": 6,
    })  # fmt: skip
    assert ours.predict(X).tolist() == saved.predict(X).tolist() == truth.predict(X).tolist()
    for found in (ours.predict_proba(X), saved.probabilities(X)):
        np.testing.assert_allclose(found, truth.predict_proba(X), rtol=1e-12)
    np.testing.assert_allclose(ours.predict_log_proba(X), truth.predict_log_proba(X), rtol=1e-12)


def test_of_several_classes_with_the_same_score_the_first_is_taken():
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    parts = (rows, np.zeros(4), np.array([3, 5, 7, 9]))
    truth, ours = fitted(LogisticRegression(), *parts), fitted(DecentralizedLogisticRegression(), *parts)
    assert ours.predict(X).tolist() == truth.predict(X).tolist()
    np.testing.assert_allclose(ours.predict_proba(X), truth.predict_proba(X), rtol=1e-12)
