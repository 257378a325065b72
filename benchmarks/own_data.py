"""What an exact answer costs on real data at several sites of very uneven size, and what choosing a penalty costs there.

    python benchmarks/own_data.py fit [--quick]        bytes and rounds of a fit (eight minutes)
    python benchmarks/own_data.py penalty [--quick]    bytes of a path of penalties and of the choice, in fits
    python benchmarks/own_data.py patches              what docs/data.md says of BSDS500's patches (needs them, and milodo[data])

`fit`: bytes are those that all sites send; 'off' is the largest difference from scikit-learn's coefficients on the pooled data
(from the certified optimum where scikit-learn's solver does not converge: logistic regression on raw columns), in units of a
column's standard deviation over that of the target (1 for classes). Rounds and bytes are those of everything: set-up, method,
and the checks of the stopping rule, whose share of the bytes stands beside them.

`penalty`: one fit is that of the penalty chosen, to 1e-8, scaling included. 'path' is the model of all samples under 30
penalties, each to the tolerance that the choice asked for; 'strict' the same with every penalty to 1e-8, as the fit; 'choice'
all of it: the path of all samples, that of those outside of each of five folds, and the folds' losses. The stopping rule looks
at sums of its own, counted for no method. 'chosen' compares with scikit-learn's LassoCV on the same folds; for classes with the
same path where every penalty is solved to 1e-6.

`patches`: units of grey, length of atoms, and what pruning does for K-SVD; three minutes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from _harness import Part, row, run_part, table, verdict
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.linear_model import Lasso, LassoCV
from sklearn.linear_model import LogisticRegression as SklearnLogistic
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from milodo.fit import Choice, Fit, PenaltyPath, Request, Samples, Site, Task, fit_here, fit_model, fit_path
from milodo.fit.folds import deal_folds
from milodo.fit.path_solvers import MethodPath, MomentsPath, NewtonPath, PathSolver
from milodo.fit.planning import plan_for
from milodo.fit.pooled import penalty as scaled_penalty
from milodo.fit.pooled import pooled_problem, scaling, total_of
from milodo.fit.scaled import start_of
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import L1, BSDSLasso, LogisticRegression, dictionary, instance_seeds, optimum
from milodo.problems.regularizers import UnpenalizedIntercept
from milodo.status import Status
from milodo.words import amount

SHARES = {3: (0.6, 0.3), 5: (0.55, 0.25, 0.15, 0.04), 20: tuple(0.5 / 1.3**k for k in range(1, 19))}
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


def dealt(X: np.ndarray, y: np.ndarray, sites: int) -> list[Site]:
    order = np.random.default_rng(1).permutation(len(y))
    sizes = [max(1, int(share * len(y))) for share in SHARES[sites]][: sites - 2]
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
    best = optimum(LogisticRegression(A, torch.from_numpy(y)[None], UnpenalizedIntercept(L1(l1))))
    assert bool(best.certified), best.why
    return best.x[:-1].numpy()


def one(name: str, sites: int, *, standardise: bool, links: str = "reliable", method: str | None = None) -> Fit:
    X, y, loss, l1 = problems()[name]
    task = Task(target="y", loss=loss, l1=l1, standardise=standardise, links=links, method=method)
    return fit_here(dealt(X, y, sites), task)


def fit(asked: argparse.Namespace) -> None:
    heads = ("sites", "method", "iterations", "rounds", "bytes", "of them checks", "relative gap", "off", "seconds")
    table("data", "columns", *heads, numbers=7)
    for name, (X, y, loss, l1) in problems().items():
        for standardise in (True, False):
            Z = StandardScaler().fit_transform(X) if standardise else X
            theirs = pooled(Z, y, loss, l1, standardised=standardise)
            unit = Z.std(0) / (y.std() if loss == "squared" else 1.0)
            for sites in (5,) if asked.quick else SHARES:
                for way in WAYS if standardise and sites == 5 else WAYS[:2]:
                    start = time.perf_counter()
                    model = one(name, sites, standardise=standardise, **way)
                    ours = np.array(model.standardised if standardise else model.coefficients)
                    off = float(np.abs((ours - theirs) * unit).max())
                    columns = "standardised" if standardise else "raw"
                    ended = "" if model.status is Status.CONVERGED else f" ({model.status.name})"
                    cells = (name, columns, sites, f"{model.method}{ended}")
                    checks = f"{model.traffic.checks.bytes / model.bytes:.1%}"
                    numbers = (f"{model.iterations:,}", f"{model.rounds:,}", amount(model.bytes), checks, f"{model.gap:.0e}")
                    row(*cells, *numbers, f"{off:.0e}", f"{time.perf_counter() - start:.1f}")


MOST = 6.0
"""Fits that a path of 30 penalties may cost."""
EVEN_SITES, FOLDS = 5, 5


def sparse(N: int, d: int, rho: float, loss: str) -> tuple[np.ndarray, np.ndarray]:
    """Ten features of d, each correlated with the one before it."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, d))
    for j in range(1, d):
        X[:, j] = rho * X[:, j - 1] + np.sqrt(1 - rho**2) * X[:, j]
    w = np.zeros(d)
    w[rng.choice(d, 10, replace=False)] = 2 * rng.standard_normal(10)
    u = X @ w
    u = u + 0.5 * u.std() * rng.standard_normal(N)
    return X, u if loss == "squared" else (u > 0).astype(float)


