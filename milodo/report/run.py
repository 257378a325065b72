"""A run folder, read: records.csv and run.json, with what the pictures and the page share (names, order, colours, axes)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from milodo.bench.records import Record, read_json, read_records
from milodo.bench.speedup import AXES, Runs, Speedup, curves_of, group, speedup_table
from milodo.errors import InvalidInput, as_float, quoted, shortened
from milodo.files import is_folder
from milodo.topology import Topology


@dataclass(frozen=True)
class Axis:
    key: str
    """Column of the records."""
    name: str
    """On buttons and in file names."""
    title: str
    """On the axis, with its unit."""
    unit: str
    """Behind a number with an SI prefix; empty for counts."""


AXIS = {
    "k": Axis("k", "iterations", "iterations", ""),
    "rounds": Axis("rounds", "rounds", "rounds of communication", ""),
    "bytes": Axis("bytes", "bytes", "bytes sent by all nodes", "B"),
    "seconds": Axis("seconds", "seconds", "seconds spent in steps", "s"),
}
assert tuple(AXIS) == AXES


@dataclass(frozen=True)
class Quantity:
    key: str
    name: str
    title: str
    formula: str
    log: bool = True
    """A loss may be negative; a gap and a distance are not."""


QUANTITY = {
    "gap": Quantity("gap", "gap", "gap to the optimum", "f(x̄) + r(x̄) − f*"),
    "loss": Quantity("loss", "loss", "loss", "f(x̄) + r(x̄)", log=False),
    "consensus": Quantity("consensus", "consensus error", "consensus error", "(1/n) Σ ‖xᵢ − x̄‖"),
}


@dataclass(frozen=True)
class Style:
    """How a method is drawn: told apart by colour, by dashes and by markers, each enough alone."""

    light: str
    dark: str
    dash: tuple[float, ...]
    marker: str
    """A key of MARKERS."""


# Okabe and Ito's colour-blind-safe palette without its yellow (unreadable on white), a violet and an olive; `dark` is lighter.
COLOURS = (
    ("#0072b2", "#4ea8e6"), ("#d55e00", "#f58344"), ("#009e73", "#2fc79c"), ("#b0508a", "#e39ac6"),
    ("#3b4252", "#d5dbe5"), ("#c98a00", "#f0b73c"), ("#3a9fd6", "#93d3f5"), ("#6a4c93", "#b79fdb"), ("#6b7a00", "#b9c94a"),
)  # fmt: skip
DASHES: tuple[tuple[float, ...], ...] = ((), (8, 3), (9, 3, 2, 3), (14, 4), (12, 3, 2, 3, 2, 3))
DOTS: tuple[float, ...] = (2, 3)
"""Of a variant: a method with other step sizes."""
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P", "x": "X", "star": "*", "pentagon": "p"}
"""plotly's name -> matplotlib's."""
HIGHEST = 1e300
"""Beyond this, or below its inverse, the ends of an axis would overflow when they are scaled."""


@dataclass(frozen=True)
class Curve:
    """x and the quartiles at every sampled iteration; what a log scale cannot show (not positive) is NaN."""

    x: np.ndarray
    median: np.ndarray
    q25: np.ndarray
    q75: np.ndarray


class Run:
    """Everything a report may use. A key missing in run.json, or of the wrong kind, is an empty value here."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not is_folder(self.folder):
            raise InvalidInput(
                f"no run folder {quoted(str(folder))}. Run `milodo bench EXPERIMENT.toml` first, and give its run folder."
            )
        self.records: list[Record] = read_records(self.folder / "records.csv")
        if not self.records:
            raise InvalidInput(
                f"{self.folder / 'records.csv'} holds no records: the run ended before its first sample. Run it again."
            )
        self.json: dict[str, Any] = read_json(self.folder / "run.json")
        self._curves: dict[tuple[str, str, str], Curve] = {}

    def part(self, key: str) -> dict[str, Any]:
        value = self.json.get(key)
        return value if isinstance(value, dict) else {}

    def text(self, key: str) -> str:
        value = self.json.get(key)
        return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""

    @cached_property
    def name(self) -> str:
        return self.text("name") or self.folder.name

    @cached_property
    def runs(self) -> Runs:
        """By method (in the order of run.json, then of the records) and instance."""
        runs = group(self.records)
        order = [*(key for key in self.part("methods") if key in runs), *(key for key in runs if key not in self.part("methods"))]
        return {method: runs[method] for method in order}

    @cached_property
    def methods(self) -> list[str]:
        return list(self.runs)

    def about(self, method: str) -> dict[str, Any]:
        value = self.part("methods").get(method)
        return value if isinstance(value, dict) else {}

    @cached_property
    def labels(self) -> dict[str, str]:
        """Unique: a label that two methods share gets the second one's key behind it."""
        labels: dict[str, str] = {}
        for method in self.methods:
            label = str(self.about(method).get("label") or method)
            twin = label in labels.values() or (self.base(method) != method and "(" not in label)
            labels[method] = f"{label} ({self.about(method).get('how') or method})" if twin else label
            if labels[method] in [labels[other] for other in labels if other != method]:
                labels[method] = method
        return labels

    def base(self, method: str) -> str:
        """'prox-ed' for 'prox-ed (published)' if both ran, else the method itself."""
        base = method.split(" (")[0]
        return base if base in self.runs else method

    @cached_property
    def styles(self) -> dict[str, Style]:
        """Two variants of one method share a colour and differ in dashes and marker."""
        bases = list(dict.fromkeys(self.base(method) for method in self.methods))
        shapes = list(MARKERS)
        styles = {}
        for number, method in enumerate(self.methods):
            at = bases.index(self.base(method))
            light, dark = COLOURS[at % len(COLOURS)]
            dash = DASHES[(at + at // len(COLOURS)) % len(DASHES)] if self.base(method) == method else DOTS
            styles[method] = Style(light, dark, dash, shapes[number % len(shapes)])
        return styles

    @cached_property
    def instances(self) -> int:
        return len({record.instance for record in self.records})

    @cached_property
    def tuned_elsewhere(self) -> bool:
        """No instance of the race was used for tuning: known only where the seeds of tuning were kept."""
        kept = [tuning.get("seeds") for tuning in self.part("tuning").values() if isinstance(tuning, dict)]
        lists = [seeds for seeds in kept if isinstance(seeds, list)]
        used = {seed for seeds in lists for seed in seeds if isinstance(seed, int)}
        return bool(used) and len(lists) == len(kept) and used.isdisjoint(record.seed for record in self.records)

    @cached_property
    def certified(self) -> bool:
        return any(math.isfinite(record.gap) for record in self.records)

    @cached_property
    def converged(self) -> bool:
        return any(record.status == "CONVERGED" for record in self.records)

    @cached_property
    def quantities(self) -> list[Quantity]:
        """What is drawn: without a certified optimum there is no gap, and the loss itself is shown."""
        return [QUANTITY["gap" if self.certified else "loss"], QUANTITY["consensus"]]

    @cached_property
    def moved(self) -> bool:
        """Whether any method made a step: a race whose stop_gap lies above the start is over before it begins."""
        return any(record.k > 0 for record in self.records)

    @cached_property
    def drawn(self) -> list[Quantity]:
        """Those with anything to draw: the consensus error of one node, for one, is 0 throughout."""
        return [quantity for quantity in self.quantities if self.moved and self.window(quantity.key)]

    @cached_property
    def axes(self) -> list[Axis]:
        """Iterations, and what else grew with them (a single node, for one, sends nothing)."""
        grew = {axis.key for axis in AXIS.values() if self.moved and any(getattr(r, axis.key) > 0 for r in self.records)}
        return [axis for axis in AXIS.values() if axis.key in {"k", *grew}]

    @cached_property
    def gaps(self) -> list[float]:
        return sorted({float(gap) for gap in self.json["gaps"]}, reverse=True)

    @cached_property
    def baseline(self) -> str | None:
        return self.text("baseline") if self.text("baseline") in self.runs else None

    @cached_property
    def speedups(self) -> list[Speedup]:
        rows = speedup_table(self.records, self.gaps, self.baseline) if self.certified else []
        return sorted(rows, key=lambda row: self.methods.index(row.method))

    @cached_property
    def topology(self) -> Topology | None:
        about = self.part("topology")
        n, edges = about.get("n"), about.get("edges")
        if not isinstance(n, int) or not isinstance(edges, list):
            return None
        where = f"{self.folder / 'run.json'}: the topology"
        if not all(isinstance(e, list) and len(e) == 2 and all(isinstance(i, int) and 0 <= i < n for i in e) for e in edges):
            raise InvalidInput(f"{where} has edges that are not pairs of nodes 0 .. {n - 1}. The file was edited; run again.")
        if len(edges) < n - 1:  # before so many nodes are made
            raise InvalidInput(f"{where} has {n} nodes, which {len(edges)} edges cannot join. The file was edited; run again.")
        graph = nx.Graph()
        graph.add_nodes_from(range(n))
        graph.add_edges_from(edges)
        try:
            return Topology.from_graph(graph, str(about.get("name") or "graph"))
        except InvalidInput as error:
            raise InvalidInput(f"{where} is none. {shortened(error, 300)}") from error

    def curve(self, method: str, axis: str, quantity: str) -> Curve:
        """Computed once."""
        key = (method, axis, quantity)
        if key not in self._curves:
            x, *quartiles = curves_of(self.runs, *key)
            if QUANTITY[quantity].log:
                quartiles = [np.where(part > 0, part, np.nan) for part in quartiles]
            self._curves[key] = Curve(np.where(x > 0, x, np.nan), *quartiles)
        return self._curves[key]

    def window(self, quantity: str) -> tuple[float, float] | None:
        """Lowest and highest value worth showing: a diverging method leaves the picture instead of flattening all others."""
        medians = {method: self.curve(method, "k", quantity).median for method in self.methods}
        finite = {method: median[np.isfinite(median)] for method, median in medians.items()}
        calm = [m for m, rows in self.runs.items() if not any(samples[-1].status == "DIVERGED" for samples in rows.values())]
        shown = [finite[m] for m in (calm or self.methods) if finite[m].size]
        if not shown:
            return None
        low, high = np.clip([np.concatenate(shown).min(), np.concatenate(shown).max()], -HIGHEST, HIGHEST).tolist()
        if QUANTITY[quantity].log:
            return max(low, 1 / HIGHEST) / 2, max(high, 1 / HIGHEST) * 3
        margin = 0.05 * ((high - low) or abs(high) or 1.0)
        return low - margin, high + margin


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def finite(value: Any) -> float | None:
    number = as_float(value)
    return number if number is not None and math.isfinite(number) else None
