"""What an exact answer costs on real data at several sites of very uneven size: `python benchmarks/own_data.py [--quick]`.

Bytes are those that all sites send; 'off' is the largest difference from scikit-learn's coefficients on the pooled data (from the
certified optimum where scikit-learn's solver does not converge: logistic regression on raw columns), in units of a column's
standard deviation over that of the target (1 for classes). Rounds and bytes are those of everything: set-up, method, and the
checks of the stopping rule, whose share of the bytes stands beside them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression as SklearnLogistic
from sklearn.preprocessing import StandardScaler

from milodo.fit import Fit, Site, Task, fit_here
from milodo.problems import L1, LogisticRegression, optimum
from milodo.problems.regularizers import Sparing
from milodo.status import Status
from milodo.words import amount

SITES = {3: (0.6, 0.3), 5: (0.55, 0.25, 0.15, 0.04), 20: tuple(0.5 / 1.3**k for k in range(1, 19))}
"""Shares of the samples of all sites but the last two; the one before the last has a single row."""
WAYS: list[dict[str, Any]] = [{}, {"links": "lossy"}, {"method": "prox-ed"}]
"""The default, gossip, and what was the default before: Prox-ED with step size 1/L."""


def california() -> tuple[np.ndarray, np.ndarray]:
    """Made, because the real one is not shipped with scikit-learn: eight columns with its units, skew and collinearity."""
    rng = np.random.default_rng(0)
    income, age = rng.gamma(4, 1, 2000), rng.uniform(1, 52, 2000)
    rooms = 3 + income * 0.6 + rng.gamma(1, 0.5, 2000)
    bedrooms, population = rooms * 0.2 + 0.05 * rng.standard_normal(2000), rng.lognormal(7, 0.7, 2000)
    crowd, latitude = rng.gamma(9, 0.33, 2000), rng.uniform(32.5, 42, 2000)
    longitude = -119.5 - 0.9 * (latitude - 36) + 0.5 * rng.standard_normal(2000)
    X = np.stack([income, age, rooms, bedrooms, population, crowd, latitude, longitude], axis=1)
    y = 0.4 * income + 0.01 * age - 0.1 * rooms + 0.6 * bedrooms - 0.4 * (latitude - 36) - 0.4 * (longitude + 119)
    return X, 1e5 * (y + 2 + 0.5 * rng.standard_normal(2000))


def problems() -> dict[str, tuple[np.ndarray, np.ndarray, str, float]]:
    """X, y, loss and l1."""
    diabetes: Any = load_diabetes(scaled=False)
    wine: Any = load_wine()
    cancer: Any = load_breast_cancer()
    return {
        "diabetes": (diabetes.data, diabetes.target, "squared", 0.01),
        "wine": (wine.data, (wine.target == 0).astype(float), "logistic", 0.01),
        "breast cancer": (cancer.data, cancer.target.astype(float), "logistic", 0.01),
        "california-like": (*california(), "squared", 10.0),
    }


def split(X: np.ndarray, y: np.ndarray, sites: int) -> list[Site]:
    order = np.random.default_rng(1).permutation(len(y))
    sizes = [max(1, int(share * len(y))) for share in SITES[sites]][: sites - 2]
    sizes = [max(1, size * (len(y) - 2 - sites) // max(sum(sizes), len(y) - 2 - sites)) for size in sizes]
    cuts = np.cumsum([*sizes, 1])
    names = tuple(f"x{k}" for k in range(X.shape[1]))
    return [Site(f"{k}.csv", names, X[rows], y[rows]) for k, rows in enumerate(np.split(order, cuts))]


def pooled(X: np.ndarray, y: np.ndarray, loss: str, l1: float, *, standardised: bool) -> np.ndarray:
    if loss == "squared":
        return Lasso(alpha=l1, tol=1e-15, max_iter=10**6).fit(X, y).coef_
    if standardised:
        model = SklearnLogistic(l1_ratio=1, C=1 / (l1 * len(X)), solver="saga", tol=1e-12, max_iter=10**6)
        return model.fit(X, y).coef_[0]
    A = torch.from_numpy(np.column_stack([X, np.ones(len(X))]))[None]
    best = optimum(LogisticRegression(A, torch.from_numpy(y)[None], Sparing(L1(l1))))
    assert bool(best.certified), best.why
    return best.x[:-1].numpy()


def one(name: str, sites: int, *, standardise: bool, links: str = "reliable", method: str | None = None) -> Fit:
    X, y, loss, l1 = problems()[name]
    task = Task(target="y", loss=loss, l1=l1, standardise=standardise, links=links, method=method)
    return fit_here(split(X, y, sites), task)


def main() -> None:
    torch.set_num_threads(1)
    quick = "--quick" in sys.argv
    print("| data | columns | sites | method | iterations | rounds | bytes | of them checks | relative gap | off | seconds |")
    print("|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, (X, y, loss, l1) in problems().items():
        for standardise in (True, False):
            Z = StandardScaler().fit_transform(X) if standardise else X
            theirs = pooled(Z, y, loss, l1, standardised=standardise)
            unit = Z.std(0) / (y.std() if loss == "squared" else 1.0)
            for sites in (5,) if quick else SITES:
                for way in WAYS if standardise and sites == 5 else WAYS[:2]:
                    start = time.perf_counter()
                    fit = one(name, sites, standardise=standardise, **way)
                    ours = np.array(fit.standardised if standardise else fit.coefficients)
                    off = float(np.abs((ours - theirs) * unit).max())
                    columns = "standardised" if standardise else "raw"
                    ended = "" if fit.status is Status.CONVERGED else f" ({fit.status.name})"
                    cells = (name, columns, sites, f"{fit.method}{ended}")
                    checks = f"{fit.traffic.checks.bytes / fit.bytes:.1%}"
                    cost = (f"{fit.iterations:,}", f"{fit.rounds:,}", amount(fit.bytes), checks, f"{fit.gap:.0e}", f"{off:.0e}")
                    print("| " + " | ".join(map(str, (*cells, *cost, f"{time.perf_counter() - start:.1f}"))) + " |", flush=True)


if __name__ == "__main__":
    main()
