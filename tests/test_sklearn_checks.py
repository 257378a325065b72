"""scikit-learn's own checks of estimators, with no expected failure."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from milodo.sklearn import (
    DecentralizedElasticNet,
    DecentralizedLasso,
    DecentralizedLinearRegression,
    DecentralizedLogisticRegression,
)


@parametrize_with_checks(
    [DecentralizedLasso(), DecentralizedElasticNet(), DecentralizedLinearRegression(), DecentralizedLogisticRegression()]
)
def test_an_estimator_is_one(estimator, check):
    check(estimator)
