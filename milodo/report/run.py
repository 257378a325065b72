"""A run folder, read: records.csv and run.json, with what the pictures and the page share (names, order, axes)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from milodo.bench.records import Record, read_records
from milodo.bench.run_file import NAME, MethodFacts, RunFile
from milodo.bench.speedup import AXES, Runs, Speedup, curves, group, measured_from_end, metrics_of, quantile, speedup_table
from milodo.errors import InvalidInput, quoted
from milodo.files import is_folder
from milodo.report.styles import Style, base_of, styled
from milodo.status import Status
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
    """Column of the records."""
    name: str
    title: str
    formula: str = ""
    log: bool = True
    """A metric may be negative, and so may a loss; a gap and a distance are not."""


QUANTITIES = {
    "gap": Quantity("gap", "gap", "gap to the optimum", "f(x̄) + r(x̄) − f*"),
    "loss": Quantity("loss", "loss", "loss", "f(x̄) + r(x̄)"),
    "consensus": Quantity("consensus", "consensus error", "consensus error", "(1/n) Σ ‖xᵢ − x̄‖"),
}


MANY = 8
"""Lines that a picture of the usual size can hold."""
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

    def __init__(self, folder: str | Path, records: list[Record] | None = None, file: RunFile | None = None) -> None:
        """Read from the folder, unless given."""
        self.folder = Path(folder)
        if records is None and not is_folder(self.folder):
            raise InvalidInput(
                f"no run folder {quoted(str(folder))}. Run `milodo bench EXPERIMENT.toml` first, and give its run folder."
            )
        self.records = read_records(self.folder / "records.csv") if records is None else records
        if not self.records:
            path = self.folder / "records.csv"
            raise InvalidInput(f"{path} holds no records: the run ended before its first sample. Run it again.")
        self.file = file or RunFile.read(self.folder)
        self._curves: dict[tuple[str, str, str], Curve] = {}

    @property
    def name(self) -> str:
        return self.file.name or self.folder.name

    @property
    def title(self) -> str:
        return self.file.title or self.name

    @cached_property
    def runs(self) -> Runs:
        """By method (in the order of run.json, then of the records) and instance."""
        runs = group(self.records)
        return {method: runs[method] for method in dict.fromkeys([*self.file.methods, *runs]) if method in runs}

    @cached_property
    def methods(self) -> list[str]:
        return list(self.runs)

    def about(self, method: str) -> MethodFacts:
        return self.file.methods.get(method, MethodFacts())

    @cached_property
    def labels(self) -> dict[str, str]:
        """Unique: a label that two methods share gets the second one's key behind it."""
        labels: dict[str, str] = {}
        for method in self.methods:
            about = self.about(method)
            label = about.label or method
            twin = label in labels.values() or (self.base(method) != method and "(" not in label)
            labels[method] = f"{label} ({about.how or method})" if twin else label
            if labels[method] in [labels[other] for other in labels if other != method]:
                labels[method] = method
        return labels

    def base(self, method: str) -> str:
        """'prox-ed' for 'prox-ed (published)' if both ran, else the method itself."""
        return base_of(method, self.runs)

    @cached_property
    def styles(self) -> dict[str, Style]:
        return styled(self.methods)

    @property
    def crowded(self) -> bool:
        """So many lines that second entries of a method step back behind the first."""
        return len(self.methods) > MANY

    @cached_property
    def instances(self) -> int:
        return len({record.instance for record in self.records})

    @cached_property
    def tuned_elsewhere(self) -> bool:
        """No instance of the race was used for tuning: known only where the seeds of tuning were kept."""
        kept = [tuning.seeds for tuning in self.file.tuning.values()]
        used = {seed for seeds in kept for seed in seeds or ()}
        return bool(used) and None not in kept and used.isdisjoint(record.seed for record in self.records)

    @cached_property
    def certified(self) -> bool:
        return any(math.isfinite(record.gap) for record in self.records)

    @cached_property
    def quantities(self) -> list[Quantity]:
        """What is drawn: without a certified optimum there is no gap, and the loss itself is shown; further metrics behind."""
        metrics = [(key, key.replace("_", " ")) for key in metrics_of(self.runs)]
        further = [Quantity(key, name, name, log=False) for key, name in metrics]
        positive = all(record.loss > 0 for record in self.records if math.isfinite(record.loss))
        loss = replace(QUANTITIES["loss"], log=positive)
        return [QUANTITIES["gap"] if self.certified else loss, QUANTITIES["consensus"], *further]

    @cached_property
    def moved(self) -> bool:
        """Whether any method made a step: a race whose stop_gap lies above the start is over before it begins."""
        return any(record.k > 0 for record in self.records)

    @cached_property
    def drawn(self) -> list[Quantity]:
        """Those with anything to draw: the consensus error of one node, for one, is 0 throughout."""
        return [quantity for quantity in self.quantities if self.moved and self.window(quantity)]

    @cached_property
    def axes(self) -> list[Axis]:
        """Iterations, and what else grew with them (a single node, for one, sends nothing)."""
        grew = {axis.key for axis in AXIS.values() if self.moved and any(r.value(axis.key) > 0 for r in self.records)}
        return [axis for axis in AXIS.values() if axis.key in {"k", *grew}]

    @cached_property
    def gaps(self) -> list[float]:
        """That the speed-up table asks for; without an optimum only 0, counted from the loss at which the baseline ended."""
        return [0.0] if self.by_loss else sorted(set(self.file.gaps), reverse=True)

    @cached_property
    def by_loss(self) -> bool:
        """Whether speed-ups are to the loss at which the baseline ended, because no optimum is known."""
        return not self.certified and self.baseline is not None and len(self.methods) > 1 and self.moved

    def to_reach(self, gap: float) -> str:
        """The head of a column."""
        return f"the loss at which {self.labels[self.baseline]} ended" if self.by_loss and self.baseline else f"a gap of {gap:g}"

    @cached_property
    def baseline(self) -> str | None:
        return self.file.baseline if self.file.baseline in self.runs else None

    @cached_property
    def speedups(self) -> list[Speedup]:
        rows = speedup_table(self.records, self.gaps, self.baseline) if self.certified else []
        if self.by_loss and self.baseline:
            rows = speedup_table(measured_from_end(self.records, self.baseline), self.gaps, self.baseline)
        return sorted(rows, key=lambda row: self.methods.index(row.method))

    @cached_property
    def topology(self) -> Topology | None:
        try:
            return self.file.topology.build()
        except InvalidInput as error:
            raise InvalidInput(f"{self.folder / NAME}: {error}") from error

    def at_end(self, method: str, column: str) -> float:
        """Median over instances of what the last record of each says, if that is finite; NaN of nothing."""
        last = (samples[-1].value(column) for samples in self.runs[method].values())
        return quantile(filter(math.isfinite, last), 0.5)

    def curve(self, method: str, axis: str, quantity: Quantity) -> Curve:
        """Computed once."""
        key = (method, axis, quantity.key)
        if key not in self._curves:
            x, *quartiles = curves(self.runs, *key)
            if quantity.log:
                quartiles = [np.where(part > 0, part, np.nan) for part in quartiles]
            self._curves[key] = Curve(np.where(x > 0, x, np.nan), *quartiles)
        return self._curves[key]

    def window(self, quantity: Quantity) -> tuple[float, float] | None:
        """Lowest and highest value worth showing: a diverging method leaves the picture instead of flattening all others."""
        medians = {method: self.curve(method, "k", quantity).median for method in self.methods}
        finite = {method: median[np.isfinite(median)] for method, median in medians.items()}
        calm = [m for m, rows in self.runs.items() if not any(samples[-1].status is Status.DIVERGED for samples in rows.values())]
        shown = [finite[m] for m in (calm or self.methods) if finite[m].size]
        if not shown:
            return None
        low, high = np.clip([np.concatenate(shown).min(), np.concatenate(shown).max()], -HIGHEST, HIGHEST).tolist()
        if quantity.log:
            return max(low, 1 / HIGHEST) / 2, max(high, 1 / HIGHEST) * 3
        margin = 0.05 * ((high - low) or abs(high) or 1.0)
        return low - margin, high + margin
