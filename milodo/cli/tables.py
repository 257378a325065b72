"""What the terminal shows of a run, a tuning, a topology."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from milodo.bench.run_file import LOSS
from milodo.topology import EXACT, WEIGHTS, Mixing, Topology, weights
from milodo.words import amount, brief

if TYPE_CHECKING:
    from milodo.bench.run_file import RunFile, TuningFacts
    from milodo.bench.speedup import Speedup
    from milodo.fit import Fit, PenaltyPath
    from milodo.fit.task import SiteFacts
    from milodo.learned.checkpoint import Card
    from milodo.network import Ledger
    from milodo.report.run import Run


def run_tables(run: Run) -> list[Table]:
    """What each gap costs, in iterations and in bytes, and how many times less than the baseline that is."""
    compares = run.certified or run.by_loss
    tables = [_costs(run, *axis) for axis in COSTS] if compares else []
    tables += [] if run.certified else [_ends(run)]
    where = run.file.topology.name or "an unknown graph"
    on = f"{run.file.problem or run.name} on {where}, {run.instances} unseen instances"
    compared = f"; 2x means half of what {run.labels[run.baseline]} needs" if run.baseline and compares else ""
    tables[-1].caption = escape(on + compared)
    return tables


COSTS = (("k", "iterations"), ("bytes", "bytes, sent by all nodes"))


def _costs(run: Run, axis: str, unit: str) -> Table:
    rows = {(row.method, row.gap): row for row in run.speedups if row.axis == axis}
    to = run.to_reach(0) if run.by_loss else "a gap of ..."
    table = Table(title=escape(f"Median {unit}, to {to}"), title_justify="left")
    table.add_column("method")
    for gap in run.gaps:
        table.add_column("" if run.by_loss else f"{gap:g}", justify="right")
    for method, label in ({key: about.label or key for key, about in run.file.methods.items()} | run.labels).items():
        table.add_row(escape(label), *(_cell(rows.get((method, gap))) for gap in run.gaps))
    return table


def _ends(run: Run) -> Table:
    """Where no optimum is known there is no gap to reach."""
    table = Table(title="Medians at the end of the runs; no optimum is known, so there is no gap", title_justify="left")
    table.add_column("method")
    for name in ("iterations", *(quantity.name for quantity in run.quantities)):
        table.add_column(escape(name), justify="right")
    for method in run.methods:
        ends = (f"{run.at_end(method, quantity.key):.4g}" for quantity in run.quantities)
        table.add_row(escape(run.labels[method]), f"{run.at_end(method, 'k'):,.0f}", *ends)
    return table


def _cell(row: Speedup | None) -> str:
    if row is None or row.instances == 0:
        return "-"
    said = amount if row.axis == "bytes" else "{:,.0f}".format
    if not math.isfinite(row.median):
        return "diverged" if 2 * row.diverged > row.instances else f"> {said(row.last)}"
    if math.isfinite(row.ratio):
        return f"{said(row.median)} [dim]{_times(row.ratio)}[/]"
    return f"{said(row.median)} [dim]> {_times(row.ratio_least)}[/]" if row.ratio_least > 0 else said(row.median)


def _times(ratio: float) -> str:
    """To two digits, and never as a power of ten.

    >>> _times(0.4567), _times(12.3), _times(157.2)
    ('0.46x', '12x', '157x')
    """
    return f"{ratio:.2g}x" if ratio < 99.5 else f"{ratio:,.0f}x"


def tuning_table(run: RunFile) -> Table:
    table = Table(title=escape(f"{run.problem or 'a problem'} on {run.topology.name or 'a graph'}"))
    for column in ("method", "parameters", "how", "candidates", "cost to the target"):
        table.add_column(column, justify="right" if column in ("candidates", "cost to the target") else "left")
    for method, facts in run.methods.items():
        chosen = (facts.weights.name if facts.weights else "") or brief(facts.parameters or {})
        tuning = run.tuning.get(method)
        candidates = tuning.candidates if tuning else None
        found = ("-" if candidates is None else str(candidates), _cost(tuning) if tuning else "-")
        table.add_row(escape(facts.label or method), escape(chosen), escape(facts.how or "-"), *found)
    return table


def _cost(tuning: TuningFacts) -> str:
    """Of the best candidate, to the target."""
    if tuning.score is None:
        return "every candidate diverged"
    if tuning.cost == LOSS:
        return f"loss {tuning.score:.4g}"
    if not tuning.reached:
        return "not reached" if tuning.iterations is None else f"not within {tuning.iterations:,} iterations"
    return f"{tuning.score:,.0f} {escape(tuning.cost)}"


def optimizers_table(cards: list[Card]) -> Table:
    table = Table(title="Trained optimizers that come with milodo", title_justify="left")
    for column in ("name", "method", "runs on", "weights", "good for"):
        table.add_column(column, justify="right" if column == "weights" else "left", no_wrap=column == "name")
    for card in cards:
        graph, size = escape(card.topology.name), f"{card.weights.parameters:,}"
        table.add_row(escape(card.name), card.kind, graph, size, escape(card.good_for))
    return table


FASTEST_EDGES = 600
"""The fastest chain has one unknown an edge: beyond this it takes longer than a person looks at a table."""


def topology_table(graph: Topology) -> Table:
    title = f"{graph}: {graph.n} nodes, {len(graph.edges)} edges, diameter {'at most ' * (graph.n > EXACT)}{graph.reach}"
    table = Table(title=escape(title), show_header=True)
    degrees = graph.degrees
    table.caption = (
        f"degrees {min(degrees)} to {max(degrees)}, mean {sum(degrees) / graph.n:.3g}; fingerprint {graph.fingerprint}"
    )
    table.add_column("weights")
    table.add_column("λ = max |λ_i(W)|, i ≥ 2", justify="right")
    table.add_column("spectral gap 1 - λ", justify="right")
    table.add_column("rounds to halve disagreement", justify="right")
    for rule in WEIGHTS:
        if rule == "fastest" and len(graph.edges) > FASTEST_EDGES:
            table.add_row(rule, f"not computed above {FASTEST_EDGES} edges", "", "")
            continue
        try:
            lam = Mixing(graph, weights(graph, rule)).contraction
        except ValueError:
            continue  # 'third' is for rings only
        halving = math.log(2) / -math.log(lam) if 1e-9 < lam < 1 else 0.0
        table.add_row(rule, f"{lam:.6f}", f"{1 - lam:.3e}", f"{halving:.1f}")
    return table


LONGEST = 30
"""Rows of a table of coefficients; the file has them all."""


SHOWN = 12
"""Rows of a table of penalties; the file has them all."""


def path_table(path: PenaltyPath) -> Table:
    """The curve of the cross-validation, every few penalties, and what was chosen."""
    table = Table(
        title=f"Penalties, {path.measure} of {'sites left out' if 'site each' in path.folds else 'folds'}", title_justify="left"
    )
    for column in ("penalty", path.measure, "standard error", "features", ""):
        table.add_column(column, justify="left" if not column else "right")
    last = len(path.penalties) - 1
    rows = {round(k * last / (SHOWN - 1)) for k in range(SHOWN)} | {path.chosen, path.best}
    for p in sorted(rows):
        said = "chosen" if p == path.chosen else "least" if p == path.best else ""
        table.add_row(
            f"{path.penalties[p]:.4g}", f"{path.mean[p]:.5g}", f"{path.error[p]:.2g}", str(path.used[p]), said,
            style="bold" if p == path.chosen else None,
        )  # fmt: skip
    rule = "least mean loss" if path.rule == "min" else "largest within one standard error of the least"
    spent = f"{amount(path.bytes)}{_parts(path.traffic, 'bytes')} in {path.rounds:,} rounds"
    table.caption = f"chosen: {path.penalty:.6g}, the {rule}; the path took {spent}"
    return table


def _parts(traffic: Ledger, of: str) -> str:
    """Of rounds or bytes, what they were for; nothing where that is not known."""
    if not traffic.rounds:
        return ""
    said = amount if of == "bytes" else "{:,}".format
    return f" ({', '.join(f'{name} {said(getattr(part, of))}' for name, part in traffic.parts.items())})"


def sites_table(sites: Sequence[SiteFacts]) -> Table:
    """Whose rows are fitted: a file too many is seen here, before it counts."""
    table = Table(title=f"{len(sites)} sites, {sum(site.rows for site in sites):,} rows", title_justify="left")
    classes = sorted({label for site in sites for label in site.classes or ()})
    for column in ("site", "rows", *(f"of class {escape(repr(label))}" for label in classes), "features"):
        table.add_column(column, justify="left" if column == "site" else "right")
    for site in sites[:LONGEST]:
        counts = (f"{(site.classes or {}).get(label, 0):,}" for label in classes)
        table.add_row(escape(site.name), f"{site.rows:,}", *counts, f"{site.columns:,}")
    if len(sites) > LONGEST:
        table.caption = f"the first {LONGEST} are shown; fit.json has them all"
    return table


def fit_tables(fit: Fit) -> list[Table]:
    """The coefficients that are not zero, and what they cost."""
    of = f" of ln odds of {escape(repr(fit.classes[1]))}" if fit.classes else ""
    table = Table(title=f"Coefficients{of}", title_justify="left")
    table.add_column("feature")
    table.add_column("coefficient", justify="right")
    if fit.standardised is not None:
        table.add_column("standardised", justify="right")
    found = [k for k, value in enumerate(fit.coefficients) if value != 0]
    size = fit.coefficients if fit.standardised is None else fit.standardised
    found = sorted(found, key=lambda k: -abs(size[k]))
    for k in found[:LONGEST]:
        extra = [f"{fit.standardised[k]:.6g}"] if fit.standardised is not None else []
        table.add_row(escape(fit.columns[k]), f"{fit.coefficients[k]:.6g}", *extra)
    table.add_row("(intercept)", f"{fit.intercept:.6g}", *([""] if fit.standardised is not None else []))
    table.caption = f"{len(found)} of {len(fit.columns)} features are used" + (
        f"; the {LONGEST} largest are shown" if len(found) > LONGEST else ""
    )
    of_the_empty, no_bound = "the objective without features", "no bound without a penalty"
    facts = Table(show_header=False)
    for name, value in (
        ("samples at all sites", f"{fit.samples:,}"),
        ("objective", f"{fit.objective:.10g}"),
        ("above the minimum by at most", f"{fit.gap:.1e} of {of_the_empty}" if math.isfinite(fit.gap) else no_bound),
        ("optimality residual", f"{fit.residual:.1e}, relative"),
        ("consensus error", f"{fit.consensus:.1e}, relative"),
        ("iterations", f"{fit.iterations:,}"),
        ("rounds", f"{fit.rounds:,}{_parts(fit.traffic, 'rounds')}"),
        ("bytes sent by all sites", f"{amount(fit.bytes)}{_parts(fit.traffic, 'bytes')}"),
        ("seconds", f"{fit.seconds:.1f}"),
    ):
        facts.add_row(name, value)
    return [table, facts]
