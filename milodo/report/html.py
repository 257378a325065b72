"""One self-contained HTML page about a run: no network access, not even for fonts. Every string of run.json is untrusted."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from milodo.files import atomic
from milodo.report import tuning, words
from milodo.report.endings import budgets, line_ends
from milodo.report.figures import write_figures
from milodo.report.layout import layout, node_size
from milodo.report.run import Run
from milodo.report.spoken import spoken
from milodo.solvers.certificates import BOUNDS

HERE = Path(__file__).parent
CHARTS = HERE / "vendor" / "plotly-basic.min.js"
"""The part of plotly.js that draws lines; vendor/README.md says where it comes from."""
PICTURE = 320
"""Side of the square the graph is drawn in."""
SMALLEST_WITH_ID = 6
"""Radius; a smaller node is drawn without its id."""
PRINTED = 12
"""Candidates of a method on paper; on a screen all of them."""
PROVENANCE = {
    "started": "started", "command": "command", "milodo": "milodo", "commit": "commit", "python": "Python", "torch": "PyTorch",
    "numpy": "NumPy", "platform": "platform", "cores": "cores", "threads": "threads", "dtype": "numbers", "device": "device",
    "seed": "seed",
}  # fmt: skip
"""Keys of run.json's provenance in the order shown -> what they are called."""


def write_report(run: Run) -> Path:
    """Writes report.html and the pictures it links to into the run's folder; returns the page's path."""
    figures = write_figures(run)
    target = run.folder / "report.html"
    with atomic(target) as part:
        part.write_text(_render(run, figures), encoding="utf-8")
    return target


def template(path: Path) -> jinja2.Template:
    """A page to be filled in; every text that goes into it is escaped, and `css` is the style sheet of all pages."""
    strict, files = jinja2.StrictUndefined, jinja2.FileSystemLoader(path.parent)
    environment = jinja2.Environment(loader=files, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=strict)
    environment.filters["number"] = words.number
    environment.globals["css"] = Markup((HERE / "report.css").read_text(encoding="utf-8"))
    return environment.get_template(path.name)


@cache
def _template() -> jinja2.Template:
    """Compiled once: that takes four times as long as filling it in."""
    return template(HERE / "report.html.j2")


@cache
def charts_script() -> str:
    """plotly.js, which every page carries with it."""
    return CHARTS.read_text(encoding="utf-8")


