"""Whether a claim of the paper holds, from records alone: against published step sizes, and against tuned ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from milodo.bench.records import Record
from milodo.bench.speedup import Speedup, measured_from_end, quantile, speedup_table
from milodo.paper.claims import ExpectTable
from milodo.report.run import AXIS, Run
from milodo.report.words import amount, join, number, times
from milodo.status import Status

UNTUNED = ("published", "safe")
"""What a method runs with whose parameters were not searched; the first that there is counts."""

BASELINES = ("prox-ed", "pg-extra", "prox-atc", "prox-dgd", "dapg", "odapg")
"""The paper's."""


class Level(IntEnum):
    """From the best to the worst."""

    HOLDS = 0
    UNTUNED_ONLY = 1
    UNDECIDED = 2
    FAILS = 3

    def __str__(self) -> str:
        return ("holds", "holds against untuned only", "not decided", "does not hold")[self]


@dataclass(frozen=True)
class Finding:
    """One check of one panel."""

    level: Level
    short: str
    """The key number, in a few words."""
    said: str
    """What was measured, beside what was claimed."""


@dataclass(frozen=True)
class Verdict:
    findings: Mapping[str, Sequence[Finding]]
    """Of every panel, and under '*' of all together."""

    @property
    def level(self) -> Level:
        return max((finding.level for findings in self.findings.values() for finding in findings), default=Level.UNDECIDED)

    @property
    def short(self) -> str:
        """The first number of each panel, those of the worst level first."""
        firsts = [(panel, findings[0].short) for panel, findings in self.findings.items() if findings]
        return "; ".join(short if panel in ("", "*") else f"{panel} {short}" for panel, short in firsts)


def verdict(expect: ExpectTable, panels: Mapping[str, tuple[Run, ExpectTable]]) -> Verdict:
    """Of a whole figure: what is expected of each panel, and of all of them side by side."""
    findings = {name: judged(run, of_panel) for name, (run, of_panel) in panels.items()}
    if expect.alike is not None and expect.gap is not None:
        findings = {"*": [_alike({name: run for name, (run, _) in panels.items()}, expect, expect.gap, expect.alike)]} | findings
    return Verdict(findings)


def judged(run: Run, expect: ExpectTable) -> list[Finding]:
    """Every check of one panel."""
    found = []
    if expect.speedup is not None:
        found.append(_speedup(run, expect, expect.speedup))
    if expect.consensus is not None:
        found.append(_consensus(run, expect, expect.consensus))
    if expect.overhead is not None:
        found.append(_overhead(run, expect, expect.overhead))
    if expect.gap is not None:
        found += [_converges(run, method, expect.gap) for method in expect.converge]
        found += [_fails(run, method, expect.gap) for method in expect.fail]
        if expect.optimal is not None:
            found.append(_optimal(run, expect.gap, expect.optimal))
    return found


@dataclass(frozen=True)
class Ratio:
    """Cost of a baseline over cost of a method: between these, which are equal where both are known."""

    least: float
    most: float

    def at_least(self, claimed: float) -> Level:
        return Level.HOLDS if self.least >= claimed else Level.FAILS if self.most < claimed else Level.UNDECIDED

    def words(self, fewer: str, more: str) -> str:
        """3.2× fewer iterations, 25× more iterations."""
        if 0 < self.most < 1:
            return f"{'' if self.least == self.most else '> '}{times(1 / self.most)} {more}"
        return f"{self} {fewer}" if str(self) != "unknown" else f"an unknown number of times {fewer}"

    def __str__(self) -> str:
        if self.least == self.most and math.isfinite(self.least):
            return times(self.least)
        if self.least > 0 and math.isfinite(self.least):
            return f"> {times(self.least)}"
        return f"< {times(self.most)}" if math.isfinite(self.most) else "unknown"


def speedup_over(run: Run, method: str, base: str, gap: float | None, axis: str = "k") -> Ratio:
    """Median over instances; without a gap, to the loss at which the baseline ended."""
    records = [record for record in run.records if record.method in (method, base)]
    if gap is None:
        records = measured_from_end(records, base)
    rows = speedup_table(records, [gap or 0.0], base)
    row = next(row for row in rows if (row.method, row.axis) == (method, axis))
    return Ratio(row.ratio_least, row.ratio_most)


