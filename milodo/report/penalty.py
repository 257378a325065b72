"""The picture of a chosen penalty, from path.json alone: coefficients along the path, and the curve of the cross-validation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from milodo.errors import InvalidInput, shortened
from milodo.files import read_versioned_json
from milodo.report.figures import FAINT, INK, RC, new_figure, save_figure
from milodo.report.styles import PALETTE
from milodo.report.words import power

NAMED = 8
"""Features that are named and coloured: those that are largest where the penalty was chosen."""
OTHERS = "#c3cad2"


def draw_path(folder: Path) -> Path:
    """FOLDER/path.png from FOLDER/path.json."""
    record = read_versioned_json(folder / "path.json")
    try:
        with matplotlib.rc_context(RC):
            figure = new_figure(10.5, 4.4)
            left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
            _coefficients(left, record)
            _curve(right, record)
            (found,) = save_figure(figure, folder / "path.png")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidInput(f"{folder / 'path.json'} does not describe a path of penalties ({shortened(error)}).") from error
    return found


def _coefficients(panel: Axes, record: dict[str, Any]) -> None:
    l1, sizes = np.array(record["penalties"]), np.array(record["coefficients"]) * np.array(record["scale"])
    order = np.lexsort((-np.abs(sizes).max(axis=0), -np.abs(sizes[record["chosen"]])))
    for rank, column in enumerate(order[: NAMED - 1 if len(order) > NAMED else NAMED]):
        name = shortened(record["columns"][column], 24)
        panel.plot(l1, sizes[:, column], color=PALETTE[rank % len(PALETTE)][0], linewidth=1.9, label=name, zorder=3)
    rest = order[NAMED - 1 :] if len(order) > NAMED else order[:0]
    for k, column in enumerate(rest):
        said = f"{len(rest)} others" if k == 0 else None
        panel.plot(l1, sizes[:, column], color=OTHERS, linewidth=0.9, label=said, zorder=2)
    panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=9, handlelength=1.6, borderaxespad=0.2)
    _penalties(panel, record)  # its lines are named in the other panel
    panel.set_ylabel("coefficient × size of its column")
    panel.set_title("Models along the path", loc="left", pad=8)


def _curve(panel: Axes, record: dict[str, Any]) -> None:
    l1, mean, error = (np.array(record[name]) for name in ("penalties", "mean", "error"))
    panel.errorbar(
        l1, mean, yerr=error, color=PALETTE[0][0], ecolor="#9db8cc", elinewidth=1.0, capsize=2.0, marker="o", markersize=3.5,
        linewidth=1.4, zorder=3,
    )  # fmt: skip
    _penalties(panel, record)
    panel.legend(loc="best", fontsize=9, handlelength=1.6, frameon=True, facecolor="white", edgecolor="none", framealpha=0.9)
    panel.set_ylabel(f"{record['measure']} ± standard error")
    folds = record["folds"]
    said = "leaving one site out" if folds == "one site each" else f"{folds.split()[0]} folds inside the sites"
    panel.set_title(f"Cross-validation, {said}", loc="left", pad=8)


def _penalties(panel: Axes, record: dict[str, Any]) -> None:
    """The axis of penalties, the largest at the left, with the chosen one marked."""
    l1, chosen, best = record["penalties"], record["chosen"], record["best"]
    panel.axvline(
        l1[chosen], color=INK, linewidth=1.3, zorder=4, label=f"chosen: {l1[chosen]:.3g}, {record['used'][chosen]} features"
    )
    if best != chosen:
        panel.axvline(l1[best], color=FAINT, linewidth=1.1, linestyle=(0, (4, 3)), zorder=4, label="least mean loss")
    panel.set_xscale("log")
    if max(l1) > min(l1):
        edge = math.exp(0.03 * math.log(max(l1) / min(l1)))
        panel.set_xlim(max(l1) * edge, min(l1) / edge)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel("penalty (log scale, falling)")
