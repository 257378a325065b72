"""Records: what a run leaves behind, in files a person can open. Reports and speed-ups are made from these alone.

runs/NAME/records.csv    one row a method, instance and sampled iteration
runs/NAME/run.json       what was asked (config), what it ran on (versions, commit, seed), tuning, certificates
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from milodo.errors import LARGEST, InvalidInput, quoted, shortened
from milodo.files import is_file, read_csv, write_csv
from milodo.status import Status


@dataclass(frozen=True)
class Record:
    """One look at one instance."""

    method: str
    """Its name within the run, e.g. 'prox-ed' or 'prox-ed (published)'."""
    instance: int
    """0, 1, 2, ... within the run."""
    seed: int
    """Of the instance."""
    k: int
    """Iterations done."""
    rounds: int
    messages: int
    floats: int
    bytes: int
    """Sent by all nodes together up to here, for this instance."""
    seconds: float
    """Spent in steps, of all instances simulated together; looking is never counted."""
    loss: float
    """f(x̄) + r(x̄)."""
    gap: float
    """loss - f*, absolute, with the certified f*; NaN where none was certified."""
    consensus: float
    """(1/n) Σ ‖x_i - x̄‖."""
    status: Status
    """RUNNING, or on the last row of an instance how its run ended."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What else the problem measures of x̄, such as an accuracy; columns behind the others."""

    def value(self, column: str) -> float:
        """What stands in a column of numbers; NaN where a metric was not measured."""
        return float(getattr(self, column) if column in COLUMNS else self.metrics.get(column, math.nan))


COLUMNS = [field.name for field in fields(Record) if field.name != "metrics"]
COUNTED = ("instance", "k", "rounds", "messages", "floats", "bytes", "seconds")
METRIC = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
"""What a metric may be called: it names a column, a chart and a file."""


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Adds rows, to a new file under their header; where there are metrics that the file has no column for, it gets them."""
    records, columns = list(records), _header(path) if path.exists() else []
    if not set(_columns(records)) <= set(columns):
        write_records(path, [*(read_records(path) if columns else []), *records])
        return
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(_cells(record, columns) for record in records)


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Replaces the file, all or nothing."""
    columns = _columns(records)
    write_csv(path, columns, (_cells(record, columns) for record in records))


def _columns(records: Sequence[Record]) -> list[str]:
    columns = [*COLUMNS, *dict.fromkeys(name for record in records for name in record.metrics)]
    if wrong := _not_metrics(columns[len(COLUMNS) :]):
        raise InvalidInput(f"a metric cannot be called {quoted(wrong[0])}. Use small letters, digits and _, and no name twice.")
    return columns


def _not_metrics(names: Sequence[str]) -> list[str]:
    return [name for k, name in enumerate(names) if not METRIC.fullmatch(name) or name in COLUMNS or name in names[:k]]


def _cells(record: Record, columns: Sequence[str]) -> list[Any]:
    cells = {**vars(record), "status": record.status.name, **record.metrics}
    return [cells.get(column, "") for column in columns]


def _header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def read_records(path: Path, *, drop_cut_line: bool = False) -> list[Record]:
    """Rows of a records.csv, checked. A process killed while writing leaves half a last line, which may be dropped."""
    if not is_file(path):
        raise InvalidInput(
            f"no records at {quoted(str(path), 200)}. Run `milodo bench EXPERIMENT.toml` first, and give its run folder."
        )
    header, *lines = read_csv(path, "run") or [[]]
    if header[: len(COLUMNS)] != COLUMNS or _not_metrics(header[len(COLUMNS) :]):
        raise InvalidInput(f"{path}: not a milodo records file (expected the columns {', '.join(COLUMNS)}, and metrics).")
    records = []
    for number, row in enumerate(lines, 2):
        try:
            if len(row) != len(header):
                raise ValueError(f"{len(row)} columns instead of {len(header)}")
            cells = dict(zip(header, row, strict=True))
            metrics = {name: float(cells[name]) for name in header[len(COLUMNS) :] if cells[name]}
            records.append(Record(**{column: _value(column, cells[column]) for column in COLUMNS}, metrics=metrics))
        except ValueError as error:
            if drop_cut_line and number == len(lines) + 1:
                break
            raise InvalidInput(
                f"{path}, line {number}: not a record ({shortened(error)}). The file was cut or edited; run again."
            ) from error
    return records


def _status(word: str) -> Status:
    if word not in Status.__members__:
        raise ValueError(f"status is {quoted(word)}")
    return Status[word]


_KINDS = {"str": str, "int": int, "float": float, "Status": _status}
_KIND = {one.name: _KINDS[str(one.type)] for one in fields(Record) if one.name in COLUMNS}


def _value(column: str, word: str) -> Any:
    """A cell as what it stands for. What is counted is neither negative nor endless; a loss may be anything."""
    value = _KIND[column](word)
    if column in COUNTED and not 0 <= value <= LARGEST:
        raise ValueError(f"{column} is {quoted(value)}")
    return value
