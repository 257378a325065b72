"""The step sizes of a run as the page tells them: which, where they come from, and what else was tried."""

from __future__ import annotations

import math
from typing import Any

from milodo.report import words
from milodo.report.run import Run, as_dict, finite

HOW = {
    "tuned": "tuned here",
    "published": "published in the paper",
    "given": "given in the experiment",
    "learned": "learned in training",
    "safe": "derived by the method from curvature and graph",
    "nothing": "nothing to choose",
}


def settings(run: Run) -> list[dict[str, Any]]:
    """The step sizes each method ran with, and where they come from."""
    rows = []
    for method in run.methods:
        about, tuning = run.about(method), run.part("tuning").get(method)
        if not about:
            continue
        chosen = as_dict(tuning)
        how = str(about.get("how") or "")
        partly = how == "published" and bool(chosen)
        rounds, weights = about.get("rounds_per_iteration"), about.get("weights", {}).get("name")
        rows.append(
            {
                "label": run.labels[method],
                "parameters": [weights] if weights else words.parameters(about.get("parameters")),
                "how": HOW.get(how, how or "–") + (", the rest tuned here" if partly else ""),
                "search": _search(chosen, run.tuned_elsewhere),
                "notes": "; ".join(filter(None, (_notes(chosen), _needs(about.get("needs"))))),
                "rounds": words.value(rounds) if rounds is not None else "–",
                "exact": {True: "the optimum", False: "near the optimum"}.get(about.get("exact"), "–"),  # type: ignore[arg-type]
            }
        )
    return rows


def _search(tuning: dict[str, Any], elsewhere: bool) -> str:
    """How step sizes were searched for, as far as run.json says."""
    said = []
    if isinstance(tuning.get("instances"), int):
        said.append(f"chosen on {tuning['instances']} {'other ' if elsewhere else ''}instances")
    if isinstance(tuning.get("target"), int | float):
        said.append(f"by the fewest {tuning.get('cost') or 'iterations'} to a gap of {words.number(tuning['target'])}")
    if isinstance(tuning.get("iterations"), int):
        said.append(f"within {tuning['iterations']:,} iterations")
    return " ".join(said)


def _needs(needs: Any) -> str:
    return f"needs {needs}" if isinstance(needs, str) and needs else ""


def _notes(tuning: dict[str, Any]) -> str:
    said = []
    if isinstance(tuning.get("candidates"), int):
        said.append(f"from {tuning['candidates']} candidates")
    if tuning.get("reached") is False:
        said.append("none reached the target, so the smallest gap decided")
    if tuning.get("cached") is True:
        said.append("taken from an earlier run")
    return "; ".join(said)


def grids(run: Run) -> list[dict[str, Any]]:
    """The score of every candidate, best first."""
    grids = []
    for method, tuning in run.part("tuning").items():
        grid = tuning.get("grid") if isinstance(tuning, dict) else None
        entries = [entry for entry in grid if isinstance(entry, dict)] if isinstance(grid, list) else []
        if not entries:
            continue
        names = list(dict.fromkeys(key for entry in entries for key in as_dict(entry.get("parameters"))))
        scores = [s for entry in entries if (s := finite(entry.get("score"))) is not None and not entry.get("diverged")]
        longest = max(scores, default=0) or 1
        rows, best = [], next((entry for entry in entries if entry.get("parameters") == tuning.get("best")), None)
        for entry in sorted(
            entries, key=lambda e: (bool(e.get("diverged")), not e.get("reached"), finite(e.get("score")) or math.inf)
        ):
            score, gap = finite(entry.get("score")), finite(entry.get("gap"))
            rows.append(
                {
                    "values": [words.value(as_dict(entry.get("parameters")).get(name)) for name in names],
                    "chosen": entry is best,  # a refinement may have tried it twice
                    "outcome": "diverged" if entry.get("diverged") else "reached" if entry.get("reached") else "not reached",
                    "score": words.number(score, 4) if score is not None else "–",
                    "share": 0 if score is None or entry.get("diverged") else round(100 * max(score, 0) / longest, 1),
                    "gap": words.number(gap, 2) if gap is not None else "–",
                }
            )
        grids.append(
            {
                "label": run.labels.get(method, str(method)),
                "names": names,
                "rows": rows,
                "cost": str(tuning.get("cost") or "score"),
            }
        )
    return grids


def pairs(run: Run) -> list[dict[str, Any]]:
    """Methods that ran with the paper's step sizes and with tuned ones."""
    pairs = []
    for method in run.methods:
        base = run.base(method)
        if base == method or (run.about(method).get("how"), run.about(base).get("how")) != ("published", "tuned"):
            continue
        rows = {m: [words.cost_cell(r) for r in run.speedups if r.method == m and r.axis == "k"] for m in (method, base)}
        for m, how in ((method, "published"), (base, "tuned")):
            parameters = words.parameters(run.about(m).get("parameters"))
            pairs.append(
                {"label": run.labels[base], "how": how, "parameters": parameters, "cells": rows[m], "first": how == "published"}
            )
    return pairs
