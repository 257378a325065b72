"""How weights change with the number of iterations, at all nodes alike."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from milodo.learned.base import Settings

MOST_ANNEALED = 4.0
"""By how much annealing reduces 1 - β_i at most."""
LONGEST = 100
"""Numbers of a schedule at most."""
LEAST_FACTOR, MOST_FACTOR = 0.05, 20.0
"""Of a schedule."""
Iterations = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=LONGEST, strict=False)]
Shares = Annotated[tuple[Annotated[float, Field(ge=LEAST_FACTOR, le=1)], ...], Field(strict=False)]
Factors = Annotated[tuple[Annotated[float, Field(ge=LEAST_FACTOR, le=MOST_FACTOR)], ...], Field(strict=False)]


class Schedule(Settings):
    """Factors of weights at some iterations: in between they change evenly on a logarithmic scale, before the first and after the
    last not at all.

    >>> Schedule(at=(0, 100), step=(1.0, 0.25), dual=(1.0, 1.0)).factors(50)
    (0.5, 1.0)
    """

    at: Iterations
    """Increasing."""
    step: Shares
    """Of the largest p_i."""
    dual: Factors
    """Of D_i = p_ij,2 / p_ij,1, so dual steps p_ij,1 are divided by it."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if any(later <= earlier for earlier, later in pairwise(self.at)):
            raise ValueError(f"schedule: at = {list(self.at)} must increase.")
        if len({len(values) for values in (self.at, self.step, self.dual)}) > 1:
            raise ValueError("schedule: give as many numbers for step and for dual as for at.")
        return self

    def factors(self, k: int) -> tuple[float, float]:
        """Of p_i and of D_i at iteration k."""
        return self._at(k, "step"), self._at(k, "dual")

    def _at(self, k: int, name: str) -> float:
        return float(np.exp(np.interp(k, self.at, np.log(getattr(self, name)))))


@dataclass(frozen=True)
class Course:
    """A schedule, and annealing: from `anneal_after` on (0 for never) D_i grows as k, to four times at most."""

    anneal_after: int
    schedule: Schedule | None = None

    def share(self, k: int) -> float:
        """Of the largest p_i, what is allowed."""
        return 1.0 if self.schedule is None else self.schedule.factors(k)[0]

    def dual(self, k: int) -> float:
        """What multiplies D_i and divides p_ij,1."""
        annealed = min(max(k / self.anneal_after, 1.0), MOST_ANNEALED) if self.anneal_after else 1.0
        return annealed if self.schedule is None else annealed * self.schedule.factors(k)[1]
