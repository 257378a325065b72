"""The curve of a cross-validation: how exact each penalty has to be, and which is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

RULES = ("min", "1se")
"""The least mean loss; or the largest penalty whose mean loss is within one standard error of the least."""
HARMLESS, REACH = 0.1, 5.0
"""What a tolerance may be of how much the curve changes or lies above its minimum; and within how many tolerances of what decides
a penalty is solved again."""


@dataclass(frozen=True)
class Decided:
    """For every penalty the mean over folds and its standard error; where the mean is least; and what the rule chooses."""

    mean: np.ndarray
    error: np.ndarray
    best: int
    chosen: int


def decide(losses: np.ndarray, rule: str, weights: np.ndarray | None = None) -> Decided:
    """From losses [penalties, folds], the penalties falling; folds count alike unless they have weights."""
    folds = np.ones(losses.shape[1]) if weights is None else weights
    mean = _sums(losses * folds) / _sums(folds)
    # Exact sums: every site decides by the same losses, and must not by how its machine adds them up.
    error = np.sqrt(_sums(np.square(losses - (_sums(losses) / len(folds))[:, None])) / (len(folds) - 1) / len(folds))
    best = int(mean.argmin())
    return Decided(mean, error, best, best if rule == "min" else int(np.flatnonzero(mean <= mean[best] + error[best])[0]))


def _sums(rows: np.ndarray) -> np.ndarray:
    """Of each row [*, m], rounded once."""
    return np.array([math.fsum(row) for row in rows.reshape(-1, rows.shape[-1]).tolist()]).reshape(rows.shape[:-1])


@dataclass
class Curve:
    """Losses as they come in, and to which tolerance they were computed."""

    rule: str
    unit: float
    """The objective without features, to which tolerances are relative."""
    tight: float
    """The tolerance of what may be chosen."""
    coarse: float = 1e-2
    """The loosest."""
    exact: bool = False
    """Whether all losses are, whatever the tolerance."""
    weights: np.ndarray | None = None
    losses: list[np.ndarray] = field(default_factory=list)
    tolerances: list[float] = field(default_factory=list)

    def add(self, losses: np.ndarray, tolerance: float) -> None:
        self.put(len(self.losses), losses, tolerance)

    def put(self, p: int, losses: np.ndarray, tolerance: float) -> None:
        """Those of penalty p."""
        self.losses[p : p + 1], self.tolerances[p : p + 1] = [losses], [0.0 if self.exact else tolerance]

    @property
    def decided(self) -> Decided:
        return decide(np.array(self.losses), self.rule, self.weights)

    def next_tolerance(self) -> float:
        """While the curve falls steeply, and where it lies far above its minimum, less is enough."""
        if len(self.losses) < 2:
            return self.tight
        mean = self.decided.mean / self.unit
        harmless = HARMLESS * max(abs(mean[-1] - mean[-2]), mean[-1] - mean.min())
        return float(np.clip(harmless, self.tight, max(self.coarse, self.tight)))

    def doubtful(self) -> int | None:
        """A penalty solved coarsely that might be chosen, or decide what is, if it were solved better; the likeliest."""
        now, tolerances = self.decided, np.array(self.tolerances)
        limits = [now.mean[now.best]] + ([now.mean[now.best] + now.error[now.best]] if self.rule == "1se" else [])
        away = np.min([np.abs(now.mean - limit) for limit in limits], axis=0)
        found = np.flatnonzero((tolerances > self.tight) & (away <= REACH * tolerances * self.unit))
        return int(found[now.mean[found].argmin()]) if len(found) else None
