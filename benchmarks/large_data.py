"""Own data that are large, or lie at sites of very uneven size, against scikit-learn and against even sites, in one run.

python benchmarks/large_data.py [ROWS]     a million rows of 30 features unless given

Goals: Lasso and logistic regression at most 1.5x the time of scikit-learn's at the same tolerance, in the ways that suit many
rows of few features (a Lasso of the Gram matrix, which is ten times faster there than that of the rows; newton-cholesky); 49
sites of 10 rows beside one with all others at most 2x the time of 50 even sites, and at most 2x the data in memory. The Lasso of
scikit-learn is stopped by its duality gap relative to ‖y‖², ours by gap and residual, relative to the model without features.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from _measure import verdict
from sklearn.linear_model import Lasso, LogisticRegression

from milodo.sklearn import DecentralizedLasso, DecentralizedLogisticRegression

FEATURES, SITES, FEW = 30, 50, 10
TOLERANCE = 1e-8
REPEATS = 3


def data(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correlated features that are not centred; a number and a class for each row. Made in parts: no peak of memory."""
    rng = np.random.default_rng(0)
    X, mixed = np.empty((rows, FEATURES)), np.eye(FEATURES) + 0.3 * rng.standard_normal((FEATURES, FEATURES))
    for part in np.array_split(X, max(1, rows // 10_000)):
        part[:] = rng.standard_normal(part.shape) @ mixed + 1
    u = X[:, : FEATURES // 2] @ rng.standard_normal(FEATURES // 2)
    return X, u + rng.standard_normal(rows), (2 * (u - u.mean()) / u.std() + rng.logistic(size=rows) > 0).astype(int)


def median(tasks: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each; they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(REPEATS):
        for name, task in tasks.items():
            begun = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(values) for name, values in seconds.items()}


def against_scikit_learn(rows: int) -> None:
    X, y, c = data(rows)
    rivals = {
        "Lasso": (DecentralizedLasso(0.05, tol=TOLERANCE), Lasso(0.05, tol=TOLERANCE, precompute=True), y),
        "logistic": (
            DecentralizedLogisticRegression(tol=TOLERANCE),
            LogisticRegression(solver="newton-cholesky", tol=TOLERANCE),
            c,
        ),
    }
    print(f"{rows:,} rows of {FEATURES} features, tolerance {TOLERANCE:g}, {torch.get_num_threads()} threads")
    for name, (ours, theirs, target) in rivals.items():
        spent = median({"ours": lambda m=ours, t=target: m.fit(X, t), "theirs": lambda m=theirs, t=target: m.fit(X, t)})
        ratio = spent["ours"] / spent["theirs"]
        apart = float(np.abs(ours.coef_ - theirs.coef_).max())
        print(
            f"  {name}: {spent['ours']:.2f} s, scikit-learn {spent['theirs']:.2f} s: {ratio:.2f}x (goal: at most 1.5) "
            f"{verdict(ratio <= 1.5)}; coefficients differ by {apart:.0e}"
        )


def names(kind: str, rows: int) -> np.ndarray:
    """The site of each row."""
    few = np.arange(rows) // FEW
    return np.minimum(few, SITES - 1) if kind == "uneven" else np.arange(rows) * SITES // rows


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def one(kind: str, rows: int) -> None:
    """In a process of its own: seconds, and the memory beyond that of the data."""
    X, y, _ = data(rows)
    sites = names(kind, rows)
    DecentralizedLasso(0.05, n_sites=2).fit(X[:100], y[:100])
    before, begun = peak(), time.perf_counter()
    DecentralizedLasso(0.05).fit(X, y, sites=sites)
    print(time.perf_counter() - begun, (peak() - before) / X.nbytes)


def uneven(rows: int) -> None:
    found = {}
    for kind in ("even", "uneven"):
        runs = [
            subprocess.run([sys.executable, __file__, kind, str(rows)], capture_output=True, text=True, check=True) for _ in "123"
        ]
        found[kind] = [statistics.median(column) for column in zip(*(map(float, r.stdout.split()) for r in runs), strict=True)]
    ratio, memory = found["uneven"][0] / found["even"][0], found["uneven"][1]
    print(f"{rows:,} rows at {SITES} sites, {SITES - 1} of them with {FEW} rows")
    print(
        f"  {found['uneven'][0]:.2f} s, even sites {found['even'][0]:.2f} s: {ratio:.2f}x (goal: at most 2) {verdict(ratio <= 2)}"
    )
    print(f"  memory beyond the data {memory:.2f}x the data (goal: at most 2) {verdict(memory <= 2)}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["even"], ["uneven"]):
        one(sys.argv[1], int(sys.argv[2]))
    else:
        size = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6
        against_scikit_learn(size)
        uneven(size)
