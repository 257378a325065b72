"""Estimators for people who know scikit-learn: one model from rows that lie at several sites, as if they were pooled."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("milodo.sklearn needs scikit-learn. Install it: pip install 'milodo[sklearn]'.") from error

from milodo.sklearn.base import Decentralized
from milodo.sklearn.classification import DecentralizedLogisticRegression
from milodo.sklearn.cv import DecentralizedLassoCV, DecentralizedLogisticRegressionCV
from milodo.sklearn.glm import DecentralizedGLM
from milodo.sklearn.regression import DecentralizedElasticNet, DecentralizedLasso, DecentralizedLinearRegression
from milodo.sklearn.saved import load

__all__ = [
    "Decentralized", "DecentralizedElasticNet", "DecentralizedGLM", "DecentralizedLasso", "DecentralizedLassoCV",
    "DecentralizedLinearRegression", "DecentralizedLogisticRegression", "DecentralizedLogisticRegressionCV", "load",
]  # fmt: skip
