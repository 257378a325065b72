"""Files of a fit: the sites' tables, checked before anything is computed; and what came out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from milodo.errors import InvalidInput, quoted
from milodo.files import FORMAT, make_writable, write_csv, write_json
from milodo.fit.cells import CLASSES, GAP, as_numbers, missing, names
from milodo.fit.path import Choice, PenaltyPath
from milodo.fit.readers import Table, read_table
from milodo.fit.sites import Site
from milodo.fit.task import Fit, Task
from milodo.provenance import provenance

SHORT = 150
"""Characters of a list of names that is not all a message says."""
FILES = 3
"""Of several files that cannot be used, so many are spoken of in full."""


def read_site(path: Path, target: str, ignore: Sequence[str] = (), loss: str | None = None) -> Site:
    """The table in a file: every column but the target and the ignored ones is a feature, and must be numeric and complete.

    With a loss the target is looked at, too. All problems are told at once.
    """
    return _site(_table(path, target, ignore), target, loss, all_ignored=True)


def read_sites(paths: Sequence[Path], target: str, ignore: Sequence[str] = (), loss: str | None = None) -> list[Site]:
    """Several files. Columns are matched by name, in the order of the first file; a column to ignore must be in one of them."""
    sites: list[Site] = []
    refused: list[InvalidInput] = []
    lacking = [set[str]() for _ in paths]
    for path, lacks in zip(paths, lacking, strict=True):
        try:
            table = _table(path, target, ignore, sites[0].columns if sites else ())
            lacks |= {*table.lacks}
            site = _site(table, target, loss, all_ignored=False)
            if not refused:
                sites.append(site)
        except InvalidInput as error:
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        more = f" {len(refused) - FILES} more files cannot be used, either." if len(refused) > FILES else ""
        remedies = dict.fromkeys(word for error in refused for word in error.remedies)
        raise InvalidInput(" ".join(map(str, refused[:FILES])) + more, *remedies)
    if nowhere := [name for name in ignore if all(name in lacks for lacks in lacking)]:
        there = f"{sites[0].name} has {names(sites[0].columns, SHORT)}"
        raise InvalidInput(f"no file has a column {names(nowhere, SHORT)} to ignore. The first one, {there}.")
    return sites


def read_rows(path: Path, target: str, ignore: Sequence[str], columns: Sequence[str]) -> Table:
    """New rows for a fit with these columns, which come first if they are there; the target may be missing, or ignored."""
    table = read_table(path, target, ignore, columns)
    if table.lacks:
        table.problems.whole.append(_nothing_to_ignore(table))
    return table


def _nothing_to_ignore(table: Table) -> str:
    return f"no column {names(table.lacks, SHORT)} to ignore. Its columns: {names(table.columns, SHORT)}"


def _table(path: Path, target: str, ignore: Sequence[str], order: Sequence[str] = ()) -> Table:
    return read_table(path, target, [name for name in ignore if name != target], order)


def _site(table: Table, target: str, loss: str | None, *, all_ignored: bool) -> Site:
    """The table as a site, or all that is wrong with it; `all_ignored` if a column to be ignored must be there."""
    problems = table.problems
    if all_ignored and table.lacks:
        problems.whole.append(_nothing_to_ignore(table))
    if table.target is None:
        there = names(table.columns, SHORT)
        problems.whole.append(f"no column {quoted(target)} to predict. Its columns: {there}. Choose one of them")
    elif not table.columns:
        problems.whole.append(f"no column but the target {quoted(target)}, so there is nothing to predict it from")
    elif loss == "squared":
        problems.add_column(target, *as_numbers(table.target), text=CLASSES)
    elif loss == "logistic" and (gaps := missing(table.target)):
        problems.add(GAP, target, gaps[0] + 1, None, len(gaps))
    problems.refuse()
    assert table.target is not None
    return Site(table.name, table.columns, table.features, table.target)


def _plain(value: Any) -> Any:
    """As JSON has it, which knows no arrays, and neither NaN nor infinity."""
    match value:
        case np.ndarray():
            return _plain(value.tolist())
        case list():
            return [_plain(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value


def write_fit(fit: Fit, folder: Path, task: Task, command: str | None, runtime: str) -> Path:
    """fit.json with everything, and coefficients.csv."""
    make_writable(folder)
    content = {key: _plain(value) for key, value in asdict(fit).items()} | {"status": fit.status.name}
    facts: dict[str, Any] = {"format": FORMAT, "runtime": runtime, "command": command, "task": asdict(task), **content}
    facts["sha256"] = fit.sha256
    write_json(folder / "fit.json", {**facts, "provenance": provenance()})
    rows = zip((*fit.columns, "(intercept)"), (*fit.coefficients.tolist(), fit.intercept), strict=True)
    write_csv(folder / "coefficients.csv", ["name", "coefficient"], rows)
    return folder / "fit.json"


def write_path(path: PenaltyPath, folder: Path, choice: Choice) -> Path:
    """path.json with everything, and path.csv with a row a penalty."""
    make_writable(folder)
    content = {key: _plain(value) for key, value in asdict(path).items()}
    facts = {"format": FORMAT, "choice": asdict(choice), **content, "penalty": path.penalty, "used": path.used}
    write_json(folder / "path.json", facts)
    header = ["penalty", "mean loss", "standard error", "features", "chosen", "(intercept)", *path.columns]
    numbers = (part.tolist() for part in (path.mean, path.error, path.intercepts, path.coefficients))
    table = zip(path.penalties, path.used, *numbers, strict=True)
    rows = (
        [l1, mean, error, used, int(p == path.chosen), shift, *w] for p, (l1, used, mean, error, shift, w) in enumerate(table)
    )
    write_csv(folder / "path.csv", header, rows)
    return folder / "path.json"
