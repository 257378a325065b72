"""What a gap costs, and speed-ups: from records alone. A speed-up always says of what: iterations, rounds, bytes or seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from milodo.bench.records import Record
from milodo.errors import unknown
from milodo.status import Status

AXES = ("k", "rounds", "bytes", "seconds")
"""What can be counted; each is a column of the records that only grows."""
QUANTITIES = ("gap", "consensus", "loss")
"""What falls; a run has a curve of each of these, and of its further metrics."""

SLACK = 1e-6
"""Of an iteration, by which rounding may miss a whole one."""

Runs = dict[str, dict[int, list[Record]]]
"""method -> instance -> its records, in the order of k."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Speedup:
    """One method, one gap, one axis, over all instances whose optimum is certified.

    An instance that did not reach the gap costs inf: a median says what half of all instances managed, not half of the lucky.
    Its ratio baseline / method is then only known to lie in an interval; `ratio` is NaN unless the intervals leave no doubt.
    """

    method: str
    gap: float
    axis: str
    instances: int
    reached: int
    median: float
    q25: float
    q75: float
    last: float
    """Where the runs ended (median): the cost is larger than this if the median was not reached."""
    diverged: int
    """Instances that diverged before they reached the gap: they never will."""
    ratio: float
    """Median over instances of (cost of the baseline) / (cost of the method)."""
    ratio_q25: float
    ratio_q75: float
    ratio_least: float
    """The median ratio is at least this, because a run cut short would have cost more than where it ended ..."""
    ratio_most: float
    """... and at most this."""


def group(records: Iterable[Record]) -> Runs:
    """By method and instance, in the order of k."""
    runs: Runs = {}
    for record in records:
        runs.setdefault(record.method, {}).setdefault(record.instance, []).append(record)
    for instances in runs.values():
        for rows in instances.values():
            rows.sort(key=lambda record: record.k)
    return runs


def cost_to_reach(records: Sequence[Record], gap: float, axis: str) -> float:
    """Cost of the first crossing of `gap` by one method on one instance; NaN if it was not reached.

    Between two samples log(gap) is taken to be linear in k; nobody stops within an iteration, so the one that crosses is paid
    for as a whole.
    """
    _check("axis", axis, AXES)
    before: Record | None = None
    for record in sorted(records, key=lambda record: record.k):
        if record.gap <= gap:
            cost = record.value(axis)
            if before is None or not math.isfinite(before.gap):
                return cost
            between, start = record.k - before.k, before.value(axis)
            share = math.ceil(between * _fraction(before.gap, record.gap, gap) - SLACK) / between
            return start + (cost - start) * share
        before = record
    return math.nan


def speedup_table(records: Iterable[Record], gaps: Sequence[float], baseline: str | None) -> list[Speedup]:
    """One row a method, gap and axis, in the order of the records, of `gaps` and of AXES. Without a baseline, ratios are NaN."""
    runs = group(records)
    certified = _certified(runs)
    rows = []
    for method, instances in runs.items():
        for gap in gaps:
            for axis in AXES:
                costs = {i: _Cost.of(rows_i, gap, axis) for i, rows_i in instances.items() if i in certified}
                base = {i: _Cost.of(rows_i, gap, axis) for i, rows_i in runs.get(baseline or "", {}).items() if i in costs}
                rows.append(_row(method, gap, axis, costs, base))
    return rows


def measured_from_end(records: Sequence[Record], baseline: str) -> list[Record]:
    """Where no optimum is known: the gap is to the loss at which the baseline ended on the same instance, to be brought to 0."""
    ends = {instance: rows[-1].loss for instance, rows in group(records).get(baseline, {}).items()}
    return [replace(record, gap=record.loss - ends.get(record.instance, math.nan)) for record in records]


def metrics_of(runs: Runs) -> list[str]:
    """Names of the further metrics, in the order of the records."""
    rows = (record for instances in runs.values() for samples in instances.values() for record in samples)
    return list(dict.fromkeys(name for record in rows for name in record.metrics))


def curves(runs: Runs, method: str, axis: str, quantity: str) -> tuple[Array, Array, Array, Array]:
    """x, median, lower and upper quartile over instances of a quantity along an axis, at every sampled iteration.

    An instance that converged keeps its last value, until half of them have: from there on the median would only show where runs
    were stopped, and look like a stall. One that diverged counts as inf from then on (a metric, which may be one that should
    rise, as unknown). Where an instance was cut short (out of iterations or time, interrupted) nothing is known about it further
    on, so the curve of all ends there.
    """
    _check("axis", axis, AXES)
    if quantity not in QUANTITIES:
        _check("quantity", quantity, [*QUANTITIES, *metrics_of(runs)])
    _check("method", method, runs)
    certified = _certified(runs) if quantity == "gap" else runs[method].keys()
    kept = {i: rows for i, rows in runs[method].items() if i in certified}
    if not kept:
        return np.empty(0), np.empty(0), np.empty(0), np.empty(0)
    lost = math.inf if quantity in QUANTITIES else math.nan
    ks = np.array(sorted({record.k for rows in kept.values() for record in rows}), dtype=float)
    values, costs = np.full((len(kept), len(ks)), np.nan), np.full((len(kept), len(ks)), np.nan)
    end = math.inf
    for row, samples in enumerate(kept.values()):
        k = np.array([record.k for record in samples], dtype=float)
        value = np.array([record.value(quantity) for record in samples], dtype=float)
        status = samples[-1].status
        if status is Status.DIVERGED:
            value[~np.isfinite(value)] = lost
        inside = (ks >= k[0]) & (ks <= k[-1])
        values[row, inside] = _between(ks[inside], k, value)
        costs[row, inside] = np.interp(ks[inside], k, [record.value(axis) for record in samples])
        values[row, ks > k[-1]] = {Status.CONVERGED: value[-1], Status.DIVERGED: lost}.get(status, math.nan)
        if status not in (Status.CONVERGED, Status.DIVERGED):
            end = min(end, k[-1])
    finished = [samples[-1].k for samples in kept.values() if samples[-1].status is Status.CONVERGED]
    if 2 * len(finished) >= len(kept):
        end = min(end, sorted(finished)[math.ceil(len(kept) / 2) - 1])
    known = ks <= end
    values, costs = values[:, known], costs[:, known]
    return _columns(costs, 0.5), _columns(values, 0.5), _columns(values, 0.25), _columns(values, 0.75)


