"""Tables in CSV, Parquet and NPZ files, read in blocks into one matrix of numbers, with all that is wrong gathered on the way."""

from __future__ import annotations

import csv
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from milodo.errors import InvalidInput, quoted, shortened
from milodo.files import is_file
from milodo.fit.cells import NAME, PLAIN, Problems, as_numbers, names
from milodo.memory import need_memory
from milodo.words import amount

DELIMITERS = ",;\t"
BLOCK = 1 << 19
"""Bytes of a CSV file that are parsed at a time; some thirty such blocks are read ahead. Of long rows more: LINES of them."""
LINES, LARGEST_BLOCK = 4, 1 << 30
ROWS = 1 << 14
"""Rows that are handled at a time where a file is not read in blocks of bytes."""
UNPACKED, RATIO = 1 << 28, 100
"""Bytes beyond which an archive that unpacks to more than RATIO times its size is not opened."""
SHORT = 60
"""Characters of a list of names within a longer message."""
SPLIT = "Split it over more sites."


@dataclass(frozen=True)
class Table:
    """Features [N, d] with the names of their columns, NaN where there is no number; and the target [N], numbers or words."""

    name: str
    columns: tuple[str, ...]
    features: np.ndarray
    target: np.ndarray | None
    problems: Problems
    lacks: tuple[str, ...] = ()
    """Columns to be ignored that are not there."""


def read_table(path: Path, target: str, ignore: Sequence[str] = (), order: Sequence[str] = ()) -> Table:
    """The table in a file without the ignored columns; those named in `order` come first, in that order.

    Cells that are no numbers are no reason to stop: the table's problems tell them.
    """
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
        return readers[path.suffix.lower()](path, _Wanted(target, tuple(ignore), tuple(order)))
    except InvalidInput:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise InvalidInput(
            f"{path}: cannot be read as {path.suffix[1:]} ({type(error).__name__}: {shortened(error)})."
        ) from error
    finally:
        pa.default_memory_pool().release_unused()


@dataclass(frozen=True)
class _Wanted:
    """Of a table's columns."""

    target: str
    ignore: tuple[str, ...]
    order: tuple[str, ...]

    def features(self, header: Sequence[str]) -> tuple[str, ...]:
        left = [name for name in header if name != self.target and name not in self.ignore]
        known = set(left)
        first = dict.fromkeys(name for name in self.order if name in known)
        return (*first, *(name for name in left if name not in first))


class _Filling:
    """A table that is filled block by block; `most` is at least its number of rows."""

    def __init__(self, path: Path, header: Sequence[str], wanted: _Wanted, most: int) -> None:
        self.header, self.wanted, self.problems, self.rows = header, wanted, _of_header(path, header), 0
        self.columns = wanted.features(header)
        need_memory(8 * most * len(self.columns), f"{path}, as numbers,", SPLIT)
        self.features, self.target = np.empty((most, len(self.columns))), []
        self.places = {name: k for k, name in enumerate(self.columns)}

    def add(self, block: Iterable[tuple[str, pa.Array | np.ndarray]], rows: int) -> None:
        """The cells of these rows, by column."""
        here = slice(self.rows, self.rows + rows)
        for name, cells in block:
            if (place := self.places.get(name)) is not None:
                values, strange = _numbers(cells)
                self.features[here, place] = values
                if strange or not np.isfinite(values).all():
                    self.problems.add_column(name, values, strange, self.rows)
            elif name == self.wanted.target and name not in self.wanted.ignore:
                self.target.append(_numbers_or_words(cells))
        self.rows += rows

    def table(self) -> Table:
        problems, header = self.problems, set(self.header)
        lacks = tuple(name for name in self.wanted.ignore if name not in header)
        if not self.rows and not problems.whole:
            problems.whole.append("the file has columns but no rows")
        there = self.wanted.target in header and self.wanted.target not in self.wanted.ignore
        target = np.concatenate(self.target or [np.empty(0)]) if there else None
        return Table(problems.table, self.columns, self.features[: self.rows], target, problems, lacks)


def _of_header(path: Path, header: Sequence[str]) -> Problems:
    problems = Problems(str(path))
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        also = f", and so are columns {names(twice[1:], SHORT)}" if len(twice) > 1 else ""
        problems.whole.append(f"two columns are called {quoted(twice[0], NAME)}{also}. Rename one")
    if not all(name.strip() for name in header):
        problems.whole.append("a column has no name (an index that was saved with the table?). Name or remove it")
    return problems