def _render(run: Run, figures: list[Path]) -> str:
    script, plotly = (HERE / "report.js").read_text(encoding="utf-8"), charts_script()
    return _template().render(
        run=run,
        summary=words.summary(run),
        facts=_facts(run),
        network=_network(run),
        picture=_picture(run),
        data=(data := _data(run)),
        swatches=data["methods"],
        spoken={quantity.key: spoken(run, quantity) for quantity in run.drawn},
        line_ends=line_ends(run),
        budgets=budgets(run),
        tables=_tables(run),
        ends=_ends(run),
        missing=words.join([about.label or key for key, about in run.file.methods.items() if key not in run.runs]),
        settings=(settings := tuning.settings(run)),
        # Said once above the table if it is the same for all.
        search=searches.pop() if len(searches := {row["search"] for row in settings if row["search"]}) == 1 else "",
        grids=tuning.grids(run),
        printed=PRINTED,
        pairs=tuning.pairs(run),
        certificate=_certificate(run),
        provenance=_provenance(run),
        config=json.dumps(config, indent=2, ensure_ascii=False) if (config := run.file.provenance.config) else "",
        figures=_links(run, figures),
        simulated=run.file.runtime in ("", "simulated"),
        plotly=Markup(plotly),
        script=Markup(script),
        # Only these two scripts may run, whatever a string in run.json says; and nothing may be fetched.
        policy="default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src "
        + " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (plotly, script)),
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    facts = [
        ("problem", run.file.problem),
        ("network", run.file.topology.name),
        ("instances", f"{run.instances:,}, none used for tuning" if run.tuned_elsewhere else f"{run.instances:,}"),
        ("methods", str(len(run.methods))),
        ("runtime", run.file.runtime),
    ]
    return [(name, text) for name, text in facts if text]


def _network(run: Run) -> list[tuple[str, str]]:
    about, topology = run.file.topology, run.topology
    facts: list[tuple[str, Any]] = [("name", about.name), ("nodes", about.n)]
    if topology is not None:
        low, high = min(topology.degrees), max(topology.degrees)
        facts += [("links", len(topology.edges)), ("neighbours of a node", low if low == high else f"{low} to {high}")]
    else:
        facts += [("links", about.links), ("picture", "none of a graph this large" if about.is_large else None)]
    facts += [("diameter", about.diameter), ("mixing weights", about.weights), ("links of an iteration", about.schedule)]
    if about.contraction is not None:
        facts.append(("disagreement left by one round", f"{about.contraction:.4g} of it, at worst"))
    facts.append(("fingerprint", about.fingerprint))
    return [(name, f"{fact:,}" if isinstance(fact, int) else fact) for name, fact in facts if fact not in (None, "")]


def _picture(run: Run) -> dict[str, Any] | None:
    """Circles and lines of the inline SVG, which takes the colours of the page."""
    topology = run.topology
    if topology is None:
        return None
    x = layout(topology)
    radius = float(np.clip(node_size(x) * PICTURE / 2, 1.5, 16))
    flat = max(float(np.ptp(x[:, 1])), 0.05)
    margin = radius + 3
    height = flat * (PICTURE - 2 * margin) + 2 * margin
    across = margin + x[:, 0] * (PICTURE - 2 * margin)
    down = height / 2 + (0.5 - x[:, 1]) * (PICTURE - 2 * margin)
    nodes = [(round(float(a), 1), round(float(b), 1)) for a, b in zip(across, down, strict=True)]
    return {
        "width": PICTURE, "height": round(height, 1), "radius": round(radius, 1), "ids": radius >= SMALLEST_WITH_ID,
        "nodes": nodes, "lines": [(*nodes[i], *nodes[j]) for i, j in topology.edges],
        "label": f"{topology.name}: {topology.n} nodes, {len(topology.edges)} links, diameter {topology.diameter}",
    }  # fmt: skip


def _data(run: Run) -> dict[str, Any]:
    """What the charts draw; inf and NaN do not exist in JSON and become null, a gap in the line."""

    def numbers(values: np.ndarray, limit: float = math.inf) -> list[float | None]:
        clipped = np.where(np.isposinf(values), limit, values)
        return [float(f"{v:.5g}") if math.isfinite(v) else None for v in clipped]

    charts = []
    for quantity in run.drawn:
        window = run.window(quantity)
        top = window[1] * (10 if quantity.log else 2) if window else math.inf
        lines = []
        for method in run.methods:
            c = run.curve(method, "k", quantity)
            x = {axis.key: numbers(run.curve(method, axis.key, quantity).x) for axis in run.axes}
            # Where a quarter of the instances diverged, the band reaches to the top of the chart.
            lines.append({"x": x, "median": numbers(c.median), "q25": numbers(c.q25, top), "q75": numbers(c.q75, top)})
        charts.append({**asdict(quantity), "window": window, "lines": lines})
    methods = [{"label": run.labels[method], **asdict(style)} for method, style in run.styles.items()]
    shown = {"axes": [asdict(axis) for axis in run.axes], "methods": methods, "charts": charts, "instances": run.instances}
    return shown | {"crowded": run.crowded}


def _tables(run: Run) -> list[dict[str, Any]]:
    """One a cost: methods down, gaps across."""

    def cells(method: str, axis: str) -> list[tuple[words.Cell, words.Cell]]:
        rows = [row for row in run.speedups if row.method == method and row.axis == axis]
        return [(words.cost_cell(row), words.ratio_cell(row, run.baseline)) for row in rows]

    return [
        {"axis": axis, "rows": [(run.labels[m], m == run.baseline, cells(m, axis.key)) for m in run.methods]}
        for axis in (run.axes if run.speedups else [])
    ]


def _ends(run: Run) -> list[dict[str, Any]]:
    """How each method ended, and where: medians over instances."""
    rows = []
    for method, instances in run.runs.items():
        last = [samples[-1] for samples in instances.values()]
        endings = []
        for status, count in Counter(record.status for record in last).most_common():
            who = "" if count == len(last) else f"{count} of {len(last)} instances: "
            endings.append({"status": status.name.lower(), "text": who + status.sentence.removeprefix("diverged: ")})
        costs = [words.amount(run.at_end(method, axis.key), axis.key, unit=False) for axis in run.axes]
        values = [words.number(run.at_end(method, q.key), 2) for q in run.quantities]
        rows.append({"label": run.labels[method], "endings": endings, "costs": costs, "values": values})
    return rows


def _certificate(run: Run) -> dict[str, Any] | None:
    about = run.file.reference
    if about is None or not (about.kind or about.largest is not None):
        return None
    optima = [value for value in about.values if value is not None]
    return {
        "kind": about.kind or "certificate",
        "meaning": _meaning(about.kind, about.largest, optima),
        "largest": words.number(about.largest, 2) if about.largest is not None else "",
        "count": len(optima),
        "low": words.number(min(optima), 4) if optima else "",
        "high": words.number(max(optima), 4) if optima else "",
    }


def _meaning(kind: str, largest: float | None, optima: list[float]) -> str:
    """What a certificate says of gaps: a bound is relative to f*, gaps are absolute; a KKT residual is no gap at all."""
    if kind not in BOUNDS or largest is None or not optima:
        return ""
    worst = largest * max(abs(v) for v in optima)
    return f" of f*: gaps near {words.number(worst, 2)} or below it are not meaningful"


def _provenance(run: Run) -> list[tuple[str, str, bool]]:
    """Name, text, and whether it is something to type."""
    about = run.file.provenance.model_dump(exclude={"config"})
    rows = []
    for key in dict.fromkeys([*PROVENANCE, *about]):
        entry = about.get(key)
        if entry in (None, "") or isinstance(entry, dict | list):
            continue
        text = words.value(entry)
        if key == "started":
            with contextlib.suppress(ValueError):  # shown as it is
                text = datetime.fromisoformat(text).strftime("%d %B %Y, %H:%M %Z").strip()
        rows.append((PROVENANCE.get(key, key), text, key in ("command", "commit")))
    return rows


def _links(run: Run, figures: list[Path]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Name of a picture -> its files, relative to the page."""
    links: dict[str, list[tuple[str, str]]] = {}
    for path in figures:
        link = (path.suffix[1:].upper(), path.relative_to(run.folder).as_posix())
        links.setdefault(path.stem.replace("-", " against "), []).append(link)
    return list(links.items())
