"""What the cells of a table hold: numbers, or problems, which are gathered so that one sentence can tell all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from milodo.errors import InvalidInput, quoted

BLANK = "[ \t\r\n\xa0]*"
PLAIN = re.compile(
    rf"{BLANK}[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf|infinity){BLANK}", re.IGNORECASE | re.ASCII
)
"""A number as everybody writes it. Python also reads 1_000, and digits of other alphabets."""
DECIMAL_COMMA = re.compile(rf"{BLANK}[+-]?[0-9.]*,[0-9]+(e[+-]?[0-9]+)?{BLANK}", re.IGNORECASE)
ABSENT = frozenset(("na", "n/a", "#n/a", "null", "none", "missing", "?", "-", "."))
"""Words that stand for a missing value in other programs."""
LONGEST = 360
"""Characters of a list of columns; of longer ones the message says how many are left out."""
SENTENCES = 3
"""Kinds of problems that one message tells."""
NAME, WORD = 24, 16
"""Characters of a column's name and of a cell in such a list."""


@dataclass(frozen=True)
class Kind:
    """Of problem: how a list of columns begins and what to do about them; `alone` about a single column."""

    begins: str
    advice: str
    alone: str
    remedy: str | None = None


GAP = Kind("missing or infinite cells in", "fill them in, or remove the rows", "Fill it in, or remove the row.")
TEXT = Kind("text in", "ignore these columns, or encode them first", "Ignore it, or encode it first.", "ignore")
COMMA = Kind("decimal commas in", "write points, such as 1.5 for 1,5", "Write points, such as 1.5 for 1,5.")
ODD = Kind("numbers that are not read as such in", "write them in plain digits", "Write it in plain digits")
CLASSES = Kind(
    "text in the target",
    "the squared loss needs numbers; use the logistic loss for classes",
    "The squared loss needs numbers; use the logistic loss for classes.",
    "loss",
)


@dataclass(frozen=True)
class Found:
    """Problems of one kind in one column: the first row that has one, counted from 1, what it holds, and how many rows do."""

    kind: Kind
    column: str
    row: int
    value: object
    count: int


@dataclass
class Problems:
    """Of one table. `whole` are sentences about its header or rows, each with what to do."""

    table: str
    whole: list[str] = field(default_factory=list)
    found: dict[tuple[str, str], Found] = field(default_factory=dict)

    def add(self, kind: Kind, column: str, row: int, value: object, count: int) -> None:
        known = self.found.get((kind.begins, column))
        found = Found(kind, column, row, value, count)
        self.found[kind.begins, column] = replace(known, count=known.count + count) if known else found

    def add_column(self, column: str, values: np.ndarray, strange: dict[int, object], before: int = 0, text: Kind = TEXT) -> None:
        """What is wrong with some rows of a column, after `before` others: `strange` says what was written where `values` has NaN
        for it, None where nothing was. `text` is what to say of words."""
        first: dict[Kind, tuple[int, object, int]] = {}
        for row in np.flatnonzero(~np.isfinite(values)).tolist():
            value = strange.get(row, float(values[row]))
            kind = kind_of(value)
            at, what, count = first.get(kind, (row, value, 0))
            first[kind] = (at, what, count + 1)
        for kind, (row, value, count) in first.items():
            self.add(text if kind is TEXT else kind, column, before + row + 1, value, count)

    def refuse(self, *remedies: str) -> None:
        """Raises all there is; `remedies` are those of the sentences about the whole."""
        groups: dict[Kind, list[Found]] = {}
        for found in self.found.values():
            words = {TEXT.begins, CLASSES.begins} & {begins for begins, column in self.found if column == found.column}
            if not words or found.kind.begins in words:  # of a column of words no more needs to be said
                groups.setdefault(found.kind, []).append(found)
        remedies = (*remedies, *(kind.remedy for kind in groups if kind.remedy and kind.remedy not in remedies))
        listed = [found for group in groups.values() for found in group]
        if len(listed) == 1 and not self.whole:
            raise InvalidInput(f"{self.table}: {alone(listed[0])}", *remedies)
        lists = {kind: [_briefly(found) for found in group] for kind, group in groups.items()}
        needs = {kind: sum(len(word) + 2 for word in words) for kind, words in lists.items()}
        taken, share = sum(needs.values()), LONGEST // max(1, min(SENTENCES, len(self.whole) + len(groups)))
        rooms = {kind: max(share, LONGEST - (taken - needs[kind])) for kind in lists}
        parts = self.whole + [f"{kind.begins} {some(words, rooms[kind])}: {kind.advice}" for kind, words in lists.items()]
        if parts:
            parts[SENTENCES:] = ["and there are problems of other kinds"] if len(parts) > SENTENCES else []
            raise InvalidInput(f"{self.table}: {'; '.join(parts)}.", *remedies)


