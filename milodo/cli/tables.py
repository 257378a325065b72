"""What the terminal shows of a run, a tuning, a topology."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.table import Table

from milodo.bench.records import read_json, read_records
from milodo.bench.speedup import Speedup, speedup_table
from milodo.topology import WEIGHTS, Topology, contraction, weights


def parameters(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value:.3g}" for name, value in values.items())


def race_table(folder: Path) -> Table:
    """Median iterations and bytes to each gap, and the speed-up in iterations over the baseline."""
    run, records = read_json(folder / "run.json"), read_records(folder / "records.csv")
    baseline = run["baseline"]
    base_label = run["methods"].get(baseline, {}).get("label", baseline)
    table = Table(
        title=f"{run['problem']} on {run['topology']['name']}, {run['instances']} unseen instances",
        caption=f"Median iterations to a gap (bytes sent by all nodes); x = iterations of {base_label} / of the method",
    )
    table.add_column("method")
    table.add_column("parameters", style="dim")
    for gap in run["gaps"]:
        table.add_column(f"gap {gap:g}", justify="right")
    rows: dict[tuple[str, float, str], Speedup] = {
        (row.method, row.gap, row.axis): row for row in speedup_table(records, run["gaps"], baseline)
    }
    for method, facts in run["methods"].items():
        cells = [_cell(rows.get((method, gap, "k")), rows.get((method, gap, "bytes"))) for gap in run["gaps"]]
        table.add_row(facts["label"], parameters(facts["parameters"]), *cells)
    return table


def _cell(iterations: Speedup | None, sent: Speedup | None) -> str:
    if iterations is None or sent is None:
        return "-"
    if not math.isfinite(iterations.median):
        return "diverged" if 2 * iterations.diverged > iterations.instances else f"> {iterations.last:,.0f}"
    cell = f"{iterations.median:,.0f} ({_bytes(sent.median)})"
    if math.isfinite(iterations.ratio):
        return f"{cell} {iterations.ratio:.2g}x"
    return f"{cell} > {iterations.ratio_least:.2g}x" if iterations.ratio_least > 1 else cell


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def tuning_table(run: dict[str, Any]) -> Table:
    table = Table(title=f"{run['problem']} on {run['topology']['name']}")
    for column in ("method", "parameters", "how", "candidates", "cost to the target"):
        table.add_column(column, justify="right" if column in ("candidates", "cost to the target") else "left")
    for method, facts in run["methods"].items():
        tuning = run["tuning"].get(method)
        if tuning is None:
            table.add_row(facts["label"], parameters(facts["parameters"]), facts["how"], "-", "-")
            continue
        cost = (
            f"{tuning['score']:,.0f} {tuning['cost']}" if tuning["reached"] else f"not within {tuning['iterations']:,} iterations"
        )
        table.add_row(facts["label"], parameters(facts["parameters"]), facts["how"], str(tuning["candidates"]), cost)
    return table


def topology_table(graph: Topology) -> Table:
    table = Table(title=f"{graph}: {graph.n} nodes, {len(graph.edges)} edges, diameter {graph.diameter}", show_header=True)
    degrees = graph.degrees
    table.caption = (
        f"degrees {min(degrees)} to {max(degrees)}, mean {sum(degrees) / graph.n:.3g}; fingerprint {graph.fingerprint}"
    )
    table.add_column("weights")
    table.add_column("λ = max |λ_i(W)|, i ≥ 2", justify="right")
    table.add_column("spectral gap 1 - λ", justify="right")
    table.add_column("rounds to halve disagreement", justify="right")
    for rule in WEIGHTS:
        try:
            lam = contraction(graph, weights(graph, rule))
        except ValueError:
            continue  # 'third' is for rings only
        halving = math.log(2) / -math.log(lam) if 1e-9 < lam < 1 else 0.0
        table.add_row(rule, f"{lam:.6f}", f"{1 - lam:.3e}", f"{halving:.1f}")
    return table
