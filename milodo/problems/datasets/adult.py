"""Census Income, also called Adult (Kohavi 1996): who earns more than 50,000 dollars a year, from 14 attributes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from milodo.errors import InvalidInput, quoted
from milodo.problems.datasets.store import File, checked_part, data_folder, obtained, shown

FILES = {
    "train": File("adult.data", md5="5d7c39d7b8804f071cdd1f2a7c460872"),
    "test": File("adult.test", md5="35238206dfdf7f1fe215bbb874adecdc"),
}
ATTRIBUTES = 14
NUMBERS = (0, 2, 4, 10, 11, 12)
"""Columns that are numbers: age, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week."""
MISSING = "?"
LABELS = {"<=50K": 0.0, ">50K": 1.0}


def census(part: str) -> tuple[np.ndarray, np.ndarray]:
    """X float64 [M, 14] and y in {0, 1} (1: more than 50K) of 'train' or 'test'; read-only, because all callers share them.

    Rows with a missing value are dropped: 30,162 and 15,060 remain. A category is the number of its name in the alphabetical
    list of those that the training part has. Then every column is scaled to mean 0 and standard deviation 1 over the training
    part; the test part is shifted and scaled by the same numbers.
    """
    return _census(checked_part("Census Income", part), data_folder())


@cache
def _census(part: str, data: Path) -> tuple[np.ndarray, np.ndarray]:
    train = _rows(obtained(data, "adult", FILES["train"]))
    names = {k: sorted({row[k] for row in train}) for k in range(ATTRIBUTES) if k not in NUMBERS}
    X, y = _numbers(train, names)
    mean, scale = X.mean(0), X.std(0)
    if part == "test":
        X, y = _numbers(_rows(obtained(data, "adult", FILES["test"])), names)
    X = (X - mean) / np.where(scale > 0, scale, 1.0)
    for array in (X, y):
        array.setflags(write=False)
    return X, y


def _rows(path: Path) -> list[list[str]]:
    """Fields of the complete rows. adult.test opens with a remark, and its labels end with a full stop."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("|"):
            continue
        row = [field.strip() for field in line.split(",")]
        row[-1] = row[-1].removesuffix(".")
        if len(row) != ATTRIBUTES + 1 or row[-1] not in LABELS:
            raise InvalidInput(
                f"{shown(path)}, line {number}: expected {ATTRIBUTES} attributes and <=50K or >50K, but found {quoted(line)}. "
                "Put the original there."
            )
        if MISSING not in row:
            rows.append(row)
    if not rows:
        raise InvalidInput(f"{shown(path)} has no complete row. Put the original there.")
    return rows


def _numbers(rows: list[list[str]], names: dict[int, list[str]]) -> tuple[np.ndarray, np.ndarray]:
    codes = {k: {name: float(code) for code, name in enumerate(known)} for k, known in names.items()}
    X = np.array([[_number(row[k], codes.get(k)) for k in range(ATTRIBUTES)] for row in rows])
    return X, np.array([LABELS[row[-1]] for row in rows])


def _number(field: str, codes: dict[str, float] | None) -> float:
    try:
        return float(field) if codes is None else codes[field]
    except (KeyError, ValueError) as error:
        what = "number" if codes is None else "category of the training part"
        raise InvalidInput(f"Census Income has {quoted(field)}, which is no {what}. Put the original files there.") from error
