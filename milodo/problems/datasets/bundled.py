"""Two small data sets that come with scikit-learn and need no download: handwritten digits, and breast cancer (Wisconsin)."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np

from milodo.errors import InvalidInput
from milodo.problems.datasets.store import checked_part

DEEPEST = 16.0
"""The darkest value of a pixel of digits."""
TESTED = 0.2
"""Part of the digits kept for tests, drawn once with seed 0."""


def digits(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images float64 [M, 64] in [0, 1] and labels int64 [M] of 'train' (1,438) or 'test' (359); read-only."""
    return _digits(checked_part("digits", part))


@cache
def _digits(part: str) -> tuple[np.ndarray, np.ndarray]:
    X, y = _library().load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    tested = round(TESTED * len(y))
    rows = np.sort(order[:tested] if part == "test" else order[tested:])
    return _kept(X[rows] / DEEPEST, y[rows].astype(np.int64))


@cache
def breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    """X float64 [569, 30], every column with mean 0 and standard deviation 1, and y in {0, 1} (1: benign); read-only."""
    X, y = _library().load_breast_cancer(return_X_y=True)
    return _kept((X - X.mean(0)) / X.std(0), y.astype(float))


def _kept(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    for array in (X, y):
        array.setflags(write=False)
    return X, y


def _library() -> ModuleType:
    try:
        import sklearn.datasets as library
    except ImportError as error:
        raise InvalidInput(
            "the digits and breast-cancer data come with scikit-learn, which is not installed. Install milodo[data]."
        ) from error
    return library
