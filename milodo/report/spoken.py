"""A chart for who does not see it: its result in a sentence, its medians in a table."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from milodo.report import words
from milodo.report.run import Quantity, Run

COLUMNS = 6
"""Of iterations, at most: powers of ten, or of a hundred where those are too many."""


@dataclass(frozen=True)
class Spoken:
    """What a chart shows. A row is a method's label, a cell for every column of iterations, and where it ended."""

    sentence: str
    iterations: list[int]
    rows: list[tuple[str, list[str], str]]


def spoken(run: Run, quantity: Quantity) -> Spoken:
    """Of one chart, along the axis of iterations."""
    lines = {method: _line(run, method, quantity) for method in run.methods}
    longest = max((k[-1] for k, _ in lines.values() if len(k)), default=0.0)
    iterations = _decades(longest)
    rows = [(run.labels[method], [_at(k, line) for k in iterations], _end(line)) for method, line in lines.items()]
    return Spoken(_sentence(run, quantity, lines), iterations, rows)


Line = tuple[np.ndarray, np.ndarray]
"""Iterations, and the median there."""


def _line(run: Run, method: str, quantity: Quantity) -> Line:
    curve = run.curve(method, "k", quantity)
    return np.nan_to_num(curve.x), curve.median  # iteration 0 has no place on a logarithmic axis


def _decades(longest: float) -> list[int]:
    powers = list(range(int(math.log10(longest)) + 1)) if longest >= 1 else []
    every = -(-len(powers) // COLUMNS) or 1
    return [10**power for power in powers[::every]]


def _at(k: int, line: Line) -> str:
    """The median at the last look not after iteration k; nothing where the line has ended."""
    iterations, median = line
    if not len(iterations) or iterations[-1] < k:
        return "–"
    return _value(float(median[np.searchsorted(iterations, k, side="right") - 1]))


def _value(value: float) -> str:
    return "diverged" if math.isinf(value) else "–" if math.isnan(value) else words.number(value, 2)


def _last(line: Line) -> tuple[float, int] | None:
    """The last known value, and its iteration."""
    iterations, median = line
    known = np.flatnonzero(~np.isnan(median))
    return (float(median[known[-1]]), int(iterations[known[-1]])) if len(known) else None


def _end(line: Line) -> str:
    last = _last(line)
    return "–" if last is None else f"{_value(last[0])} at {last[1]:,}"


def _sentence(run: Run, quantity: Quantity, lines: dict[str, Line]) -> str:
    ends = {run.labels[method]: last for method, line in lines.items() if (last := _last(line)) is not None}
    finite = {label: last for label, last in ends.items() if math.isfinite(last[0])}
    if not finite:
        return f"No line of the {quantity.name} ends with a number."

    def said(label: str) -> str:
        value, k = finite[label]
        return f"{label} ends at {words.number(value, 2)} after {k:,} iterations"

    low, high = (choose(finite, key=lambda label: finite[label][0]) for choose in (min, max))
    if len(finite) == 1:
        return f"The {quantity.name}: {said(low)}."
    return f"The {quantity.name} of {len(lines)} methods: {said(low)}, the lowest; {said(high)}, the highest."
