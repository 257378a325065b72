"""The curve of a training, drawn from training.csv alone."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes

from milodo.bench.run_file import Provenance
from milodo.errors import shortened
from milodo.files import read_versioned_json
from milodo.report.figures import INK, RC, new_figure, save_figure
from milodo.training.log import Row, read_rows

LOSS, BEST = "#0072b2", "#d55e00"


def draw_training(folder: str | Path) -> Path:
    """training.png (and .svg) in the folder: the meta-loss of every batch above, the validation score below."""
    folder = Path(folder)
    rows = read_rows(folder / "training.csv")
    config = Provenance.model_validate(read_versioned_json(folder / "training.json")).config or {}
    name = shortened(config.get("name") or folder.name)
    with matplotlib.rc_context(RC):
        figure = new_figure(7.6, 5.8)
        above, below = figure.subplots(2, 1, sharex=True)
        losses = [row for row in rows if math.isfinite(row.loss)]
        above.plot([row.update for row in losses], [row.loss for row in losses], color=LOSS, linewidth=0.9)
        above.set_ylabel("meta-loss of a batch")
        looks = [row for row in rows if not math.isnan(row.validation)]
        validated, diverged = ([row for row in looks if math.isfinite(row.validation) is fine] for fine in (True, False))
        scores = [row.validation if math.isfinite(row.validation) else math.nan for row in looks]  # no line through those
        below.plot([row.update for row in looks], scores, "o-", color=LOSS, markersize=3.5)
        if diverged:
            across = {"transform": below.get_xaxis_transform(), "clip_on": False}
            below.plot([row.update for row in diverged], [0.97] * len(diverged), "x", color=BEST, label="diverges", **across)
        if validated:
            best = min(validated, key=lambda row: row.validation)
            below.plot(best.update, best.validation, "D", color=BEST, markersize=8, label=f"kept: {best.validation:.2f}")
        if looks:
            below.legend()
        below.set_ylabel("validation, log10 gap")
        below.set_xlabel("updates of the weights")
        for panel in (above, below):
            _mark_stages(panel, rows, named=panel is above)
        above.set_title(f"Training of {name}", loc="left", pad=18)
        return save_figure(figure, folder / "training")[0]


def _mark_stages(panel: Axes, rows: list[Row], *, named: bool) -> None:
    """A line where a stage begins, and one for every batch that was rolled back."""
    first = {}
    for row in rows:
        if math.isfinite(row.loss):
            first.setdefault(row.stage, row.update)
        elif row.remark and math.isfinite(row.lr):  # a batch that was undone
            panel.axvline(row.update, color=BEST, linewidth=0.8, alpha=0.5)
    for stage, update in first.items():
        panel.axvline(update, color=INK, linewidth=0.8, linestyle=":")
        if named:
            name = f" stage {stage}" if stage == min(first) else f" {stage}"
            panel.text(update, 1.01, name, transform=panel.get_xaxis_transform(), fontsize=9, color=INK)
