"""Files of a fit: a site's table in CSV, Parquet or NPZ, checked before anything is computed; and what came out."""

from __future__ import annotations

import csv
import math
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from milodo.errors import InvalidInput, quoted, shortened
from milodo.files import FORMAT, is_file, make_writable, write_csv, write_json
from milodo.fit.path import Choice, PenaltyPath
from milodo.fit.sites import Site, numbers
from milodo.fit.task import Fit, Task
from milodo.memory import need_memory
from milodo.provenance import provenance

DELIMITERS = ",;\t"


def read_site(path: Path, target: str, ignore: Sequence[str] = ()) -> Site:
    """The table in a file: every column but the target and the ignored ones is a feature, and must be numeric and complete."""
    columns = read_columns(path, target, [name for name in ignore if name != target])
    if target not in columns:
        raise InvalidInput(
            f"{path}: no column {quoted(target)} to predict. Its columns: {_some(columns)}. Choose one of them.", "target"
        )
    names = tuple(name for name in columns if name != target)
    if not names:
        raise InvalidInput(f"{path}: no column but the target {quoted(target)}, so there is nothing to predict it from.")
    features = np.stack([numbers(str(path), name, columns[name]) for name in names], axis=1)
    return Site(str(path), names, features, columns[target])


def read_columns(path: Path, target: str, ignore: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The columns of a file but the ignored ones, as they were written; an NPZ file may hold the target beside its table."""
    if not is_file(path):
        raise InvalidInput(f"no file {quoted(str(path))}. Give the path of a CSV, Parquet or NPZ file.")
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz}
    if path.suffix.lower() not in readers:
        raise InvalidInput(
            f"{path}: cannot read {shortened(path.suffix) or 'a file without an ending'}. Known: {', '.join(readers)}."
        )
    if path.stat().st_size == 0:
        raise InvalidInput(f"{path}: the file is empty.")
    try:
        columns = readers[path.suffix.lower()](path, target)
    except InvalidInput:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise InvalidInput(
            f"{path}: cannot be read as {path.suffix[1:]} ({type(error).__name__}: {shortened(error)})."
        ) from error
    for name, values in columns.items():
        if values.ndim != 1 or np.iscomplexobj(values):
            raise InvalidInput(f"{path}: column {quoted(name)} does not hold one real number or word in each row.")
        if not name.strip():
            raise InvalidInput(f"{path}: a column has no name (an index that was saved with the table?). Name or remove it.")
    for name in ignore:
        if name not in columns:
            raise InvalidInput(f"{path}: no column {quoted(name)} to ignore. Its columns: {_some(columns)}.")
    if any(len(values) == 0 for values in columns.values()):
        raise InvalidInput(f"{path}: the file has columns but no rows.")
    return {name: values for name, values in columns.items() if name not in ignore}


def _some(columns: dict[str, np.ndarray]) -> str:
    names = list(columns)
    return ", ".join(shortened(name, 30) for name in names[:8]) + (", ..." if len(names) > 8 else "")


def _read_csv(path: Path, target: str) -> dict[str, np.ndarray]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file, delimiter=_delimiter(file)) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: not a CSV file in UTF-8 ({shortened(error)}).") from error
    if not rows:
        raise InvalidInput(f"{path}: the file holds nothing but blank lines.")
    header, *rows = rows
    header = [name.strip() for name in header]
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InvalidInput(f"{path}: two columns are called {quoted(twice)}. Rename one.")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise InvalidInput(f"{path}: row {number} has {len(row)} values, but there are {len(header)} columns.")
    table = np.array(rows, dtype=object).reshape(len(rows), len(header))
    return {name: table[:, k] for k, name in enumerate(header)}


def _delimiter(file: TextIO) -> str:
    """The one that makes most columns of the header; what stands in quotes separates nothing. Back to the file's start."""

    def columns(delimiter: str) -> int:
        try:
            # Strictly: with the wrong delimiter something would follow a closing quote.
            return len(next((row for row in csv.reader(file, delimiter=delimiter, strict=True) if row), []))
        except csv.Error:
            return 0
        finally:
            file.seek(0)

    return max(DELIMITERS, key=columns)


def _read_parquet(path: Path, target: str) -> dict[str, np.ndarray]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InvalidInput(f"{path}: Parquet files need pyarrow. Install it: pip install 'milodo[parquet]'.") from error
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{path}: not a Parquet file ({shortened(error)}).") from error
    found = {}
    for name in table.column_names:
        values = table.column(name).to_pylist()
        found[name] = np.empty(len(values), dtype=object)
        found[name][:] = values
    return found


def _read_npz(path: Path, target: str) -> dict[str, np.ndarray]:
    """Arrays X [N, d] and the target (y, or what is asked for) [N]; `columns` may name the features."""
    try:
        with np.load(path, allow_pickle=False) as file:
            unpacked = sum(part.file_size for part in file.zip.infolist())
            need_memory(unpacked, f"{path}, unpacked,", "Split it over more sites.")
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path}: not an NPZ file of plain arrays ({shortened(error)}).") from error
    if "X" not in arrays or arrays["X"].ndim != 2:
        raise InvalidInput(
            f"{path}: an NPZ file needs a two-dimensional array X; it has {shortened(', '.join(arrays)) or 'nothing'}."
        )
    X = arrays["X"]
    if target in arrays and arrays[target].shape != (len(X),):
        raise InvalidInput(f"{path}: {shortened(target)} has shape {arrays[target].shape}, but X has {len(X)} rows.")
    names = [str(name) for name in arrays.get("columns", np.array([f"x{k}" for k in range(X.shape[1])])).reshape(-1)]
    if len(names) != X.shape[1] or len(set(names)) != len(names) or (target in names and target in arrays):
        raise InvalidInput(f"{path}: `columns` must name each of the {X.shape[1]} columns of X once.")
    return {**{name: X[:, k] for k, name in enumerate(names)}, **({target: arrays[target]} if target in arrays else {})}


def _finite(value: Any) -> Any:
    """JSON knows neither NaN nor infinity."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_fit(fit: Fit, folder: Path, task: Task, command: str | None, runtime: str) -> Path:
    """fit.json with everything, and coefficients.csv."""
    make_writable(folder)
    content = {key: _finite(value) for key, value in asdict(fit).items()} | {"status": fit.status.name}
    facts: dict[str, Any] = {"format": FORMAT, "runtime": runtime, "command": command, "task": asdict(task), **content}
    facts["sha256"] = fit.sha256
    write_json(folder / "fit.json", {**facts, "provenance": provenance()})
    rows = zip((*fit.columns, "(intercept)"), (*fit.coefficients, fit.intercept), strict=True)
    write_csv(folder / "coefficients.csv", ["name", "coefficient"], rows)
    return folder / "fit.json"


def write_path(path: PenaltyPath, folder: Path, choice: Choice) -> Path:
    """path.json with everything, and path.csv with a row a penalty."""
    make_writable(folder)
    facts = {"format": FORMAT, "choice": asdict(choice), **asdict(path), "penalty": path.penalty, "used": path.used}
    write_json(folder / "path.json", facts)
    header = ["penalty", "mean loss", "standard error", "features", "chosen", "(intercept)", *path.columns]
    table = zip(path.penalties, path.mean, path.error, path.used, path.intercepts, path.coefficients, strict=True)
    rows = (
        [l1, mean, error, used, int(p == path.chosen), shift, *w] for p, (l1, mean, error, used, shift, w) in enumerate(table)
    )
    write_csv(folder / "path.csv", header, rows)
    return folder / "path.json"
