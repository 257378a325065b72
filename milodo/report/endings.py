"""Where lines end and why, in words: because instances reached their tolerance, or because a budget was used up."""

from __future__ import annotations

import math
from collections import defaultdict

from milodo.report.run import Run
from milodo.report.words import join
from milodo.status import Status

REACHED = "half of the instances have reached their tolerance"
WHY = {
    Status.STEPS: "the iterations it was given were used up",
    Status.TIME: "the seconds it was given were used up",
    Status.INTERRUPTED: "it was stopped",
    Status.RUNNING: "its records end",
}
DIVERGED = "its last instance diverged"


def line_ends(run: Run) -> str:
    """Why lines end where they do: what holds of most, then of the others."""
    why: dict[str, list[str]] = defaultdict(list)
    for method in run.methods:
        why[_why(run, method)].append(run.labels[method])
    (most, _), *others = sorted(why.items(), key=lambda item: -len(item[1]))
    further = "".join(f"; that of {join(labels)} where {reason}" for reason, labels in others)
    return f"A line ends where {most}{further}."


def _why(run: Run, method: str) -> str:
    """As `curves` ends it."""
    last = [samples[-1] for samples in run.runs[method].values()]
    finished = sorted(record.k for record in last if record.status is Status.CONVERGED)
    cut = [record for record in last if record.status not in (Status.CONVERGED, Status.DIVERGED)]
    half = finished[math.ceil(len(last) / 2) - 1] if 2 * len(finished) >= len(last) else math.inf
    first = min(cut, key=lambda record: record.k, default=None)
    if first is None:
        return REACHED if math.isfinite(half) else DIVERGED
    return REACHED if half <= first.k else WHY[first.status]


def budgets(run: Run) -> str:
    """Which methods were given how many iterations, where that differs between those that used them up; else nothing."""
    used: dict[int, list[str]] = defaultdict(list)
    for method, instances in run.runs.items():
        if spent := [rows[-1].k for rows in instances.values() if rows[-1].status is Status.STEPS]:
            used[max(spent)].append(run.labels[method])
    if len(used) < 2:
        return ""
    said = [f"{join(labels)} {k:,}" for k, labels in sorted(used.items(), reverse=True)]
    return f"Methods were not given the same number of iterations: {'; '.join(said)}."
