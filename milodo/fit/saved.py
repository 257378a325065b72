"""A fit that was saved: fit.json read again, checked, and put to use on new rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from scipy.special import expit

from milodo.errors import LARGEST, InvalidInput, quoted, shortened
from milodo.files import is_file, is_folder, read_versioned_json
from milodo.fit.cells import TEXT, Kind, Problems, names, numbers
from milodo.fit.sites import SHORT, label
from milodo.fit.task import Fit, SiteFacts
from milodo.network import Ledger, Spent
from milodo.status import Status

if TYPE_CHECKING:  # who predicts arrays needs no reader of files
    from milodo.fit.readers import Table

NAME = "fit.json"
LARGEST_FILE = 1 << 28
"""Bytes of a fit.json: more than ten million coefficients."""
ENCODED = Kind(TEXT.begins, "encode these columns as before", "The fit knows this column as numbers: encode it as before.")
PREDICTED = Kind(
    "text in the target", "ignore it to predict all the same",
    "The fit predicts numbers. Ignore the column to predict all the same.", "ignore",
)  # fmt: skip
Number = Annotated[float, Field(allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Names = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]  # JSON has lists alone
Numbers = Annotated[tuple[Number, ...], Field(strict=False)]


class SavedTask(BaseModel):
    """What was asked for, as far as it is needed again."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    target: str
    loss: Literal["squared", "logistic"]
    l1: Penalty
    l2: Penalty = 0.0
    graph: str = "ring"
    intercept: bool = True
    standardise: bool = False
    method: str | None = None
    messages: str | None = None
    tolerance: Annotated[float, Field(gt=0)] = 1e-8
    iterations: Annotated[int, Field(ge=1, le=LARGEST)] = 200_000


class SavedSite(BaseModel):
    """What was said of a site before the fit."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    name: str
    rows: Count
    columns: Count
    classes: dict[str, Count] | None = None


class SavedSpent(BaseModel):
    """Rounds and bytes of a part of the traffic."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    rounds: Count
    bytes: Count


