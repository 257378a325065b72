"""One site's own data: a table in a CSV, Parquet or NPZ file, checked before anything is computed."""

from __future__ import annotations

import csv
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from milodo.errors import InvalidInput, quoted, shortened
from milodo.files import is_file
from milodo.memory import need_memory

DELIMITERS = ",;\t"
BLANK = "[ \t\r\n\xa0]*"
PLAIN = re.compile(
    rf"{BLANK}[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf|infinity){BLANK}", re.IGNORECASE | re.ASCII
)
"""A number as everybody writes it. Python also reads 1_000, and digits of other alphabets."""
DECIMAL_COMMA = re.compile(rf"{BLANK}[+-]?[0-9.]*,[0-9]+(e[+-]?[0-9]+)?{BLANK}", re.IGNORECASE)


@dataclass(frozen=True)
class Site:
    """Features [N, d] with the names of their columns, and the target as it was written [N]."""

    path: Path
    columns: tuple[str, ...]
    features: np.ndarray
    target: np.ndarray

    def __len__(self) -> int:
        return len(self.features)


def read_site(path: Path, target: str, ignore: Sequence[str] = ()) -> Site:
    """The table in a file: every column but the target and the ignored ones is a feature, and must be numeric and complete."""
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
    if target not in columns:
        raise InvalidInput(
            f"{path}: no column {quoted(target)} to predict. Its columns: {_some(columns)}. Choose one of them.", "target"
        )
    for name in ignore:
        if name not in columns:
            raise InvalidInput(f"{path}: no column {quoted(name)} to ignore. Its columns: {_some(columns)}.")
    names = tuple(name for name in columns if name != target and name not in ignore)
    if not names:
        raise InvalidInput(f"{path}: no column but the target {quoted(target)}, so there is nothing to predict it from.")
    if len(columns[target]) == 0:
        raise InvalidInput(f"{path}: the file has columns but no rows.")
    features = np.stack([_numbers(path, name, columns[name]) for name in names], axis=1)
    return Site(path, names, features, columns[target])


def numeric_target(site: Site, name: str) -> np.ndarray:
    """For the squared loss."""
    return _numbers(site.path, name, site.target, "The squared loss needs numbers; for classes use the logistic loss.", "loss")


def classes_here(site: Site, name: str) -> list[str]:
    """The different values of the target at one site, as text."""
    values = sorted({_label(value) for value in site.target.tolist()})
    if {"", "nan", "None"} & set(values):
        raise InvalidInput(f"{site.path}: column {quoted(name)} has missing values. Remove those rows first.")
    if len(values) > 2:  # said here and told to nobody: so many values are data, not classes
        raise InvalidInput(
            f"{site.path}: column {quoted(name)} has {len(values)} different values, but the logistic loss needs two classes. "
            "Use the squared loss for numbers.",
            "loss",
        )
    return values


def two_classes(everywhere: Sequence[Sequence[str]], name: str) -> tuple[str, str]:
    """The two classes of all sites together, in sorted order (numbers by value): the second is what is predicted."""
    found = {label for labels in everywhere for label in labels}
    if len(found) != 2:
        few = ", ".join(shortened(label, 30) for label in sorted(found)[:5])
        raise InvalidInput(
            f"column {quoted(name)} has {len(found)} different values over all sites ({few}{', ...' if len(found) > 5 else ''}), "
            "but the logistic loss needs two classes. Use the squared loss for numbers.",
            "loss",
        )
    first, second = sorted(found, key=float if all(map(_is_number, found)) else str)
    return first, second


def indicator(site: Site, classes: tuple[str, str]) -> np.ndarray:
    """1 where the target is the second class."""
    return np.array([float(_label(value) == classes[1]) for value in site.target.tolist()])


def _label(value: object) -> str:
    """1, 1.0 and '1' are one class."""
    if isinstance(value, bool):
        return str(int(value))
    text = str(value).strip()
    if not _is_number(text):
        return text
    number = float(text)
    return str(int(number)) if number.is_integer() else str(number)


def _some(columns: dict[str, np.ndarray]) -> str:
    names = list(columns)
    return ", ".join(shortened(name, 30) for name in names[:8]) + (", ..." if len(names) > 8 else "")


def _numbers(
    path: Path, name: str, values: np.ndarray, advice: str = "Ignore it, or encode it first.", remedy: str = "ignore"
) -> np.ndarray:
    if values.dtype.kind not in "biuf":
        row = next((k for k, value in enumerate(values.tolist()) if not _is_number(value)), None)
        if row is not None:
            said = f"{path}: column {quoted(name)}, row {row + 1} {_why_no_number(values.tolist()[row], advice)}"
            raise InvalidInput(said, *[remedy] * said.endswith(advice))
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise InvalidInput(f"{path}: column {quoted(name)}, row {row + 1} is {numbers[row]}. Fill it in, or remove the row.")
    return numbers


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or PLAIN.fullmatch(str(value)) is not None


def _why_no_number(value: object, advice: str) -> str:
    text = str(value)
    if value is None or not text.strip():
        return "is missing. Fill it in, or remove the row."
    if DECIMAL_COMMA.fullmatch(text):
        return f"is {quoted(value)}: decimal commas are not read. Write points, such as 1.5 for 1,5."
    try:
        return f"is {quoted(value)}, which is not read as a number. Write it in plain digits, e.g. {float(text):.15g}."
    except ValueError:
        return f"is {quoted(value)}, not a number. {advice}"


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
