"""What a training says of itself while it runs: training.csv, from which the curve is drawn, and TensorBoard's files."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from milodo.errors import LARGEST, InvalidInput, shortened, whole
from milodo.files import atomic, is_file


@dataclass(frozen=True)
class Row:
    """One batch, or one validation (then loss, norm and lr are NaN), or one remark."""

    update: int
    stage: int
    epoch: int
    seconds: float
    loss: float = math.nan
    """Mean meta-loss of the batch's segments."""
    norm: float = math.nan
    """Of the meta-gradient before clipping, the largest of the batch's segments."""
    lr: float = math.nan
    validation: float = math.nan
    """Mean log10 gap after the validation's iterations."""
    remark: str = ""


class Log:
    """training.csv and, where tensorboard is installed, its event files."""

    def __init__(self, folder: Path, rows: int, update: int) -> None:
        """Of an earlier start only the first `rows` are kept: what a killed run wrote after them is about to be written again."""
        self.file = folder / "training.csv"
        write_rows(self.file, read_rows(self.file)[:rows] if self.file.exists() else [])
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.board: Any = None
        else:
            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=update + 1)

    def write(self, row: Row) -> None:
        with self.file.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(_words(row))
        if self.board is not None:
            for name in ("loss", "norm", "lr", "validation"):
                value = getattr(row, name)
                if not math.isnan(value):
                    self.board.add_scalar(name, value, row.update)
            if row.remark:
                self.board.add_text("remark", row.remark, row.update)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    with atomic(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Row))
        writer.writerows(map(_words, rows))


def read_rows(path: Path) -> list[Row]:
    """Of training.csv; a last line that was cut off by a kill is dropped."""
    kinds = {"update": _count, "stage": _count, "epoch": _count, "remark": str}
    if not is_file(path):
        raise InvalidInput(f"no {path.name} in {str(path.parent)!r}: nothing was trained there.")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read ({shortened(error)}). The file was damaged; train again.") from error
    rows = []
    for number, line in enumerate(lines):
        try:
            rows.append(Row(**{field.name: kinds.get(field.name, _number)(line[field.name]) for field in fields(Row)}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if number == len(lines) - 1:
                break
            raise InvalidInput(f"{path}, line {number + 2}: not a row of a training ({shortened(error)}).") from error
    return rows


def _count(word: str) -> int:
    return whole("what is counted", int(word), most=LARGEST)


def _number(word: str) -> float:
    return float(word) if word else math.nan


def _words(row: Row) -> list[Any]:
    return ["" if isinstance(value, float) and math.isnan(value) else value for value in asdict(row).values()]