def _numbers(cells: pa.Array | np.ndarray) -> tuple[np.ndarray, dict[int, object]]:
    """As float64, with NaN where there is no number; and what stands there, None where nothing does."""
    if isinstance(cells, np.ndarray):
        return as_numbers(cells)
    values, words = _parsed(cells)
    missing = {row: None for row in _where(cells.is_null())} if cells.null_count else {}
    return values, {**words, **missing}


def _numbers_or_words(cells: pa.Array | np.ndarray) -> np.ndarray:
    """As float64 if all are numbers or missing (NaN), otherwise as they were written, None where they are missing."""
    if isinstance(cells, np.ndarray):
        return cells
    values, words = _parsed(cells)
    if not words:
        return values
    found = np.empty(len(values), dtype=object)
    found[:] = [words.get(row, value) for row, value in enumerate(values.tolist())]
    found[_where(cells.is_null())] = None
    return found


def _parsed(cells: pa.Array) -> tuple[np.ndarray, dict[int, object]]:
    """Numbers as they are; text as everybody writes numbers, and what else it is."""
    kind = cells.type
    if pa.types.is_dictionary(kind):
        cells, kind = cells.dictionary_decode(), kind.value_type
    if pa.types.is_boolean(kind):
        cells, kind = pc.cast(cells, pa.uint8()), pa.uint8()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return pc.cast(cells, pa.float64(), safe=False).to_numpy(zero_copy_only=False), {}
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        cells = pa.array([None if cell is None else str(cell) for cell in cells.to_pylist()], pa.string())
    for tidied in (lambda: cells, lambda: _tidied(cells)):
        try:
            return pc.cast(tidied(), pa.float64()).to_numpy(zero_copy_only=False), {}
        except pa.ArrowInvalid:
            continue
    coded = cells.dictionary_encode()
    words: list[str] = coded.dictionary.to_pylist()
    plain = [PLAIN.fullmatch(word) is not None for word in words]
    numbers = np.array([float(word) if is_plain else np.nan for word, is_plain in zip(words, plain, strict=True)] + [np.nan])
    codes = pc.fill_null(coded.indices, len(words)).to_numpy(zero_copy_only=False)
    strange = np.flatnonzero(~np.array([*plain, True])[codes]).tolist()
    return numbers[codes], {row: words[codes[row]] for row in strange}


def _tidied(cells: pa.Array) -> pa.Array:
    """Without the blanks around a number and the plus before it, which Arrow does not read."""
    trimmed = pc.utf8_trim(cells, " \t\r\n\xa0")  # pyright: ignore[reportAttributeAccessIssue]  # made when it is imported
    return pc.replace_substring_regex(trimmed, r"^\+([0-9.])", r"\1")  # pyright: ignore[reportAttributeAccessIssue]


def _where(mask: pa.Array) -> list[int]:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False)).tolist()