def consensus_over(run: Run, method: str, base: str) -> Ratio:
    """Iterations after which the consensus error stays below the smallest that both reach: baseline over method, the median."""
    ratios = []
    for instance, mine in run.runs[method].items():
        theirs = run.runs[base].get(instance)
        if theirs is None:
            continue
        if any(rows[-1].status is Status.DIVERGED for rows in (mine, theirs)):
            ratios.append(0.0 if mine[-1].status is Status.DIVERGED else math.inf)
            continue
        level = max(mine[-1].consensus, theirs[-1].consensus)
        ratios.append(_settled(theirs, level) / max(_settled(mine, level), 1))
    middle = quantile(ratios, 0.5)
    return Ratio(middle, middle)


def _settled(rows: Sequence[Record], level: float) -> int:
    """The first sampled iteration from which on the consensus error is at most the level."""
    after = 0
    for row, following in zip(rows, [*rows[1:], rows[-1]], strict=True):
        if not row.consensus <= level:
            after = following.k
    return after


def baselines(run: Run, over: str) -> tuple[str | None, str | None]:
    """A method as published (or safe) and as tuned, as far as they ran."""
    untuned = next((key for use in UNTUNED if (key := f"{over} ({use})") in run.runs), None)
    return untuned, next((key for key in (over, f"{over} (tuned)") if key in run.runs), None)


def strongest(run: Run, gap: float, axis: str = "k", among: Collection[str] | None = None) -> Speedup | None:
    """The handcrafted method that needs least to the gap; of all, or of these whatever their step sizes."""
    rows = [row for row in speedup_table(run.records, [gap], None) if row.axis == axis and math.isfinite(row.median)]
    rows = [row for row in rows if run.about(row.method).how != "learned"]
    if among is not None:
        rows = [row for row in rows if row.method.split(" (")[0] in among]
    return min(rows, key=lambda row: row.median, default=None)


def _speedup(run: Run, expect: ExpectTable, claimed: float) -> Finding:
    fewer = {"k": "fewer iterations", "seconds": "less time"}[expect.axis]
    to = f"to a gap of {number(expect.gap)}" if expect.gap is not None else "to the loss at which it ended"

    def ratio(base: str) -> Ratio:
        return speedup_over(run, expect.method, base, expect.gap, expect.axis)

    return _compared(run, expect, claimed, ratio, fewer, to, "")


def _consensus(run: Run, expect: ExpectTable, claimed: float) -> Finding:
    def ratio(base: str) -> Ratio:
        return consensus_over(run, expect.method, base)

    return _compared(run, expect, claimed, ratio, "fewer iterations", "to the same consensus error", "consensus ")


def _compared(
    run: Run, expect: ExpectTable, claimed: float, ratio: Callable[[str], Ratio], fewer: str, what: str, word: str
) -> Finding:
    """Against the published step size, then against the tuned one."""
    if expect.method not in run.runs:
        return _missing(expect.method)
    untuned, tuned = baselines(run, expect.over)
    ratios = {base: ratio(base) for base in (untuned, tuned) if base is not None}
    if not ratios:
        return _missing(expect.over)
    levels = [each.at_least(claimed) for each in ratios.values()]
    level = levels[0]
    if len(levels) == 2 and levels[0] is Level.HOLDS and levels[1] is not Level.HOLDS:
        level = Level.UNTUNED_ONLY
    more = {"fewer iterations": "more iterations", "less time": "more time"}[fewer]
    label, others = run.labels[expect.method], {base: run.labels[base] for base in ratios}
    than = join(
        [f"{each.words(fewer, more)} than {others[base]}" + (" tuned" if base == tuned else "") for base, each in ratios.items()]
    )
    short = ", ".join(
        f"{word}{each} {'tuned' if base == tuned else base.split('(')[-1].rstrip(')')}" for base, each in ratios.items()
    )
    return Finding(level, short, f"{label} needs {than} {what}; claimed {times(claimed)}")


def seconds_of_iteration(run: Run, method: str) -> float:
    """The median over instances."""
    return quantile((rows[-1].seconds / max(rows[-1].k, 1) for rows in run.runs[method].values()), 0.5)


