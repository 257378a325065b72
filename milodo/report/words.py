"""Numbers and results in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from milodo import words
from milodo.bench.speedup import Speedup
from milodo.report.run import AXIS, Run

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 3) -> str:
    """12,300, 0.05 or 1.7 × 10⁻¹⁵: what a person would write.

    >>> number(1e-5), number(0.0504), number(12345.6), number(1.7e-15)
    ('10⁻⁵', '0.0504', '12,300', '1.7 × 10⁻¹⁵')
    """
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e7:
        rounded = float(f"{value:.{digits}g}")
        return f"{rounded:,.0f}" if rounded == int(rounded) else f"{rounded:,g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return power if mantissa == "1" else f"{mantissa} × {power}"


def power(value: float) -> str:
    """Of ten, on an axis: 1, 10⁻², 10³."""
    exponent = round(math.log10(value)) if 0 < value < math.inf else 0  # matplotlib asks for ticks far outside of the picture
    return "10" + str(exponent).translate(_SUPERSCRIPT) if exponent else "1"


def amount(value: float, axis: str, *, unit: bool = True) -> str:
    """160 iterations, 1.23 MB, 12.3 ms."""
    symbol = AXIS[axis].unit
    if not math.isfinite(value):
        return number(value)
    if not symbol:
        return f"{number(round(value), 4)} {AXIS[axis].name}" if unit else number(round(value), 4)
    return words.amount(value, symbol)


def times(ratio: float) -> str:
    """25×, 3.4×, 0.12×."""
    return f"{number(ratio, 3 if ratio >= 100 else 2)}×"


def join(words: list[str]) -> str:
    """a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


@dataclass(frozen=True)
class Cell:
    """Of a table: what it says, a note beneath, how many instances it is about if not all; `off` if there is no number."""

    main: str
    note: str = ""
    few: str = ""
    off: bool = False


def cost_cell(row: Speedup) -> Cell:
    """The median cost and its quartiles, or why there is none."""
    few = f"{row.reached} of {row.instances} instances" if 0 < row.reached < row.instances else ""
    last = amount(row.last, row.axis, unit=False)
    if row.instances == 0:
        return Cell("no optimum known", off=True)
    if math.isfinite(row.median):
        high = amount(row.q75, row.axis, unit=False) if math.isfinite(row.q75) else f"> {last}"
        low, _, prefix = amount(row.q25, row.axis, unit=False).partition(" ")
        low += f" {prefix}" if prefix and not high.endswith(f" {prefix}") else ""  # 4.9 – 6.7 MB
        spread = f"{low} – {high}" if row.instances > 1 else ""
        return Cell(amount(row.median, row.axis, unit=False), spread, few)
    if 2 * row.diverged > row.instances:
        return Cell("diverged", "", few, off=True)
    return Cell(f"> {last}", "not reached", few, off=True)


def ratio_cell(row: Speedup, baseline: str | None) -> Cell:
    """The median ratio, or what is known about it."""
    if row.method == baseline:
        return Cell("1×", "baseline") if math.isfinite(row.median) else Cell("–", "baseline", off=True)
    if math.isfinite(row.ratio) and row.ratio > 0:
        known = math.isfinite(row.ratio_q25) and math.isfinite(row.ratio_q75) and row.instances > 1
        return Cell(times(row.ratio), f"{times(row.ratio_q25)} – {times(row.ratio_q75)}" if known else "")
    if math.isfinite(row.ratio_least) and row.ratio_least > 0:
        return Cell(f"> {times(row.ratio_least)}")
    if math.isfinite(row.ratio_most) and row.ratio_most > 0:
        return Cell(f"< {times(row.ratio_most)}", off=True)
    return Cell("–", off=True)


def value(entry: Any) -> str:
    if isinstance(entry, bool) or entry is None:
        return {True: "yes", False: "no", None: "–"}[entry]
    return f"{entry:.4g}" if isinstance(entry, float) else str(entry)


def summary(run: Run) -> str:
    """The result in one sentence, computed from the records."""
    gap = min((row.gap for row in run.speedups if row.axis == "k" and math.isfinite(row.median)), default=None)
    if gap is None:  # none of those asked for was reached
        return _where_it_ended(run)
    first, *others = [part for axis in ("k", "bytes") if axis in [a.key for a in run.axes] and (part := _winner(run, gap, axis))]
    text = f"{first[0]} reaches {run.to_reach(gap) if run.by_loss else f'a gap of {number(gap)}'} in {first[1]}"
    if others and others[0][0] == first[0]:
        text += f", and sends the least to get there: {others[0][1]}"
    elif others:
        text += f"; counting bytes sent, {others[0][0]} is ahead with {others[0][1]}"
    at_gap = [row for row in run.speedups if (row.gap, row.axis) == (gap, "k")]
    missed = [run.labels[row.method] for row in at_gap if not math.isfinite(row.median)]
    if missed and len(missed) <= 3:
        text += f"; {join(missed)} {'does' if len(missed) == 1 else 'do'} not get there"
    elif missed:
        text += f"; {len(missed)} of the {len(run.methods)} methods do not get there"
    over = f"medians of {run.instances} instances" if run.instances > 1 else "on one instance"
    return f"{text} ({over})."


def _winner(run: Run, gap: float, axis: str) -> tuple[str, str] | None:
    """Who is cheapest, and how that compares: with the baseline, or with the next one if the baseline itself wins."""
    rows = sorted((r for r in run.speedups if (r.gap, r.axis) == (gap, axis) and math.isfinite(r.median)), key=lambda r: r.median)
    if not rows:
        return None
    best, text = rows[0], amount(rows[0].median, axis)
    fewer = "less" if axis == "bytes" else "fewer"
    base = next((r for r in run.speedups if (r.gap, r.axis, r.method) == (gap, axis, run.baseline)), None)
    if base is not None and best.method != base.method:
        least = best.ratio if math.isfinite(best.ratio) else best.ratio_least
        if math.isfinite(least) and least > 0:
            more = "" if math.isfinite(best.ratio) else "more than "
            text += f", {more}{times(least)} {fewer} than {run.labels[base.method]}"
    elif len(rows) > 1 and best.median > 0:
        text += f", {times(rows[1].median / best.median)} {fewer} than {run.labels[rows[1].method]}, the next"
    return run.labels[best.method], text


def _where_it_ended(run: Run) -> str:
    quantity = run.quantities[0]
    medians = {method: run.curve(method, "k", quantity).median for method in run.methods}
    ends = {method: float(median[-1]) for method, median in medians.items() if len(median) and math.isfinite(median[-1])}
    if not ends:
        return "No method ended with a finite result."
    best = min(ends, key=lambda method: ends[method])
    over = f"the median of {run.instances} instances" if run.instances > 1 else "on one instance"
    many = f"the lowest of {len(run.methods)} methods, " if len(run.methods) > 1 else ""
    return f"{run.labels[best]} ends with a {quantity.name} of {number(ends[best])} ({many}{over})."
