"""Estimators that choose their penalty by cross-validation, with folds that lie inside the sites."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import check_cv
from sklearn.utils import check_random_state
from torch import Tensor

from milodo.errors import InvalidInput, as_float, quoted, whole
from milodo.fit import Choice, Fit, PenaltyPath, Request, fit_path
from milodo.fit.folds import SITES
from milodo.network import StackedNetwork, StackedObserver
from milodo.sklearn.base import ITERATIONS, TOLERANCE, Decentralized
from milodo.sklearn.classification import DecentralizedClassifier
from milodo.sklearn.dealing import Dealt, deal, rows_of
from milodo.sklearn.regression import DecentralizedRegressor

ALONG = 1e-5
"""The tolerance of penalties that may be chosen."""


@dataclass(frozen=True)
class InFolds(Dealt):
    """Rows as the sites hold them, and the fold of each, if it was given."""

    count: int | str
    """Of folds; or SITES."""
    folds: list[Tensor] | None


class Chooses(Decentralized):
    """A penalty chosen along a path. `cv` is a number of folds, which every site deals its own rows into (classes each by
    themselves); 'sites', to leave out one site at a time; or splits as scikit-learn makes them, whose test parts hold every row
    once. `rule` is 'min', the least mean loss, or '1se', the largest penalty within one standard error of it."""

    cv: Any
    eps: float
    rule: str
    random_state: Any

    path_: PenaltyPath
    """Models, losses and penalties along the path, the bytes it took, and what was chosen."""

    @property
    @abstractmethod
    def _grid(self) -> Any:
        """How many penalties, or which, as the subclass calls them."""

    @abstractmethod
    def _alphas(self, given: np.ndarray, weight: float) -> np.ndarray:
        """Given ones as weights of ‖w‖₁, for rows that weigh so much together."""

    def _penalties(self, weight: float) -> tuple[float, float]:
        return 0.0, 0.0

    def _dealt(self, X: np.ndarray, y: np.ndarray, sites: Any, weights: np.ndarray | None) -> InFolds:
        rows = rows_of(len(X), self.n_sites, sites)
        data = deal(X, y, weights, rows)
        count, fold = _folds(self.cv, X, y)
        folds = None if fold is None else [torch.from_numpy(fold[held]) for held in rows.values()]
        return InFolds(data.features, data.targets, data.weights, data.names, count, folds)

    def _choice(self, data: InFolds) -> Choice:
        own: dict[str, Any] = {"eps": as_float(self.eps), "folds": data.count, "rule": self.rule}
        if isinstance(self._grid, Iterable):
            given = np.asarray(self._grid, dtype=np.float64).reshape(-1)
            if not len(given) or not bool(((given > 0) & (given < np.inf)).all()):
                raise InvalidInput(f"the penalties are {quoted(self._grid)}, but they must be finite numbers > 0, one at least.")
            own["alphas"] = tuple(self._alphas(given, data.weight).tolist())
        else:
            own["n_alphas"] = whole("the number of penalties", self._grid, least=1)
        if own["eps"] is None:
            raise InvalidInput(f"eps is {quoted(self.eps)}, but it must be a number.")
        seed = self.random_state
        own["seed"] = int(seed) if isinstance(seed, int | np.integer) else int(check_random_state(seed).randint(1 << 31))
        return Choice(**own, tolerance=max(ALONG, self._task(0.0, 0.0).tolerance))

    def _fitted(self, data: Dealt) -> Fit:
        assert isinstance(data, InFolds)
        task, choice = self._task(0.0, 0.0), self._choice(data)
        net = StackedNetwork(task.topology(len(data.features)), task.weights)
        fit, self.path_ = fit_path(Request(self._samples(data), task, net, StackedObserver(net)), choice, data.folds)
        return fit


def _folds(cv: Any, X: np.ndarray, y: np.ndarray) -> tuple[int | str, np.ndarray | None]:
    """How many folds, and of given splits the fold of each row."""
    if isinstance(cv, str) and cv == SITES:
        return SITES, None
    if isinstance(cv, str) or not (hasattr(cv, "split") or isinstance(cv, Iterable)):
        return whole("cv", cv, least=2), None
    given: Any = cv
    checked: Any = check_cv(given)  # whose stubs know numbers only
    splits = list(checked.split(X, y if y.ndim == 1 else y.argmax(1)))
    fold = np.full(len(X), -1)
    for k, (train, test) in enumerate(splits):
        inside = np.zeros(len(X), dtype=bool)
        inside[test] = True
        if bool((fold[inside] >= 0).any()) or not np.array_equal(np.sort(np.arange(len(X))[train]), np.flatnonzero(~inside)):
            raise InvalidInput(
                "cv must hold every row in one test part and in all other training parts, as KFold does. Use KFold."
            )
        fold[inside] = k
    if len(splits) < 2 or bool((fold < 0).any()):
        raise InvalidInput("cv must hold every row in one test part of two at least, as KFold does. Use KFold.")
    return len(splits), fold


class DecentralizedLassoCV(DecentralizedRegressor, Chooses):
    """scikit-learn's LassoCV of all sites' rows together. `alphas` is how many penalties to try, from the largest that matters
    down to `eps` times it, or which. Further attributes: `alpha_`, `alphas_`, `mse_path_` [alphas, folds] and `path_`.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = DecentralizedLassoCV(n_sites=4, rule="1se").fit(X, y)
    >>> len(model.alphas_), model.mse_path_.shape, bool(0 < model.alpha_ < model.alphas_[0])
    (30, (30, 5), True)
    """

    alpha_: float
    alphas_: np.ndarray
    mse_path_: np.ndarray

    def __init__(
        self, *, eps: float = 1e-3, alphas: Any = 30, cv: Any = 5, rule: str = "min", fit_intercept: bool = True,
        tol: float = TOLERANCE, max_iter: int = ITERATIONS, n_sites: int = 3, graph: str = "ring", method: str | None = None,
        messages: str | None = None, random_state: Any = 0,
    ) -> None:  # fmt: skip
        self.eps = eps
        self.alphas = alphas
        self.cv = cv
        self.rule = rule
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.n_sites = n_sites
        self.graph = graph
        self.method = method
        self.messages = messages
        self.random_state = random_state

    @property
    def _grid(self) -> Any:
        return self.alphas

    def _alphas(self, given: np.ndarray, weight: float) -> np.ndarray:
        return given

    def _take(self, fit: Fit) -> None:
        super()._take(fit)
        self.alpha_, self.alphas_ = self.path_.penalty, np.array(self.path_.penalties)
        self.mse_path_ = self.path_.losses


class DecentralizedLogisticRegressionCV(DecentralizedClassifier, Chooses):
    """scikit-learn's LogisticRegressionCV of all sites' rows together, with an L1 penalty and the log loss as what is least; in a
    fold C weighs the sum over its rows, as there. `Cs` is how many to try, from the one below which no feature is used to 1/`eps`
    times it, or which. More than two classes get a softmax. Further attributes: `C_`, `Cs_` (rising), `loss_path_` [Cs, folds]
    and `path_`.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> model = DecentralizedLogisticRegressionCV(Cs=[0.01, 0.1, 1.0], cv="sites").fit(X / X.std(0), y)
    >>> model.C_, model.coef_.shape, model.loss_path_.shape
    (1.0, (3, 13), (3, 3))
    """

    C_: float
    Cs_: np.ndarray
    loss_path_: np.ndarray

    def __init__(
        self, *, eps: float = 1e-3, Cs: Any = 30, cv: Any = 5, rule: str = "min", fit_intercept: bool = True,
        tol: float = TOLERANCE, max_iter: int = ITERATIONS, n_sites: int = 3, graph: str = "ring", method: str | None = None,
        messages: str | None = None, random_state: Any = 0,
    ) -> None:  # fmt: skip
        self.eps = eps
        self.Cs = Cs
        self.cv = cv
        self.rule = rule
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.n_sites = n_sites
        self.graph = graph
        self.method = method
        self.messages = messages
        self.random_state = random_state

    @property
    def _grid(self) -> Any:
        return self.Cs

    def _alphas(self, given: np.ndarray, weight: float) -> np.ndarray:
        return 1 / (given * weight)

    def _fitted(self, data: Dealt) -> Fit:
        fit = super()._fitted(data)
        given = isinstance(self.Cs, Iterable)
        self.Cs_ = (
            np.sort(np.asarray(self.Cs, dtype=np.float64).reshape(-1))
            if given
            else 1 / (np.array(self.path_.penalties) * data.weight)
        )
        self.C_, self.loss_path_ = float(self.Cs_[self.path_.chosen]), self.path_.losses
        return fit
