"""The whole command on tables in files: `milodo solve` on three files against pandas and scikit-learn on the same rows, pooled.

python benchmarks/readers.py [ROWS]     555,000 rows of 30 features unless given: 329 MB of CSV, made in a temporary folder

Goals: at most 1.5x the time of pandas.read_csv (or read_parquet) and Lasso(tol=1e-8), from the start of Python to its end, and at
most 2x the numbers (8 bytes each) in memory, beyond what the same command takes for a few rows. Every run is a process of its
own; they take turns, and the median counts. Times are those of the processor, as other programs may be running; those that went
by are shown beside them. Of fewer rows the start counts most, that of torch among it, and neither goal is meant for them. This
process stays small: Linux says of a child that it took at least as much memory as its parent had when it was started.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from _measure import verdict

FEATURES, SITES, FEW = 30, 3, 50
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


def compare(kind: str, folder: Path, numbers: int) -> None:
    costs: dict[str, list[Cost]] = {"ours": [], "theirs": [], "few": []}
    coefficients: list[float] = []
    for _ in range(REPEATS):
        costs["few"].append(ours(kind, "few", folder))
        costs["ours"].append(ours(kind, "all", folder))
        cost, coefficients = theirs(kind, folder)
        costs["theirs"].append(cost)
    mine, rival = middle(costs["ours"]), middle(costs["theirs"])
    ratio = mine.processor / rival.processor
    more = statistics.median(cost.memory for cost in costs["ours"]) - statistics.median(cost.memory for cost in costs["few"])
    found = json.loads((folder / "fit" / "fit.json").read_text(encoding="utf-8"))["coefficients"]
    apart = max(abs(a - b) for a, b in zip(found, coefficients, strict=True))
    size = sum(path.stat().st_size for path in folder.glob(f"all-*{kind}"))
    print(f"{size / 1e6:.0f} MB of {kind[1:]} in {SITES} files")
    print(
        f"  {mine.processor:.2f} s of the processor ({mine.seconds:.2f} s went by), pandas and scikit-learn "
        f"{rival.processor:.2f} s ({rival.seconds:.2f} s): {ratio:.2f}x (goal: at most 1.5) {verdict(ratio <= 1.5)}; "
        f"coefficients differ by {apart:.0e}"
    )
    print(
        f"  {mine.memory / 1e6:.0f} MB, {more / 1e6:.0f} MB more than for a few rows: {more / numbers:.2f}x the numbers "
        f"(goal: at most 2) {verdict(more <= 2 * numbers)}; pandas and scikit-learn {rival.memory / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 555_000
    with tempfile.TemporaryDirectory() as place:
        run(["-c", DATA, *map(str, (rows, FEATURES, SITES, FEW))], Path(place))
        for ending in (".csv", ".parquet"):
            compare(ending, Path(place), 8 * rows * (FEATURES + 1))