def _read_csv(path: Path, wanted: _Wanted) -> Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            delimiter = _delimiter(file)
            lines = csv.reader(file, delimiter=delimiter)
            header = [name.strip() for name in next((row for row in lines if row), [])]
        if not header:
            raise InvalidInput(f"{path}: the file holds nothing but blank lines.")
        most = _most_rows(path)
        size = min(max(BLOCK, LINES * path.stat().st_size // most, LINES * sum(map(len, header))), LARGEST_BLOCK)
        try:
            table = _Filling(path, header, wanted, most)
            for block in _parsed_blocks(path, lines.line_num, len(header), delimiter, size):
                table.add(zip(header, block, strict=True), len(block[0]))
        except pa.ArrowException:  # something is wrong with the file, and it takes longer to say what
            table = _Filling(path, header, wanted, most)
            for block in _careful_blocks(path, header, delimiter, table.problems):
                table.add(zip(header, block, strict=True), len(block[0]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: not a CSV file in UTF-8 ({shortened(error)}).") from error
    return table.table()


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


def _most_rows(path: Path) -> int:
    """At least as many as the file has; fewer only if it grows meanwhile."""
    lines = 1
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            returns = block.count(b"\r")
            lines += block.count(b"\n") + (returns and returns - block.count(b"\r\n"))
    return lines


def _parsed_blocks(path: Path, skipped: int, columns: int, delimiter: str, size: int) -> Iterator[list[pa.Array]]:
    """The cells below the header as text, column by column, an empty one as null. Anything unusual is an ArrowException."""
    places = [str(k) for k in range(columns)]
    reader = arrow_csv.open_csv(
        path,
        arrow_csv.ReadOptions(column_names=places, skip_rows=skipped, block_size=size),
        arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(places, pa.string()), null_values=[""], strings_can_be_null=True, check_utf8=True
        ),
    )
    with reader:
        for batch in reader:
            if batch.num_rows:
                yield batch.columns


def _careful_blocks(path: Path, header: Sequence[str], delimiter: str, problems: Problems) -> Iterator[list[pa.Array]]:
    """The same by Python's own parser, which takes twenty times longer; rows of another length are told."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = (row for row in csv.reader(file, delimiter=delimiter) if row)
        next(rows)
        short, numbered, filler = [], enumerate(rows, 1), ["0"] * len(header)
        while block := list(islice(numbered, ROWS)):
            short += [(number, len(row)) for number, row in block if len(row) != len(header)]
            whole = [row if len(row) == len(header) else filler for _, row in block]
            yield [pa.array([cell or None for cell in cells], pa.string()) for cells in zip(*whole, strict=True)]
    if short:
        (row, length), more = short[0], f" (and {len(short) - 1:,} more rows have other numbers of values)" * (len(short) > 1)
        problems.whole.append(f"row {row} has {length} values, but there are {len(header)} columns{more}. Mend or remove it")


def _read_parquet(path: Path, wanted: _Wanted) -> Table:
    try:
        with pq.ParquetFile(path) as file:
            header = [name for name in file.schema_arrow.names if name == wanted.target or name not in _index(file.schema_arrow)]
            table = _Filling(path, header, wanted, file.metadata.num_rows)
            if not table.problems.whole:
                read = [name for name in header if name not in wanted.ignore]
                for group in range(file.num_row_groups):  # a column at a time: all at once would take as much memory again
                    cells = ((name, _column(file, group, name)) for name in read)
                    table.add(cells, file.metadata.row_group(group).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{path}: not a Parquet file ({shortened(error)}).") from error
    return table.table()


def _column(file: pq.ParquetFile, group: int, name: str) -> pa.Array:
    return file.read_row_group(group, columns=[name]).column(name).combine_chunks()


def _index(schema: pa.Schema) -> set[str]:
    """Columns that are the index of a data frame, which pandas writes beside the others."""
    try:
        said = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return {name for name in said if isinstance(name, str)}
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()


def _read_npz(path: Path, wanted: _Wanted) -> Table:
    """Arrays X [N, d] and the target (y, or what is asked for) [N]; `columns` may name the features."""
    target = wanted.target
    try:
        _check_unpacked(path, ["X", "columns", target])
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name in ("X", "columns", target)}
            others = shortened(", ".join(file.files)) or "nothing"
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path}: not an NPZ file of plain arrays ({shortened(error)}).") from error
    if "X" not in arrays or arrays["X"].ndim != 2:
        raise InvalidInput(f"{path}: an NPZ file needs a two-dimensional array X; it has {others}.")
    X = arrays["X"]
    if X.dtype.kind not in "biufUS" or (target in arrays and arrays[target].dtype.kind not in "biufUS"):
        raise InvalidInput(f"{path}: X and {shortened(target)} must hold one real number or word in each cell.")
    if target in arrays and arrays[target].shape != (len(X),):
        raise InvalidInput(f"{path}: {shortened(target)} has shape {arrays[target].shape}, but X has {len(X)} rows.")
    header = [str(name) for name in arrays.get("columns", np.array([f"x{k}" for k in range(X.shape[1])])).reshape(-1)]
    if len(header) != X.shape[1] or len(set(header)) != len(header) or (target in header and target in arrays):
        raise InvalidInput(f"{path}: `columns` must name each of the {X.shape[1]} columns of X once.")
    given = {**{name: X[:, k] for k, name in enumerate(header)}, **({target: arrays[target]} if target in arrays else {})}
    table = _Filling(path, list(given), wanted, len(X))
    if table.columns == tuple(header) and X.dtype == np.float64 and X.flags.c_contiguous:
        table.features = X  # one copy is enough
    for start in range(0, len(X), ROWS):
        rows = slice(start, min(start + ROWS, len(X)))
        table.add(((name, values[rows]) for name, values in given.items()), rows.stop - rows.start)
    return table.table()


def _check_unpacked(path: Path, arrays: Sequence[str]) -> None:
    """Refuses, by the archive's own list of contents, what would fill the memory; nothing is unpacked here."""
    with zipfile.ZipFile(path) as archive:
        parts = [part for part in archive.infolist() if part.filename.removesuffix(".npy") in arrays]
    unpacked, size = sum(part.file_size for part in parts), path.stat().st_size
    need_memory(unpacked, f"{path}, unpacked,", SPLIT)
    if unpacked > max(UNPACKED, RATIO * size):
        raise InvalidInput(
            f"{path}: {amount(size)} that unpack to {amount(unpacked)}, {unpacked // size:,} times as much, are not opened: "
            "it may be made to fill the memory. If the table is yours, save it with np.savez, which does not compress."
        )
