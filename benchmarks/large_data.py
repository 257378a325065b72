"""Own data that are large, or lie at sites of very uneven size: time and memory against scikit-learn and pandas, in one run.

    python benchmarks/large_data.py arrays [ROWS]    estimators on a million rows of 30 features unless given
    python benchmarks/large_data.py files [ROWS]     `milodo solve` on three files of 555,000 rows unless given: 329 MB of CSV

`arrays`: Lasso and logistic regression at most 1.5x the time of scikit-learn's at the same tolerance, in the ways that suit
many rows of few features (a Lasso of the Gram matrix, which is ten times faster there than that of the rows; newton-cholesky);
49 sites of 10 rows beside one with all others at most 2x the time of 50 even sites, and at most 2x the data in memory. The
Lasso of scikit-learn is stopped by its duality gap relative to ‖y‖², ours by gap and residual, relative to the model without
features.

`files`: the whole command against pandas and scikit-learn on the same rows, pooled: at most 1.5x the time of pandas.read_csv
(or read_parquet) and Lasso(tol=1e-8), from the start of Python to its end, and at most 2x the numbers (8 bytes each) in memory,
beyond what the same command takes for a few rows. Every run is a process of its own; they take turns, and the median counts.
Times are those of the processor, as other programs may be running; those that went by are shown beside them. Of fewer rows the
start counts most, that of torch among it, and neither goal is meant for them.

Nothing large is imported before it is needed: Linux says of a child that it took at least as much memory as its parent had.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

FEATURES, SITES, FEW = 30, 50, 10
TOLERANCE = 1e-8
REPEATS = 3


def data(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correlated features that are not centred; a number and a class for each row. Made in parts: no peak of memory."""
    import numpy as np

    rng = np.random.default_rng(0)
    X, mixed = np.empty((rows, FEATURES)), np.eye(FEATURES) + 0.3 * rng.standard_normal((FEATURES, FEATURES))
    for part in np.array_split(X, max(1, rows // 10_000)):
        part[:] = rng.standard_normal(part.shape) @ mixed + 1
    u = X[:, : FEATURES // 2] @ rng.standard_normal(FEATURES // 2)
    return X, u + rng.standard_normal(rows), (2 * (u - u.mean()) / u.std() + rng.logistic(size=rows) > 0).astype(int)


def against_scikit_learn(rows: int) -> None:
    import numpy as np
    import torch
    from _harness import medians, verdict
    from sklearn.linear_model import Lasso, LogisticRegression

    from milodo.sklearn import DecentralizedLasso, DecentralizedLogisticRegression

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
        tasks = {"ours": lambda m=ours, t=target: m.fit(X, t), "theirs": lambda m=theirs, t=target: m.fit(X, t)}
        spent = medians(tasks, repeats=REPEATS, warm=False)
        ratio = spent["ours"] / spent["theirs"]
        apart = float(np.abs(ours.coef_ - theirs.coef_).max())
        print(
            f"  {name}: {spent['ours']:.2f} s, scikit-learn {spent['theirs']:.2f} s: {ratio:.2f}x (goal: at most 1.5) "
            f"{verdict(ratio <= 1.5)}; coefficients differ by {apart:.0e}"
        )


def names(kind: str, rows: int) -> np.ndarray:
    """The site of each row."""
    import numpy as np

    few = np.arange(rows) // FEW
    return np.minimum(few, SITES - 1) if kind == "uneven" else np.arange(rows) * SITES // rows


def one(kind: str, rows: int) -> None:
    """In a process of its own: seconds, and the memory beyond that of the data."""
    from _harness import peak_memory

    from milodo.sklearn import DecentralizedLasso

    X, y, _ = data(rows)
    sites = names(kind, rows)
    DecentralizedLasso(0.05, n_sites=2).fit(X[:100], y[:100])
    before, begun = peak_memory(), time.perf_counter()
    DecentralizedLasso(0.05).fit(X, y, sites=sites)
    print(time.perf_counter() - begun, (peak_memory() - before) / X.nbytes)


def uneven(rows: int) -> None:
    from _harness import verdict

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


FEATURES, FILES, FEW_IN_A_FILE = 30, 3, 50
PENALTY = 0.01
REPEATS = 3
DATA = """
import sys
import numpy as np
import pandas as pd
rows, features, sites, few = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
X = rng.standard_normal((rows, features)) @ (np.eye(features) + 0.3 * rng.standard_normal((features, features))) + 1
y = X[:, : features // 2] @ rng.standard_normal(features // 2) + rng.standard_normal(rows)
table = pd.DataFrame(X, columns=[f"x{k}" for k in range(features)]).assign(y=y)
for k, part in enumerate(np.array_split(np.arange(rows), sites)):
    for name, some in (("all", table.iloc[part]), ("few", table.iloc[part[:few]])):
        some.to_csv(f"{name}-{k}.csv", index=False)
        some.to_parquet(f"{name}-{k}.parquet")
"""
"""Correlated features that are not centred, in three files of each kind; few-* have a few rows of them."""
RIVAL = """
import sys
import pandas as pd
from sklearn.linear_model import Lasso
read = {".csv": pd.read_csv, ".parquet": pd.read_parquet}[sys.argv[1]]
table = pd.concat([read(path) for path in sys.argv[3:]], ignore_index=True)
model = Lasso(float(sys.argv[2]), tol=1e-8).fit(table.drop(columns="y"), table["y"])
print(*model.coef_.tolist())
"""


@dataclass(frozen=True)
class Cost:
    """Of one process: seconds of the processor, seconds that went by, and the largest amount of memory, in bytes."""

    processor: float
    seconds: float
    memory: int


def run(words: list[str], folder: Path) -> tuple[Cost, str]:
    """A process from its start to its end, and what it printed."""
    begun = time.perf_counter()
    with subprocess.Popen([sys.executable, *words], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{words[:3]} ended with {process.returncode}")
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return Cost(used.ru_utime + used.ru_stime, time.perf_counter() - begun, used.ru_maxrss * kilobyte), said


def ours(kind: str, files: str, folder: Path) -> Cost:
    words = ["-m", "milodo", "solve", "--data", f"{files}-*{kind}", "--l1", str(PENALTY), "--out", "fit"]
    return run(words, folder)[0]


def theirs(kind: str, folder: Path) -> tuple[Cost, list[float]]:
    files = [path.name for path in sorted(folder.glob(f"all-*{kind}"))]
    cost, said = run(["-c", RIVAL, kind, str(PENALTY), *files], folder)
    return cost, [float(word) for word in said.split()]


def middle(costs: list[Cost]) -> Cost:
    return sorted(costs, key=lambda cost: cost.processor)[len(costs) // 2]


@dataclass(frozen=True)
class Compared:
    """One kind of file."""

    kind: str
    size: int
    ours: Cost
    theirs: Cost
    more: float
    """Bytes of memory beyond those for a few rows."""
    apart: float
    """The largest difference of two coefficients."""


def compare(kind: str, folder: Path) -> Compared:
    costs: dict[str, list[Cost]] = {"ours": [], "theirs": [], "few": []}
    coefficients: list[float] = []
    for _ in range(REPEATS):
        costs["few"].append(ours(kind, "few", folder))
        costs["ours"].append(ours(kind, "all", folder))
        cost, coefficients = theirs(kind, folder)
        costs["theirs"].append(cost)
    more = statistics.median(cost.memory for cost in costs["ours"]) - statistics.median(cost.memory for cost in costs["few"])
    found = json.loads((folder / "fit" / "fit.json").read_text(encoding="utf-8"))["coefficients"]
    apart = max(abs(a - b) for a, b in zip(found, coefficients, strict=True))
    size = sum(path.stat().st_size for path in folder.glob(f"all-*{kind}"))
    return Compared(kind, size, middle(costs["ours"]), middle(costs["theirs"]), more, apart)


def files(rows: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        run(["-c", DATA, *map(str, (rows, FEATURES, FILES, FEW_IN_A_FILE))], Path(place))
        found = [compare(kind, Path(place)) for kind in (".csv", ".parquet")]
    from _harness import verdict

    numbers = 8 * rows * (FEATURES + 1)
    for each in found:
        mine, rival = each.ours, each.theirs
        ratio = mine.processor / rival.processor
        print(f"{each.size / 1e6:.0f} MB of {each.kind[1:]} in {FILES} files")
        print(
            f"  {mine.processor:.2f} s of the processor ({mine.seconds:.2f} s went by), pandas and scikit-learn "
            f"{rival.processor:.2f} s ({rival.seconds:.2f} s): {ratio:.2f}x (goal: at most 1.5) {verdict(ratio <= 1.5)}; "
            f"coefficients differ by {each.apart:.0e}"
        )
        print(
            f"  {mine.memory / 1e6:.0f} MB, {each.more / 1e6:.0f} MB more than for a few rows: {each.more / numbers:.2f}x the "
            f"numbers (goal: at most 2) {verdict(each.more <= 2 * numbers)}; pandas and scikit-learn {rival.memory / 1e6:.0f} MB"
        )


def arrays(rows: int) -> None:
    against_scikit_learn(rows)
    uneven(rows)


PARTS = {
    "arrays": (arrays, 10**6),
    "files": (files, 555_000),
    "even": (partial(one, "even"), 0),
    "uneven": (partial(one, "uneven"), 0),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("rows", type=int, nargs="?")
    asked = parser.parse_args()
    part, usual = PARTS[asked.part]
    part(asked.rows or usual)