@lru_cache(maxsize=1 << 12)
def kind_of(value: object) -> Kind:
    """Of a cell that is no finite number."""
    text = str(value)
    if value is None or isinstance(value, float) or PLAIN.fullmatch(text) or not text.strip() or text.strip().lower() in ABSENT:
        return GAP
    if DECIMAL_COMMA.fullmatch(text):
        return COMMA
    try:
        float(text)
    except ValueError:
        return TEXT
    return ODD


def alone(found: Found) -> str:
    """The whole sentence about the only column that has a problem."""
    value, advice = found.value, found.kind.alone
    if found.kind is GAP:
        written = quoted(value) if isinstance(value, str) else str(value)
        said = "missing" if value is None or value != value or not str(value).strip() else written
    elif found.kind is COMMA:
        said = f"{quoted(value)}: decimal commas are not read"
    elif found.kind is ODD:
        said, advice = f"{quoted(value)}, which is not read as a number", f"{advice}, e.g. {float(str(value)):.15g}."
    else:
        said = f"{quoted(value)}, not a number"
    more = f" (the first of {found.count:,} such rows)" if found.count > 1 else ""
    return f"column {quoted(found.column)}, row {found.row} is {said}{more}. {advice}"


def _briefly(found: Found) -> str:
    """'age' (row 17: 'old'; 3 rows)"""
    value = "" if found.value is None or found.kind is GAP else f": {quoted(found.value, WORD)}"
    many = f"; {found.count:,} rows" if found.count > 1 else ""
    return f"{quoted(found.column, NAME)} (row {found.row}{value}{many})"


def some(words: Iterable[str], room: int = LONGEST) -> str:
    """As many as there is room for, and how many are left out."""
    words, shown = list(words), 0
    while shown < len(words) and (room := room - len(words[shown]) - 2) > 0:
        shown += 1
    shown = max(1, shown)
    left = f", and {len(words) - shown:,} more" if shown < len(words) else ""
    return ", ".join(words[:shown]) + left


def names(columns: Iterable[str], room: int = LONGEST) -> str:
    """Of columns, in quotes."""
    return some([quoted(column, NAME) for column in columns], room)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) or PLAIN.fullmatch(str(value)) is not None


def missing(values: np.ndarray) -> list[int]:
    """Rows in which a target that may be words has nothing."""
    if values.dtype.kind != "O":
        return np.flatnonzero(np.isnan(values)).tolist() if values.dtype.kind == "f" else []
    return [row for row, cell in enumerate(values.tolist()) if cell is None or cell != cell or not str(cell).strip()]


def as_numbers(values: np.ndarray) -> tuple[np.ndarray, dict[int, object]]:
    """A column as float64, with NaN where there is no number; and what stands there."""
    if values.dtype.kind in "biuf":
        return values.astype(np.float64, copy=False), {}
    cells: list[Any] = values.tolist()
    strange = {row: cell for row, cell in enumerate(cells) if not is_number(cell)}
    found = np.array([np.nan if row in strange else float(cell) for row, cell in enumerate(cells)], dtype=np.float64)
    return found, strange


def numbers(table: str, column: str, values: np.ndarray, text: Kind = TEXT) -> np.ndarray:
    """A column as numbers, all of them finite; `text` is what to say of words."""
    found, strange = as_numbers(values)
    if not np.isfinite(found).all():
        problems = Problems(table)
        problems.add_column(column, found, strange, text=text)
        problems.refuse()
    return found
