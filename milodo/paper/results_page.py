"""What the results page says of a reproduction, as markdown: claim, command, tables, verdict, figure; from records alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from milodo.bench.speedup import Speedup
from milodo.paper.claims import ExpectTable
from milodo.paper.reproduction import Reproduction
from milodo.paper.verdict import BASELINES, Verdict, baselines, seconds_of_iteration, speedup_over, strongest
from milodo.report.endings import budgets
from milodo.report.run import Run
from milodo.report.words import cost_cell, number
from milodo.words import brief


def section(about: Reproduction, runs: Mapping[str, Run], found: Verdict, *, command: str, took: str, figure: str) -> str:
    """One `##` section."""
    first = next(iter(runs.values()))
    lines = [
        f"## {about.name}: {about.title}",
        "",
        f"The paper ({about.about.figure}): {about.about.claim}",
        "",
        f"    {command}        # {about.size} size, {took}, commit {_commit(first)}",
        "",
        f"**{str(found.level).capitalize()}.** {'; '.join(_findings(found))}.",
        *(["", about.description] if about.description else []),
    ]
    for panel in about.panels:
        run = runs[panel.name]
        where = f"{run.file.problem} on {run.file.topology.name}, weights {run.file.topology.weights or 'metropolis'}"
        many = f"{run.instances} unseen instance{'s' if run.instances != 1 else ''}"
        lines += [
            "",
            (f"**{panel.name}**: " if panel.name else "") + f"{where}, {many}{_certificate(run)}.",
            "",
            *_tables(run, panel.expect),
            *(["", differ] if (differ := budgets(run)) else []),
        ]
    lines += ["", f"![{about.name}: every method against iterations]({figure})", ""]
    return "\n".join(lines)


def spent(seconds: float, processor: float) -> str:
    """How long something took, and for how much of that it had a processor.

    >>> spent(61, 60), spent(1272, 570), spent(9000, 8000), spent(600, 0)
    ('1 minute, 1 of a processor', '21 minutes, 9.5 of a processor', '150 minutes, 133 of a processor', '10 minutes')
    """
    minutes, worked = (f"{each / 60:.{1 if each < 599 else 0}f}".removesuffix(".0") for each in (seconds, processor))
    return f"{minutes} minute{'s' if minutes != '1' else ''}" + (f", {worked} of a processor" if processor else "")


def replaced(page: str, name: str, text: str) -> str:
    """The page with this section in the place of the one that it had, or behind all others."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    whole = f"{begin}\n{text.rstrip()}\n{end}\n"
    if begin in page and end in page.partition(begin)[2]:
        before, _, rest = page.partition(begin)
        return before + whole + rest.partition(end)[2].removeprefix("\n")
    return page + ("\n" if page and not page.endswith("\n\n") else "") + whole


def _findings(found: Verdict) -> Iterator[str]:
    several = len(found.findings) > 1
    each = sum(map(len, found.findings.values())) > 1
    for panel, findings in found.findings.items():
        for finding in findings:
            yield (f"{panel}: " if several and panel != "*" else "") + finding.said + (f": {finding.level}" if each else "")


def _tables(run: Run, expect: ExpectTable) -> Iterator[str]:
    if not run.certified:
        yield from _ends(run)
        return
    gaps = run.gaps
    rows = {(row.method, row.gap): row for row in run.speedups if row.axis == "k"}
    timed = expect.axis == "seconds"
    heads = ["method", "parameters", *(f"to {number(gap)}" for gap in gaps), *(["ms an iteration"] if timed else [])]
    yield from _head(heads, 2)
    for method in run.methods:
        cells = [_cost(rows[method, gap]) for gap in gaps] + ([f"{1e3 * seconds_of_iteration(run, method):.3g}"] if timed else [])
        yield _line([run.labels[method], _parameters(run, method), *cells])
    yield ""
    yield "Iterations, median (quartiles)." + (" The time of an iteration is that of one instance." if timed else "")
    if timed:
        yield from _seconds(run)
    if expect.method in run.runs and expect.speedup is not None:
        yield ""
        yield from _speedups(run, expect)
    if expect.optimal is not None:
        yield ""
        yield from _steps(run)


def _ends(run: Run) -> Iterator[str]:
    """Where no optimum is known: how each method ended."""
    yield from _head(["method", "parameters", "iterations", *(quantity.name for quantity in run.quantities)], 2)
    for method in run.methods:
        ends = (f"{run.at_end(method, quantity.key):.4g}" for quantity in run.quantities)
        yield _line([run.labels[method], _parameters(run, method), f"{run.at_end(method, 'k'):,.0f}", *ends])


def _speedups(run: Run, expect: ExpectTable) -> Iterator[str]:
    """How many times less the learned method needs: than its rival published and tuned, than the strongest handcrafted one."""
    untuned, tuned = baselines(run, expect.over)
    bases = [base for base in (untuned, tuned) if base is not None]
    names = [run.labels[base] + (" tuned" if base == tuned else "") for base in bases]
    unit = "seconds" if expect.axis == "seconds" else "iterations"
    strong = ("over the paper's strongest baseline", "over the strongest of all")
    yield from _head([f"{run.labels[expect.method]}, {unit}: to", *(f"over {name}" for name in names), *strong], 1)
    for gap in run.gaps:
        bests = [strongest(run, gap, expect.axis, among) for among in (BASELINES, None)]
        ratios = [str(speedup_over(run, expect.method, base, gap, expect.axis)) for base in bases]
        for best in bests:
            ratio = best and speedup_over(run, expect.method, best.method, gap, expect.axis)
            ratios.append(f"{ratio} ({run.labels[best.method]})" if best else "–")
        yield _line([number(gap), *ratios])


def _seconds(run: Run) -> Iterator[str]:
    rows = {(row.method, row.gap): row for row in run.speedups if row.axis == "seconds"}
    yield ""
    yield from _head(["seconds, in all", *(f"to {number(gap)}" for gap in run.gaps)], 1)
    for method in run.methods:
        yield _line([run.labels[method], *(_cost(rows[method, gap]) for gap in run.gaps)])


def _steps(run: Run) -> Iterator[str]:
    """The paper's step sizes beside those tuned here."""
    yield from _head(["method", "published", "tuned", "fewer iterations, tuned, to", *map(number, run.gaps)], 3)
    for method in run.methods:
        if (other := f"{method} (published)") in run.runs:
            ratios = [str(speedup_over(run, method, other, gap)) for gap in run.gaps]
            yield _line([run.labels[method], _parameters(run, other), _parameters(run, method), "", *ratios])


def _parameters(run: Run, method: str) -> str:
    about = run.about(method)
    return about.weights.name if about.weights else brief(about.parameters or {}) or "none"


def _cost(row: Speedup) -> str:
    cell = cost_cell(row)
    return f"{cell.main} ({cell.note})" if cell.note and math.isfinite(row.median) else cell.main


def _certificate(run: Run) -> str:
    known = run.file.reference
    return f"; optimum certified: {known.kind} at most {number(known.largest, 2)}" if known and known.largest is not None else ""


def _commit(run: Run) -> str:
    return str(run.file.provenance.model_dump().get("commit") or "unknown")[:12]


def _head(names: Iterable[str], left: int) -> list[str]:
    names = list(names)
    return [_line(names), "|" + "|".join("---" if k < left else "---:" for k in range(len(names))) + "|"]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