class SavedLedger(BaseModel):
    """What the rounds and bytes were for."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    setup: SavedSpent
    method: SavedSpent
    checks: SavedSpent

    @property
    def ledger(self) -> Ledger:
        parts = (self.setup, self.method, self.checks)
        return Ledger(*(Spent(part.rounds, part.bytes) for part in parts))


class Saved(BaseModel):
    """What came out. A number that JSON has no word for, an infinity or none at all, is null."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    task: SavedTask
    columns: Names
    coefficients: Numbers
    intercept: Number
    standardised: Numbers | None = None
    classes: Annotated[tuple[str, str], Field(strict=False)] | None = None
    samples: Annotated[int, Field(ge=1, le=LARGEST)]
    method: str = ""
    why: str = ""
    parameters: dict[str, Any] = {}
    objective: Number | None = None
    unit: Number | None = None
    gap: Number | None = None
    residual: Number | None = None
    consensus: Number | None = None
    iterations: Count = 0
    status: Literal["CONVERGED", "STEPS", "TIME", "DIVERGED", "INTERRUPTED"] = "CONVERGED"
    rounds: Count = 0
    bytes: Count = 0
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    traffic: SavedLedger | None = None
    sites: Annotated[tuple[SavedSite, ...], Field(strict=False)] = ()
    warnings: Annotated[tuple[str, ...], Field(strict=False)] = ()
    sha256: str | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if len(self.coefficients) != len(self.columns):
            raise ValueError(f"{len(self.coefficients)} coefficients for {len(self.columns)} columns")
        if len(set(self.columns)) != len(self.columns) or self.task.target in self.columns:
            raise ValueError("a column occurs twice, or is the target as well")
        if (self.classes is None) != (self.task.loss == "squared") or len(set(self.classes or "ab")) != 2:
            raise ValueError(f"the {self.task.loss} loss with classes {quoted(self.classes)}")
        if self.traffic is not None and (self.traffic.ledger.rounds, self.traffic.ledger.bytes) != (self.rounds, self.bytes):
            raise ValueError("rounds and bytes of set-up, method and checks do not add up to those of all")
        if self.sha256 is not None and self.sha256 != self.fit.sha256:
            raise ValueError("columns, coefficients and intercept are not those that were saved: their sha256 is another")
        return self

    @property
    def fit(self) -> Fit:
        """As it was before it was saved."""
        plain = {name: getattr(self, name) for name in type(self).model_fields if name not in ("task", "sha256")}
        for name in ("objective", "unit", "gap", "residual", "consensus"):
            plain[name] = math.nan if plain[name] is None else plain[name]
        arrays = {"coefficients": np.array(self.coefficients), "standardised": self.standardised and np.array(self.standardised)}
        sites = tuple(SiteFacts(**site.model_dump()) for site in self.sites)
        traffic = Ledger() if self.traffic is None else self.traffic.ledger  # a file of an earlier version does not say
        return Fit(**{**plain, **arrays, "sites": sites, "traffic": traffic, "status": Status[self.status]})

    def features(self, table: Table) -> np.ndarray:
        """The columns of the fit [N, d], found by their names."""
        there, known = {*table.columns}, {*self.columns}
        problems = Problems(table.name, list(table.problems.whole))
        if lacks := [column for column in self.columns if column not in there]:
            problems.whole.append(f"no column {names(lacks, SHORT)}, which the fit was made with. Add it, or fit without it")
        extra = [column for column in table.columns if column not in known]
        if extra:
            were = "was" if len(extra) == 1 else "were"
            it = "it" if len(extra) == 1 else "them"
            problems.whole.append(f"column {names(extra, SHORT)} {were} not there when the model was fitted. Ignore {it}")
        for found in table.problems.found.values():
            if found.column in known:
                problems.add(ENCODED if found.kind is TEXT else found.kind, found.column, found.row, found.value, found.count)
        problems.refuse(*["ignore"] * bool(extra))
        order = [table.columns.index(column) for column in self.columns] if table.columns != self.columns else []
        return table.features[:, order] if order else table.features

    def scores(self, X: np.ndarray) -> np.ndarray:
        """Xw + the intercept: the prediction itself, or the log odds of the second class."""
        return X @ np.array(self.coefficients) + self.intercept

    def probabilities(self, X: np.ndarray) -> np.ndarray:
        """Of both classes [N, 2]."""
        scores = self.scores(X)
        return np.column_stack((expit(-scores), expit(scores)))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Numbers, or classes as they were written."""
        return self.scores(X) if self.classes is None else np.array(self.classes)[(self.scores(X) > 0).astype(int)]

    def quality(self, name: str, X: np.ndarray, target: np.ndarray) -> float:
        """R² of the predictions, or the fraction of classes that are right."""
        if self.classes is None:
            y = numbers(name, self.task.target, target, PREDICTED)
            spread = float(((y - y.mean()) ** 2).sum())
            return 1 - float(((y - self.scores(X)) ** 2).sum()) / spread if spread else math.nan
        labels = [label(value) for value in target.tolist()]
        strange = next((word for word in labels if word not in self.classes), None)
        if strange is not None:
            both = " and ".join(quoted(word, 30) for word in self.classes)
            raise InvalidInput(
                f"{name}: column {quoted(self.task.target)} holds {quoted(strange)}, a class the fit does not know ({both}). "
                "Ignore the column to predict all the same.",
                "ignore",
            )
        return float(np.mean(self.predict(X) == np.array(labels)))


def read_fit(path: str | Path) -> Saved:
    """fit.json, or the one in a folder."""
    file = Path(path) / NAME if is_folder(path) else Path(path)
    if not is_file(file):
        raise InvalidInput(f"no fit {quoted(str(path))}. Give the folder that `milodo solve` wrote to, or its {NAME}.")
    if file.stat().st_size > LARGEST_FILE:
        raise InvalidInput(f"{file}: larger than {LARGEST_FILE >> 20} MiB, which no fit is.")
    content = read_versioned_json(file)
    try:
        return Saved.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = shortened(".".join(map(str, first["loc"])))
        said = shortened(first["msg"].removeprefix("Value error, "), 200)
        raise InvalidInput(f"{file}: not a fit of `milodo solve` ({': '.join(filter(None, (place, said)))}).") from error
