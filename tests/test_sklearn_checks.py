"""scikit-learn's own checks of estimators, with no expected failure."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from milodo.sklearn import (
    DecentralizedElasticNet,
    DecentralizedGLM,
    DecentralizedLasso,
    DecentralizedLinearRegression,
    DecentralizedLogisticRegression,
)

ESTIMATORS = [
    DecentralizedLasso(),
    DecentralizedElasticNet(),
    DecentralizedLinearRegression(),
    DecentralizedLogisticRegression(),
    DecentralizedGLM(),
    DecentralizedGLM("squared", "elasticnet"),
    DecentralizedGLM("logistic", "l1", alpha=0.01),
]


@parametrize_with_checks(ESTIMATORS)
def test_an_estimator_is_one(estimator, check):
    check(estimator)