def tables() -> dict[str, tuple[np.ndarray, np.ndarray, str]]:
    diabetes: Any = load_diabetes()
    cancer: Any = load_breast_cancer()
    return {
        "diabetes, 10 features": (diabetes.data, diabetes.target, "squared"),
        "made, 150 features": (*sparse(600, 150, 0.5, "squared"), "squared"),
        "made, 400 features": (*sparse(500, 400, 0.0, "squared"), "squared"),
        "made, 1000 features": (*sparse(300, 1000, 0.5, "squared"), "squared"),
        "breast cancer, 30 features": (StandardScaler().fit_transform(cancer.data), cancer.target.astype(float), "logistic"),
        "classes, 300 features": (*sparse(400, 300, 0.5, "logistic"), "logistic"),
    }


@dataclass(frozen=True)
class Held:
    """Rows at the sites."""

    features: Sequence[Tensor]
    targets: Sequence[Tensor]
    task: Task

    def net(self) -> StackedNetwork:
        return StackedNetwork(f"ring({len(self.features)})")

    def request(self, task: Task, net: StackedNetwork) -> Request:
        samples = Samples(features=self.features, targets=self.targets, columns=self.columns)
        return Request(samples, task, net, StackedObserver(net))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"x{k}" for k in range(self.features[0].shape[1]))


