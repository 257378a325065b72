"""Records: what a run leaves behind, in files a person can open. Reports and speed-ups are made from these alone.

runs/NAME/records.csv    one row a method, instance and sampled iteration
runs/NAME/run.json       what was asked (config), what it ran on (versions, commit, seed), tuning, certificates
"""

from __future__ import annotations

import csv
import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from milodo.errors import InvalidInput

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
_KINDS = {field.name: {"str": str, "int": int, "float": float}[str(field.type)] for field in fields(Record)}


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Adds rows, and the header to a new file."""
    new = not path.exists()
    with path.open("a", newline="") as file:
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
    if not path.is_file():
        raise InvalidInput(f"no records at {str(path)!r}. Run `milodo bench EXPERIMENT.toml` first, and give its run folder.")
    with path.open(newline="") as file:
        rows = csv.reader(file)
        header = next(rows, None)
        if header != COLUMNS:
            raise InvalidInput(f"{path}: not a milodo records file (expected the columns {', '.join(COLUMNS)}).")
        lines = list(rows)
    records = []
    for number, row in enumerate(lines, 2):
        try:
            if len(row) != len(COLUMNS):
                raise ValueError(f"{len(row)} columns instead of {len(COLUMNS)}")
            records.append(Record(**{c: _KINDS[c](v) for c, v in zip(COLUMNS, row, strict=True)}))
        except ValueError as error:
            if drop_cut_line and number == len(lines) + 1:
                break
            raise InvalidInput(
                f"{path}, line {number}: not a record ({error}). The file was cut or edited; run again."
            ) from error
    return records


def write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic(path) as part:
        part.write_text(json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InvalidInput(f"no {path.name} in {str(path.parent)!r}. Give the folder of a run, e.g. runs/demo.")
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: not readable as JSON ({error}).") from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise InvalidInput(f"{path}: not written by milodo (no format number).")
    if content["format"] > FORMAT:
        raise InvalidInput(f"{path}: format {content['format']} is newer than this milodo reads ({FORMAT}). Update milodo.")
    return content


class atomic:
    """A path to write to that replaces the real one only when all went well: no half-written file ever carries the name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        os.close(handle)
        self.part = Path(name)
        self.part.unlink()
        return self.part

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.part.replace(self.path)
        else:
            self.part.unlink(missing_ok=True)
