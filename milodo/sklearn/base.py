"""What all estimators share: rows go to sites, sites to milodo.fit, and what is known about the answer to attributes."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from milodo.algorithms import METHODS
from milodo.errors import InvalidInput, as_float, quoted, whole
from milodo.fit import Fit, Request, Samples, Task, fit_model
from milodo.network import Ledger, StackedNetwork, StackedObserver
from milodo.sklearn.dealing import Dealt, deal, rows_of
from milodo.status import Status

TOLERANCE = 1e-10
"""Relative, as `milodo.Stop` has it: of gap, residual and consensus error."""
ITERATIONS = 200_000
AUTO = "auto"


class Decentralized(BaseEstimator):
    """One linear model from rows at several sites. A subclass says what is penalised, and what its targets are.

    Further attributes of a fit: `n_iter_`, `rounds_` and `bytes_` (of everything that all sites sent together; `traffic_` has
    their parts, the set-up, the method and the checks of the stopping rule), `dual_gap_` (by how much the objective can exceed
    its minimum; NaN where nothing is penalised), `consensus_error_` (how far sites are from their mean, relative to its size) and
    `fit_`, with everything else.
    """

    fit_intercept: bool
    tol: float
    max_iter: int
    n_sites: int
    graph: str
    method: str | None
    messages: str | None

    coef_: np.ndarray
    intercept_: float | np.ndarray
    n_features_in_: int
    feature_names_in_: np.ndarray
    """Where X was a data frame."""
    n_iter_: int
    dual_gap_: float
    rounds_: int
    bytes_: int
    traffic_: Ledger
    consensus_error_: float
    sites_: list[Any]
    """Names of the sites, as nodes of the graph are numbered."""
    fit_: Fit

    @property
    @abstractmethod
    def _loss(self) -> str:
        """One of milodo.fit.LOSSES."""

    @abstractmethod
    def _penalties(self, weight: float) -> tuple[float, float]:
        """l1 and l2 of milodo.fit.Task, for rows that weigh so much together."""

    def _task(self, l1: float, l2: float) -> Task:
        """What milodo.fit is asked for."""
        tolerance = as_float(self.tol)
        if tolerance is None or not tolerance > 0:
            raise InvalidInput(f"tol is {quoted(self.tol)}, but it must be a number > 0.")
        return Task(
            target="y", loss=self._loss, l1=l1, l2=l2, graph=str(self.graph), intercept=bool(self.fit_intercept),
            method=None if self.method == AUTO else self.method, messages=self.messages,
            tolerance=tolerance, iterations=whole("max_iter", self.max_iter, least=1),
        )  # fmt: skip

    def _dealt(self, X: np.ndarray, y: np.ndarray, sites: Any, weights: np.ndarray | None) -> Dealt:
        """Checked arrays, as the sites hold them."""
        return deal(X, y, weights, rows_of(len(X), self.n_sites, sites))

    def _fitted(self, data: Dealt) -> Fit:
        l1, l2 = self._penalties(data.weight)
        task = self._task(l1, l2)
        net = StackedNetwork(task.topology(len(data.features)), task.weights)
        return fit_model(Request(self._samples(data), task, net, StackedObserver(net)))

    def _samples(self, data: Dealt) -> Samples:
        return Samples(
            features=data.features, targets=data.targets, columns=self._columns, weights=data.weights, labels=self._labels,
            sites=data.called,
        )  # fmt: skip

    @property
    def _labels(self) -> tuple[str, ...]:
        """Of the classes, if there are any."""
        return ()

    @property
    def _columns(self) -> tuple[str, ...]:
        """As the data frame calls them, or x0, x1, ..."""
        names = getattr(self, "feature_names_in_", None)
        return tuple(f"x{k}" for k in range(self.n_features_in_)) if names is None else tuple(map(str, names))

    @abstractmethod
    def _take(self, fit: Fit) -> None:
        """coef_ and intercept_, in the shapes that scikit-learn's have."""

    def _keep(self, fit: Fit, sites: list[Any]) -> Self:
        """What came out, as attributes."""
        self._take(fit)
        self.n_iter_, self.rounds_, self.bytes_ = fit.iterations, fit.rounds, fit.bytes
        self.traffic_ = fit.traffic
        self.dual_gap_, self.consensus_error_ = fit.gap * fit.unit, fit.consensus
        self.sites_, self.fit_ = sites, fit
        for sentence in fit.warnings:
            warnings.warn(sentence, UserWarning, stacklevel=4)
        if fit.status is not Status.CONVERGED:
            said = f"{fit.method} ended after {fit.iterations} iterations: {fit.status.sentence}. {self._advice(fit.status)}"
            warnings.warn(said, ConvergenceWarning, stacklevel=3)
        return self

    def _advice(self, status: Status) -> str:
        """What to do about a fit that did not converge."""
        if status is Status.DIVERGED:
            return "More iterations do not help: leave out method and messages, and those that are chosen do not diverge."
        if self.method in METHODS and not METHODS[self.method].exact:
            return f"{self.method} ends beside the optimum, however many there are: take an exact method, or method=None."
        return "Allow more max_iter."

    def _linear(self, X: Any) -> np.ndarray:
        """X coef_ᵀ + intercept_."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return X @ np.asarray(self.coef_).T + self.intercept_


def weights_of(sample_weight: Any, X: np.ndarray) -> np.ndarray | None:
    """How much each row counts, if that was said."""
    return None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)


def penalty(name: str, value: Any, most: float = np.inf) -> float:
    """A parameter of an estimator that must be a number from 0 to `most`."""
    number = as_float(value)
    if number is None or not 0 <= number <= most or number == np.inf:
        upper = "" if most == np.inf else f" and <= {most:g}"
        raise InvalidInput(f"{name} is {quoted(value)}, but it must be a finite number >= 0{upper}.")
    return number
