"""f_i, r, data and instances."""

from typing import Any

from milodo.problems.base import Family, Problem, instance_seeds, stream
from milodo.problems.custom import CustomProblem
from milodo.problems.gabor import GaborLasso
from milodo.problems.lasso import Lasso, LeastSquares
from milodo.problems.linear import LinearModel
from milodo.problems.logistic import Logistic, LogisticRegression
from milodo.problems.neural import Neural
from milodo.problems.neural_families import CNNFamily, DigitsCNNFamily, DigitsMLPFamily, MLPFamily, ResNetFamily
from milodo.problems.real import BreastCancer, BSDSLasso, Census
from milodo.problems.regularizers import L1, REGULARIZERS, Box, ElasticNet, NonNegative, Regularizer, Zero
from milodo.problems.sampled import Sampled
from milodo.problems.softmax import Softmax
from milodo.solvers.reference import Reference, optimum

FAMILIES: dict[str, type[Any]] = {
    "lasso": Lasso, "logistic": Logistic, "gabor-lasso": GaborLasso,
    "bsds-lasso": BSDSLasso, "census": Census, "breast-cancer": BreastCancer,
    "mlp": MLPFamily, "resnet": ResNetFamily, "cnn": CNNFamily, "digits-mlp": DigitsMLPFamily,
    "digits-cnn": DigitsCNNFamily,
}  # fmt: skip
"""Frozen dataclasses: their fields are what [problem] of an experiment may say."""

__all__ = [
    "FAMILIES", "L1", "REGULARIZERS", "BSDSLasso", "Box", "BreastCancer", "Census", "CustomProblem", "ElasticNet",
    "Family", "GaborLasso", "Lasso", "LeastSquares", "LinearModel",
    "Logistic", "LogisticRegression", "MLPFamily", "Neural", "NonNegative", "Problem", "Reference", "Regularizer",
    "ResNetFamily", "Sampled", "Softmax", "Zero", "instance_seeds", "optimum", "stream",
]  # fmt: skip
