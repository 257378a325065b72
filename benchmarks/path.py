"""What choosing a penalty costs, in fits: `python benchmarks/path.py [--quick]`.

Bytes are those that all sites send, scaling included; one fit is that of the penalty chosen, to 1e-8. 'path' is the model of all
samples under 30 penalties, each to the tolerance that the choice asked for; 'strict' the same with every penalty to 1e-8, as the
fit; 'choice' all of it: the path of all samples, that of those outside of each of five folds, and the folds' losses. The stopping
rule looks at sums of its own, counted for no method. 'chosen' compares with scikit-learn's LassoCV on the same folds; for classes
with the same path where every penalty is solved to 1e-6.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from _measure import verdict
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LassoCV
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from milodo.fit import Choice, PenaltyPath, Task, fit_model, fit_path
from milodo.fit.folds import deal_folds
from milodo.fit.model import plan_for, start_of
from milodo.fit.pooled import penalty, pooled_problem, scaling, total_of
from milodo.fit.walk import Iterated, Moments, Newton, Walk
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems.regularizers import Sparing
from milodo.words import amount

MOST = 6.0
"""Fits that a path of 30 penalties may cost."""
SITES, FOLDS = 5, 5


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


def problems() -> dict[str, tuple[np.ndarray, np.ndarray, str]]:
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

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"x{k}" for k in range(self.features[0].shape[1]))


def alone(held: Held, path: PenaltyPath, tolerances: Sequence[float]) -> int:
    """Bytes of the model of all samples along the path, without folds."""
    net, task = held.net(), held.task
    observer = StackedObserver(net)
    total = total_of(net, reliable=True)
    scaled = scaling(held.features, held.targets, total, centre=True)
    first = penalty(path.penalties[0], scaled.scale[0])
    problem = pooled_problem(task.loss, held.features, held.targets, scaled, first, n=SITES, intercept=True)
    x, plan = start_of(problem, scaled)[0], plan_for(task, problem, net)
    total(problem.grad(problem.everywhere(x)))  # whose largest entry is the largest penalty
    walk: Walk
    one = problem.reweighed(problem.weigh(torch.ones_like(problem.b)).unsqueeze(0))
    one.column = problem.column
    if plan.algorithm is None and problem.quadratic:
        walk = Moments(problem, None, None, x, total, SITES)
    elif plan.algorithm is None:
        walk = Newton(one, x, total, observer, SITES)
    else:
        walk = Iterated(one, plan.algorithm, x, net, observer, steps=task.iterations, every=max(1, plan.every // 3))
    for l1, tolerance in zip(path.penalties, tolerances, strict=True):
        walk.to(Sparing(penalty(l1, scaled.scale[0])), tolerance)
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
    _, exact = fit_path(held.features, held.targets, held.task, choice, net, StackedObserver(net), columns=held.columns)
    return exact.chosen == path.chosen


def main(quick: bool) -> None:
    torch.set_num_threads(1)
    print("| data | method | one fit | path, in fits | strict | choice with 5 folds | chosen as it should | seconds |")
    print("|---|---|---:|---:|---:|---:|---|---:|")
    worst = 0.0
    for name, (X, y, loss) in problems().items():
        begun, parts = time.perf_counter(), np.array_split(np.arange(len(y)), SITES)
        features, targets = [torch.from_numpy(X[p]) for p in parts], [torch.from_numpy(y[p]) for p in parts]
        held = Held(features, targets, Task(target="y", loss=loss))
        net, other = held.net(), held.net()
        fit, path = fit_path(features, targets, held.task, Choice(), net, StackedObserver(net), columns=held.columns)
        task = replace(held.task, l1=path.penalty)
        one = fit_model(features, targets, task, other, StackedObserver(other), columns=held.columns)
        ratio = alone(held, path, path.tolerances) / one.bytes
        strict = "" if quick else f"{alone(held, path, [task.tolerance] * len(path.penalties)) / one.bytes:.1f}"
        right = "" if quick else "yes" if same_choice(held, path) else "NO"
        worst = max(worst, ratio)
        row = (name, fit.method, amount(one.bytes), f"{ratio:.1f}", strict, f"{fit.bytes / one.bytes:.1f}", right)
        print("|", " | ".join((*row, f"{time.perf_counter() - begun:.0f}")), "|", flush=True)
    print(f"a path of 30 penalties costs at most {worst:.1f} fits, {MOST:g} allowed: {verdict(worst <= MOST)}")


if __name__ == "__main__":
    main("--quick" in sys.argv)
