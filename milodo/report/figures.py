"""Pictures as files, PNG and SVG: curves of a run, and a graph. Figure objects only, so that no global state is left behind."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

from milodo.report.endings import budgets
from milodo.report.layout import layout, node_size
from milodo.report.run import Axis, Quantity, Run
from milodo.report.styles import MARKERS
from milodo.report.words import number, power
from milodo.topology import Topology

FORMATS = ("png", "svg")
INK, FAINT, GRID = "#1f2933", "#5b6672", "#e3e7ec"
LARGE = (10.4, 6.4)
"""Inches of a picture with many lines."""
SMALLEST_WITH_ID = 7
"""Points; a smaller node is drawn without its id."""
FEW_POWERS = 1e3
"""From the lowest to the highest value of an axis: below, its ticks are 1, 2, 5 and not powers of ten alone."""
LEARNED = 3.2
"""Points; learned methods stand out among a dozen handcrafted ones."""

RC: Any = {
    "font.family": "sans-serif", "font.size": 11, "axes.titlesize": 12, "axes.labelsize": 11, "axes.edgecolor": "#9aa5b1",
    "axes.labelcolor": INK, "text.color": INK, "xtick.color": FAINT, "ytick.color": FAINT, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.8,
    "legend.frameon": False, "figure.facecolor": "white", "savefig.facecolor": "white", "text.parse_math": False,
    "svg.hashsalt": "milodo",  # the same records give the same file
}  # fmt: skip


def write_figures(run: Run) -> list[Path]:
    """Every picture of a run, as PNG and SVG, into RUN/figures/."""
    folder = run.folder / "figures"
    folder.mkdir(exist_ok=True)
    written = []
    with matplotlib.rc_context(RC):
        for quantity in run.drawn:
            for axis in run.axes:
                figure = new_figure(*(LARGE if run.crowded else (7.2, 4.6)))
                panel = figure.add_subplot()
                draw_curves(panel, run, axis, quantity)
                title = f"{quantity.name.capitalize()} against {axis.title}\n{_over(run)}"
                panel.set_title(title, loc="left", pad=12)
                panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=3.2, borderaxespad=0)
                written += save_figure(figure, folder / f"{quantity.key}-{axis.name}")
        if run.quantities[0] in run.drawn:
            written += save_figure(_race(run), folder / "race")
    if run.topology is not None:
        written += draw_topology(run.topology, folder / "topology")
    return written


def draw_topology(topology: Topology, path: str | Path) -> list[Path]:
    """A picture of a graph with its node ids: to path if it ends in .png, .svg or .pdf, else to path.png and path.svg."""
    x = layout(topology)
    with matplotlib.rc_context(RC):
        figure = new_figure(6, 6)
        panel = figure.add_subplot()
        size = node_size(x)
        points = size * 5.4 * 72 / (1 + 1.5 * size)
        lines = [x[[i, j]] for i, j in topology.edges]
        panel.add_collection(LineCollection(lines, colors="#8895a3", linewidths=float(np.clip(points / 16, 0.3, 1.6)), zorder=1))
        rim = float(np.clip(points / 18, 0.4, 1.6))
        panel.scatter(*x.T, s=points**2, c="#e7f0f8", edgecolors="#0072b2", linewidths=rim, zorder=2)
        if points >= SMALLEST_WITH_ID:
            for i, (a, b) in enumerate(x):
                size_of_id = float(np.clip(points * 0.42, 3, 13))
                panel.text(a, b, str(i), ha="center", va="center_baseline", fontsize=size_of_id, color=INK, zorder=3)
        links = f"{len(topology.edges):,} link" + ("s" if len(topology.edges) != 1 else "")
        nodes = f"{topology.n:,} node" + ("s" if topology.n != 1 else "")
        panel.set_title(f"{shortened_title(topology.name)}: {nodes}, {links}, diameter {topology.diameter}", pad=10)
        margin = size * 0.75
        # A flat graph (a path) needs no square of paper.
        height = max(float(np.ptp(x[:, 1])), 0.12)
        panel.set(xlim=(-margin, 1 + margin), ylim=(0.5 - height / 2 - margin, 0.5 + height / 2 + margin), aspect="equal")
        figure.set_size_inches(6, 0.6 + 5.4 * (height + 2 * margin) / (1 + 2 * margin))
        panel.set_axis_off()
        return save_figure(figure, Path(path))


WIDE, LETTER, LINE = 10.0, 0.088, 0.8
"""Inches of the race, of a letter in its legend, and of the line beside a label."""


def _fits(labels: Sequence[str], columns: int) -> bool:
    """Whether a legend of so many columns, which are filled one after the other, is no wider than the picture."""
    longer, rest = divmod(len(labels), columns)[::-1]
    sizes = [rest + 1] * longer + [rest] * (columns - longer)
    ends = list(itertools.accumulate(sizes))
    widest = [max(map(len, labels[end - size : end])) for size, end in zip(sizes, ends, strict=True) if size]
    return columns == 1 or sum(LETTER * letters + LINE for letters in widest) <= WIDE


def _race(run: Run) -> Figure:
    """The picture of the README: the first quantity against iterations and against bytes, side by side."""
    quantity, axes = run.quantities[0], [axis for axis in run.axes if axis.key in ("k", "bytes")]
    figure = new_figure(WIDE, 5.6 if run.crowded else 4.9)
    panels: Sequence[Axes] = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        draw_curves(panel, run, axis, quantity)
        panel.set_title(f"{quantity.name} against {axis.title}", loc="left", pad=8)
    for panel in panels[1:]:
        panel.set_ylabel("")
    handles, labels = panels[0].get_legend_handles_labels()
    most = len(labels) if len(labels) <= 6 else -(-len(labels) // 2)
    columns = next((count for count in range(most, 0, -1) if _fits(labels, count)), 1)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.0, columnspacing=1.6)
    figure.suptitle(f"{shortened_title(run.title)}\n{_over(run)}", x=0.012, ha="left", fontsize=12)
    return figure


def draw_curves(panel: Axes, run: Run, axis: Axis, quantity: Quantity, *, bands: bool = True) -> None:
    """Median lines and quartile bands of all methods."""
    window = run.window(quantity)
    for method in run.methods:
        curve, style = run.curve(method, axis.key, quantity), run.styles[method]
        dash: Any = (0, tuple(d / 2 for d in style.dash)) if style.dash else "-"
        behind = run.crowded and style.variant  # the first entry of its method has the same colour
        width, above = (LEARNED, 3) if run.about(method).how == "learned" else (1.1, 1.5) if behind else (1.9, 2)
        panel.plot(
            curve.x, np.where(np.isfinite(curve.median), curve.median, np.nan), color=style.light, linestyle=dash,
            linewidth=width, zorder=above, marker="" if behind else MARKERS[style.marker], markersize=5.5,
            markevery=max(1, len(curve.x) // 10), markeredgecolor="white", markeredgewidth=0.6,
            label=shortened_title(run.labels[method], 44),
        )  # fmt: skip
        if bands and not behind and window and run.instances > 1 and len(curve.x):
            # inf at the upper quartile fills to the top of the picture, a quartile of 0 to its bottom.
            low, high = (
                np.clip(np.nan_to_num(q, nan=window[0], posinf=window[1] * 10), *_beyond(window)) for q in (curve.q25, curve.q75)
            )
            seen = ~np.isnan(curve.median) & ~np.isnan(curve.x)
            panel.fill_between(curve.x, low, high, where=seen.tolist(), color=style.light, alpha=0.14, linewidth=0)
    if not panel.dataLim.minposx < np.inf:
        panel.set_xlim(1, 10)  # a run cut off before its first iteration: an empty picture
    panel.set_xscale("log")
    panel.set_xlabel(axis.title)
    panel.set_ylabel(f"{quantity.title}  {quantity.formula}".strip())
    panel.xaxis.set_major_locator(LogLocator(numticks=8))
    panel.xaxis.set_major_formatter(EngFormatter(unit=axis.unit, sep="" if not axis.unit else " "))
    panel.xaxis.set_minor_formatter(NullFormatter())
    if quantity.log and window:  # what is 0 throughout has no logarithm
        panel.set_yscale("log")
        if window[1] / window[0] > FEW_POWERS:
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
        else:  # of ten there would be one or two
            panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
            panel.yaxis.set_minor_formatter(NullFormatter())
    if window:
        panel.set_ylim(*window)


def _beyond(window: tuple[float, float]) -> tuple[float, float]:
    """A band may leave the picture, but not by so much that a renderer overflows."""
    low, high = window
    return (low / 10, high * 10) if low > 0 else (low - (high - low), high + (high - low))


def _over(run: Run) -> str:
    over = "one instance" if run.instances == 1 else f"median (line) and quartiles (band) of {run.instances} instances"
    return over + ("; not all methods were given as many iterations" if budgets(run) else "")


def shortened_title(text: str, limit: int = 90) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> list[Path]:
    given = path.suffix[1:] in (*FORMATS, "pdf")
    paths = [path] if given else [path.with_name(f"{path.name}.{kind}") for kind in FORMATS]
    for target in paths:
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(target.suffix[1:], {})
        figure.savefig(target, dpi=200, metadata=metadata)
        figure.set_layout_engine("none")  # laid out by the first; doing it again for every format costs a third of the time
    return paths