def quantile(values: Iterable[float], q: float) -> float:
    """As numpy's (linear), but inf is a number like any other; NaN of nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    position = q * (len(ordered) - 1)
    below, weight = int(position), position - int(position)
    if weight == 0 or ordered[below] == ordered[below + 1]:
        return float(ordered[below])
    return float(ordered[below] * (1 - weight) + ordered[below + 1] * weight)


def _columns(values: Array, q: float) -> Array:
    """The quantile of every column, of what is known in it."""
    return np.array([quantile(column[~np.isnan(column)].tolist(), q) for column in values.T])


@dataclass(frozen=True)
class _Cost:
    """What is known about a cost: it lies between least and most. Equal if the gap was reached; both inf if it never will be."""

    least: float
    most: float
    last: float

    @classmethod
    def of(cls, records: Sequence[Record], gap: float, axis: str) -> _Cost:
        cost, last = cost_to_reach(records, gap, axis), records[-1].value(axis)
        if not math.isnan(cost):
            return cls(cost, cost, last)
        return cls(math.inf if records[-1].status is Status.DIVERGED else last, math.inf, last)


def _row(method: str, gap: float, axis: str, costs: dict[int, _Cost], base: dict[int, _Cost]) -> Speedup:
    most = [cost.most for cost in costs.values()]
    ratios = [_ratio(base[i], cost) for i, cost in costs.items() if i in base]
    bounds = {q: (quantile((low for low, _ in ratios), q), quantile((high for _, high in ratios), q)) for q in (0.25, 0.5, 0.75)}
    decided = {q: low if low == high else math.nan for q, (low, high) in bounds.items()}
    return Speedup(
        method=method, gap=gap, axis=axis, instances=len(costs), reached=sum(math.isfinite(cost) for cost in most),
        median=quantile(most, 0.5), q25=quantile(most, 0.25), q75=quantile(most, 0.75),
        last=quantile((cost.last for cost in costs.values()), 0.5),
        diverged=sum(math.isinf(cost.least) for cost in costs.values()),
        ratio=decided[0.5], ratio_q25=decided[0.25], ratio_q75=decided[0.75],
        ratio_least=bounds[0.5][0], ratio_most=bounds[0.5][1],
    )  # fmt: skip


def _ratio(base: _Cost, cost: _Cost) -> tuple[float, float]:
    """The interval in which baseline / method lies."""
    return _divide(base.least, cost.most, otherwise=0.0), _divide(base.most, cost.least, otherwise=math.inf)


def _divide(a: float, b: float, otherwise: float) -> float:
    if a == b == 0:
        return 1.0  # both are there before the first iteration
    if math.isinf(a) and math.isinf(b):
        return otherwise
    return a / b if b else math.inf


def _fraction(high: float, low: float, gap: float) -> float:
    """How far from `high` to `low` the gap is crossed; on the log scale, which a gap rounded to 0 or below does not have."""
    if low > 0 and gap > 0 and math.log(high) > math.log(low):
        return (math.log(high) - math.log(gap)) / (math.log(high) - math.log(low))
    return (high - gap) / (high - low) if math.isfinite(high - low) else 1.0


def _between(ks: Array, k: Array, value: Array) -> Array:
    """Values at ks: as sampled, or between two samples log-linear as in cost_to_reach."""
    at = np.searchsorted(k, ks, side="right") - 1
    after = np.minimum(at + 1, len(k) - 1)
    left, right = value[at], value[after]
    with np.errstate(all="ignore"):
        t = np.where(after > at, (ks - k[at]) / (k[after] - k[at]), 0.0)
        between = np.where((left > 0) & (right > 0), left ** (1 - t) * right**t, left * (1 - t) + right * t)
    return np.where((t > 0) & np.isfinite(left) & np.isfinite(right), between, left)


def _certified(runs: Runs) -> set[int]:
    """Instances whose f* is known: some method has a finite gap there."""
    every = (pair for instances in runs.values() for pair in instances.items())
    return {i for i, rows in every if any(math.isfinite(record.gap) for record in rows)}


def _check(kind: str, word: str, known: Iterable[str]) -> None:
    if word not in known:
        raise unknown(kind, word, known)