def overhead(run: Run, method: str, over: str) -> float | None:
    """By how much an iteration takes longer, as a fraction; None where nothing was measured."""
    base = next((base for base in baselines(run, over) if base is not None), None)
    if base is None or method not in run.runs or not (seconds := seconds_of_iteration(run, base)) > 0:
        return None
    return seconds_of_iteration(run, method) / seconds - 1


def _overhead(run: Run, expect: ExpectTable, claimed: float) -> Finding:
    found = overhead(run, expect.method, expect.over)
    if found is None:
        return _missing(expect.method)
    said = (
        f"an iteration of {run.labels[expect.method]} takes {found:+.0%} the time of one of {expect.over}; claimed {claimed:+.1%}"
    )
    return Finding(Level.HOLDS if found <= claimed else Level.FAILS, f"{found:+.0%} an iteration", said)


def _missing(method: str) -> Finding:
    return Finding(Level.UNDECIDED, f"{method} did not run", f"{method} has no records here")


def _row(run: Run, method: str, gap: float) -> Speedup | None:
    return next((row for row in speedup_table(run.records, [gap], None) if (row.method, row.axis) == (method, "k")), None)


def _ended(run: Run, method: str, gap: float) -> tuple[int, int]:
    """Instances that end at the gap or below, and all: who comes there and drifts away again has not converged."""
    last = [rows[-1].gap for rows in run.runs[method].values()]
    return sum(end <= gap for end in last), len(last)


def _converges(run: Run, method: str, gap: float) -> Finding:
    if method not in run.runs:
        return _missing(method)
    there, all_of_them = _ended(run, method, gap)
    row, end = _row(run, method, gap), number(run.at_end(method, "gap"), 2)
    first = f", first there after {amount(row.median, 'k')} (median)" if row and math.isfinite(row.median) else ""
    below = f"below {number(gap)} on {there} of {all_of_them} instances{first}"
    said = f"{run.labels[method]} ends at a gap of {end} (median), {below}"
    return Finding(Level.HOLDS if there == all_of_them else Level.FAILS, f"{there} of {all_of_them} to {number(gap)}", said)


def _fails(run: Run, method: str, gap: float) -> Finding:
    found = _converges(run, method, gap)
    if method not in run.runs:
        return found
    there, all_of_them = _ended(run, method, gap)
    short = f"{run.labels[method]} {found.short}"
    return Finding(Level.HOLDS if 2 * there < all_of_them else Level.FAILS, short, f"{found.said}; claimed: it fails")


def _optimal(run: Run, gap: float, factor: float) -> Finding:
    """Published against tuned step sizes, method by method."""
    ratios = {}
    for method in run.methods:
        if f"{method} (published)" in run.runs:
            ratios[method] = speedup_over(run, method, f"{method} (published)", gap)
    if not ratios:
        return _missing("a published step size")
    # 'at least factor' is what must not hold here.
    beaten = [method for method, ratio in ratios.items() if ratio.least > factor]
    level = Level.FAILS if beaten else Level.HOLDS if all(r.most <= factor for r in ratios.values()) else Level.UNDECIDED
    said = join([f"{run.labels[method]} {ratio}" for method, ratio in ratios.items()])
    short = f"{len(beaten)} of {len(ratios)} methods gain more than {times(factor)} by tuning"
    return Finding(level, short, f"fewer iterations to a gap of {number(gap)} with tuned steps than with published ones: {said}")


def _alike(runs: Mapping[str, Run], expect: ExpectTable, gap: float, factor: float) -> Finding:
    """The first panel against the best of the others."""
    rows = {name: _row(run, expect.method, gap) for name, run in runs.items()}
    costs = {name: row.median for name, row in rows.items() if row is not None}
    if len(costs) < 2 or len(costs) < len(runs):
        return _missing(expect.method)
    first, *others = costs
    best = min(others, key=lambda name: costs[name])
    said = join([f"{name} {amount(cost, 'k') if math.isfinite(cost) else 'never'}" for name, cost in costs.items()])
    if math.isinf(costs[first]):
        return Finding(Level.FAILS if math.isfinite(costs[best]) else Level.UNDECIDED, f"{first} did not get there", said)
    ratio = costs[first] / costs[best]
    level = Level.HOLDS if ratio <= factor else Level.FAILS
    return Finding(
        level, f"{first} needs {times(ratio)} of {best}", f"{AXIS['k'].name.capitalize()} to a gap of {number(gap)}: {said}"
    )
