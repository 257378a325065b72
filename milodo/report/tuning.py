"""The step sizes of a run as the page tells them: which, where they come from, and what else was tried."""

from __future__ import annotations

import math
from typing import Any

from milodo import words as everywhere
from milodo.bench.run_file import LOSS, TrialFacts, TuningFacts
from milodo.report import words
from milodo.report.run import Run

HOW = {
    "tuned": "tuned here", "published": "as published", "given": "given in the experiment",
    "learned": "learned in training", "safe": "derived by the method from curvature and graph", "nothing": "nothing to choose",
    "auto": "chosen by its predicted price",
}  # fmt: skip

LIMIT = {
    (True, True): "the optimum", (True, False): "near the optimum",
    (False, True): "a stationary point, given full gradients", (False, False): "near a stationary point, given full gradients",
}  # fmt: skip
"""Whether an optimum is certified, whether a method is exact -> what it converges to: of a network, say, no optimum is known."""


def settings(run: Run) -> list[dict[str, Any]]:
    """The step sizes each method ran with, and where they come from."""
    rows = []
    for method in (method for method in run.methods if method in run.file.methods):
        about, tuning = run.about(method), run.file.tuning.get(method)
        partly = about.how == "published" and tuning is not None
        weights = about.weights.name if about.weights else ""
        work = about.gradients_per_iteration or 1
        notes = [
            *_notes(tuning or TuningFacts()),
            about.why,
            f"needs {about.needs}" if about.needs else "",
            f"takes {work} gradients an iteration" if work > 1 else "",
        ]
        rows.append(
            {
                "label": run.labels[method],
                "parameters": [weights] if weights else everywhere.settings(about.parameters or {}),
                "how": HOW.get(about.how, about.how or "–") + (", the rest tuned here" if partly else ""),
                "search": _search(tuning, run.tuned_elsewhere) if tuning else "",
                "notes": "; ".join(filter(None, notes)),
                "rounds": words.value(about.rounds_per_iteration),
                "exact": "–" if about.exact is None else LIMIT[run.certified, about.exact],
            }
        )
    return rows


def _search(tuning: TuningFacts, elsewhere: bool) -> str:
    """How step sizes were searched for, as far as run.json says."""
    chosen = tuning.instances is not None and f"chosen on {tuning.instances} {'other ' if elsewhere else ''}instances"
    by = tuning.target is not None and f"by the fewest {tuning.cost} to a gap of {words.number(tuning.target)}"
    within = tuning.iterations is not None and f"within {tuning.iterations:,} iterations"
    if tuning.cost == LOSS:
        by, within = "by the lowest mean loss of the average model", within and within.replace("within", "after")
    return " ".join(said for said in (chosen, by, within) if said)


def _notes(tuning: TuningFacts) -> list[str]:
    candidates = "" if tuning.candidates is None else f"from {tuning.candidates} candidates"
    missed = _missed(tuning) if tuning.reached is False and tuning.cost != LOSS else ""
    return [candidates, missed, "taken from an earlier run" if tuning.cached else ""]


def _missed(tuning: TuningFacts) -> str:
    """Of a chosen candidate that was not seen to reach the target, which need not be true of all others."""
    reached = sum(trial.reached for trial in tuning.grid)
    if reached:
        return f"{reached} of {len(tuning.grid)} reached the target; the chosen one had not by then, but bears larger steps"
    return "none reached the target, so the smallest gap decided" if tuning.grid else "the chosen one did not reach the target"


def grids(run: Run) -> list[dict[str, Any]]:
    """The score of every candidate, best first."""
    grids = []
    for method, tuning in run.file.tuning.items():
        if not tuning.grid:
            continue
        names = list(dict.fromkeys(name for trial in tuning.grid for name in trial.parameters))
        longest = max((t.score for t in tuning.grid if t.score is not None and not t.diverged), default=0) or 1
        best = next((trial for trial in tuning.grid if trial.parameters == tuning.best), None)
        rows, missed = [], "finite" if tuning.cost == LOSS else "not reached"
        for trial in sorted(tuning.grid, key=_order):
            known = None if trial.diverged else trial.score
            rows.append(
                {
                    "values": [words.value(trial.parameters.get(name)) for name in names],
                    "chosen": trial is best,  # a refinement may have tried it twice
                    "outcome": "diverged" if trial.diverged else "reached" if trial.reached else missed,
                    "score": words.number(trial.score, 4) if trial.score is not None else "–",
                    "share": 0 if known is None else round(100 * max(known, 0) / longest, 1),
                    "gap": words.number(trial.gap, 2) if trial.gap is not None else "–",
                }
            )
        found = {"label": run.labels.get(method, method), "names": names, "rows": rows}
        grids.append({**found, "cost": tuning.cost, "by_loss": tuning.cost == LOSS})
    return grids


def _order(trial: TrialFacts) -> tuple[bool, bool, float]:
    return trial.diverged, not trial.reached, math.inf if trial.score is None else trial.score


def pairs(run: Run) -> list[dict[str, Any]]:
    """Methods that ran with the paper's step sizes and with tuned ones."""
    pairs = []
    for method in run.methods:
        base = run.base(method)
        if base == method or (run.about(method).how, run.about(base).how) != ("published", "tuned"):
            continue
        rows = {m: [words.cost_cell(r) for r in run.speedups if r.method == m and r.axis == "k"] for m in (method, base)}
        for m, how in ((method, "published"), (base, "tuned")):
            about = {"how": how, "parameters": everywhere.settings(run.about(m).parameters or {})}
            pairs.append({"label": run.labels[base], **about, "cells": rows[m], "first": m == method})
    return pairs