def bytes_of_path(held: Held, path: PenaltyPath, tolerances: Sequence[float]) -> int:
    """Bytes of the model of all samples along the path, without folds."""
    net, task = held.net(), held.task
    observer = StackedObserver(net)
    total = total_of(net, reliable=True)
    scaled = scaling(held.features, held.targets, total, centre=True)
    first = scaled_penalty(path.penalties[0], scaled.scale[0])
    problem = pooled_problem(task.loss, held.features, held.targets, scaled, first, n=EVEN_SITES, intercept=True)
    x, plan = start_of(problem, scaled)[0], plan_for(task, problem, net)
    total(problem.grad(problem.everywhere(x)))  # whose largest entry is the largest penalty
    solver: PathSolver
    one = problem.reweighed(problem.weigh(torch.ones_like(problem.b)).unsqueeze(0))
    one.column = problem.column
    if plan.sums_curvature and problem.quadratic:
        solver = MomentsPath(problem, None, None, x, total, EVEN_SITES)
    elif plan.sums_curvature:
        solver = NewtonPath(one, x, total, observer, EVEN_SITES)
    else:
        solver = MethodPath(one, plan.algorithm, x, net, observer, steps=task.iterations, every=max(1, plan.every // 3))
    for l1, tolerance in zip(path.penalties, tolerances, strict=True):
        solver.solve(UnpenalizedIntercept(scaled_penalty(l1, scaled.scale[0])), tolerance)
    return net.traffic.bytes + net.checks.bytes


def same_choice(held: Held, path: PenaltyPath) -> bool:
    if held.task.loss == "squared":
        fold = torch.cat(deal_folds(held.targets, held.net(), FOLDS, 0, classes=False)).numpy()
        cv = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(FOLDS)]
        alphas: Any = path.penalties  # the stubs of scikit-learn know numbers only
        truth = LassoCV(alphas=alphas, cv=cv, tol=1e-6, max_iter=10**5)
        alpha = truth.fit(torch.cat(list(held.features)).numpy(), torch.cat(list(held.targets)).numpy()).alpha_
        return bool(np.isclose(alpha, path.penalty))
    choice = Choice(alphas=tuple(path.penalties), tolerance=1e-6)
    net = held.net()
    _, exact = fit_path(held.request(held.task, net), choice)
    return exact.chosen == path.chosen


def penalty(asked: argparse.Namespace) -> None:
    heads = ("one fit", "path, in fits", "strict", "choice with 5 folds", "chosen as it should", "seconds")
    table("data", "method", *heads, numbers=6)
    worst = 0.0
    for name, (X, y, loss) in tables().items():
        begun, parts = time.perf_counter(), np.array_split(np.arange(len(y)), EVEN_SITES)
        features, targets = [torch.from_numpy(X[p]) for p in parts], [torch.from_numpy(y[p]) for p in parts]
        held = Held(features, targets, Task(target="y", loss=loss))
        net, other = held.net(), held.net()
        chosen, path = fit_path(held.request(held.task, net), Choice())
        task = replace(held.task, l1=path.penalty)
        alone = fit_model(held.request(task, other))
        ratio = bytes_of_path(held, path, path.tolerances) / alone.bytes
        strict = "" if asked.quick else f"{bytes_of_path(held, path, [task.tolerance] * len(path.penalties)) / alone.bytes:.1f}"
        right = "" if asked.quick else "yes" if same_choice(held, path) else "NO"
        worst = max(worst, ratio)
        choice = f"{chosen.bytes / alone.bytes:.1f}"
        row(name, chosen.method, amount(alone.bytes), f"{ratio:.1f}", strict, choice, right, f"{time.perf_counter() - begun:.0f}")
    print(f"a path of 30 penalties costs at most {worst:.1f} fits, {MOST:g} allowed: {verdict(worst <= MOST)}")


ROUNDS = 30
PLANTED = range(300, 310)


def planted(seed: int) -> float:
    """Part of 30 atoms in R^20 that K-SVD finds, up to sign and order, in 1,000 combinations of three with 1 % noise."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((30, 20))
    truth /= np.linalg.norm(truth, axis=1, keepdims=True)
    codes = np.zeros((1000, 30))
    for code in codes:
        code[rng.choice(30, 3, replace=False)] = rng.choice([-1, 1], 3) * rng.uniform(0.5, 2, 3)
    found = dictionary.ksvd(codes @ truth + 0.01 * rng.standard_normal((1000, 20)), 30, 3, ROUNDS)
    return float((np.abs(truth @ found.T).max(1) > 0.99).mean())


def patches(asked: argparse.Namespace) -> None:
    often = dictionary.PRUNED
    for name, pruned in (("never pruned", ROUNDS), (f"pruned every {often} rounds", often)):
        dictionary.PRUNED = pruned
        parts = sorted(planted(seed) for seed in PLANTED)
        print(f"planted dictionaries, {name}: found {parts[0]:.0%} to {parts[-1]:.0%}, mean {np.mean(parts):.0%}")
    dictionary.PRUNED = often

    start = time.process_time()
    family = BSDSLasso()
    problem = family.sample(instance_seeds("test", 1000))
    print(f"1,000 instances of {family.name}: {time.process_time() - start:.0f} s of one core (with the dictionary, unless kept)")
    A, b = problem.A[0].flatten(0, 1).numpy(), problem.b.flatten(1).numpy()
    largest = np.abs(b @ A / len(A)).max(1)  # the smallest lam at which the best code is 0
    for unit, scale in (("0 to 255", 1.0), ("0 to 1", 255.0)):
        print(f"grey from {unit}: the best code of {np.mean(largest / scale <= family.lam):.1%} of the patches is 0")
    length, low, high = float(np.linalg.norm(A[:, 0])), *(float(v) for v in problem.lipschitz()[0].aminmax())
    print(f"atoms of length {length:.2f}: L_i from {low:.1f} to {high:.1f}; of length 1: at most {high / length**2:.2f}")
    few = family.sample(instance_seeds("test", 32))
    used = (optimum(few).x != 0).sum(-1)
    print(f"coefficients that are not 0, of {family.d}, in 32 optima: {used.min()} to {used.max()}, median {used.median()}")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true")


PARTS: dict[str, Part] = {"fit": fit, "penalty": penalty, "patches": patches}

if __name__ == "__main__":
    run_part(__doc__, PARTS, options)
