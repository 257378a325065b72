"""What a training says of itself while it runs: training.csv, from which the curve is drawn, and TensorBoard's files."""

from __future__ import annotations

import csv
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from milodo.errors import LARGEST, InvalidInput, shortened, whole
from milodo.files import is_file, read_csv, write_csv


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


COLUMNS = [field.name for field in fields(Row)]


class Log:
    """training.csv and, where tensorboard is installed, its event files."""

    def __init__(self, folder: Path, rows: int, update: int) -> None:
        """Of an earlier start only the first `rows` are kept: what a killed run wrote after them is about to be written again."""
        self.file = folder / "training.csv"
        kept = read_rows(self.file)[:rows] if self.file.exists() else []
        write_csv(self.file, COLUMNS, map(_words, kept))
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.board: Any = None
        else:
            # Ctrl-C may come while the writer is being woken, which then sleeps until its next flush: two minutes by default.
            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=update + 1, flush_secs=5)

    def write(self, row: Row) -> None:
        with self.file.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(_words(row))
        if self.board is not None:
            for name in ("loss", "norm", "lr", "validation"):
                if not math.isnan(value := getattr(row, name)):
                    self.board.add_scalar(name, value, row.update)
            if row.remark:
                self.board.add_text("remark", row.remark, row.update)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def read_rows(path: Path) -> list[Row]:
    """Of training.csv; a last line that was cut off by a kill is dropped."""
    kinds = {"update": _count, "stage": _count, "epoch": _count, "remark": str}
    if not is_file(path):
        raise InvalidInput(f"no {path.name} in {str(path.parent)!r}: nothing was trained there.")
    header, *lines = read_csv(path, "train") or [[]]
    rows = []
    for number, line in enumerate(lines, 2):
        try:
            cells = dict(zip(header, line, strict=True))
            rows.append(Row(**{name: kinds.get(name, _number)(cells[name]) for name in COLUMNS}))
        except (KeyError, ValueError) as error:
            if number == len(lines) + 1:
                break
            raise InvalidInput(f"{path}, line {number}: not a row of a training ({shortened(error)}).") from error
    return rows


def _count(word: str) -> int:
    return whole("what is counted", int(word), most=LARGEST)


def _number(word: str) -> float:
    return float(word) if word else math.nan


def _words(row: Row) -> list[Any]:
    return ["" if isinstance(value, float) and math.isnan(value) else value for value in asdict(row).values()]
