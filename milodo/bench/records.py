"""Records: what a run leaves behind, in files a person can open. Reports and speed-ups are made from these alone.

runs/NAME/records.csv    one row a method, instance and sampled iteration
runs/NAME/run.json       what was asked (config), what it ran on (versions, commit, seed), tuning, certificates
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from milodo.bench.facts import sound
from milodo.errors import LARGEST, InvalidInput, quoted, shortened
from milodo.files import atomic, is_file, read_versioned_json

FORMAT = 1
"""Of run.json; a file with a larger number was written by a newer milodo."""


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
    status: str
    """Name of a Status: RUNNING, or on the last row of an instance how its run ended."""


COLUMNS = [field.name for field in fields(Record)]
COUNTED = ("instance", "k", "rounds", "messages", "floats", "bytes", "seconds")
_KINDS = {field.name: {"str": str, "int": int, "float": float}[str(field.type)] for field in fields(Record)}


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Adds rows, and the header to a new file."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(COLUMNS)
        writer.writerows([getattr(record, column) for column in COLUMNS] for record in records)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Replaces the file, all or nothing."""
    with atomic(path) as part:
        append_records(part, records)


def read_records(path: Path, *, drop_cut_line: bool = False) -> list[Record]:
    """Rows of a records.csv, checked. A process killed while writing leaves half a last line, which may be dropped."""
    if not is_file(path):
        raise InvalidInput(
            f"no records at {quoted(str(path), 200)}. Run `milodo bench EXPERIMENT.toml` first, and give its run folder."
        )
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *lines = [*csv.reader(file)] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read ({shortened(error)}). The file was damaged; run again.") from error
    if header != COLUMNS:
        raise InvalidInput(f"{path}: not a milodo records file (expected the columns {', '.join(COLUMNS)}).")
    records = []
    for number, row in enumerate(lines, 2):
        try:
            if len(row) != len(COLUMNS):
                raise ValueError(f"{len(row)} columns instead of {len(COLUMNS)}")
            records.append(Record(**{c: _value(c, v) for c, v in zip(COLUMNS, row, strict=True)}))
        except ValueError as error:
            if drop_cut_line and number == len(lines) + 1:
                break
            raise InvalidInput(
                f"{path}, line {number}: not a record ({shortened(error)}). The file was cut or edited; run again."
            ) from error
    return records


def _value(column: str, word: str) -> Any:
    """A cell as what it stands for. What is counted is neither negative nor endless; a loss may be anything."""
    value = _KINDS[column](word)
    if column in COUNTED and not 0 <= value <= LARGEST:
        raise ValueError(f"{column} is {quoted(value)}")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """run.json of a run's folder; what is of the wrong kind in it is left out (milodo/bench/facts.py)."""
    if not is_file(path):
        raise InvalidInput(f"no {path.name} in {quoted(str(path.parent), 200)}. Give the folder of a run, e.g. runs/demo.")
    return sound(read_versioned_json(path, FORMAT))
