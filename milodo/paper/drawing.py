"""Figures like the paper's: gap above and consensus error below, against iterations, panel beside panel; from records alone."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox
from PIL import Image

from milodo.bench.records import Record
from milodo.bench.run_file import MethodFacts
from milodo.files import atomic
from milodo.report.figures import RC, draw_curves, new_figure, save_figure, shortened_title
from milodo.report.html import template
from milodo.report.run import AXIS, Axis, Quantity, Run
from milodo.report.styles import styled

OVERVIEW = Path(__file__).parent / "overview.html.j2"
ROWS = 2
"""Quantities shown: gap (or loss) and consensus; of networks loss and accuracy."""
ACCURACY = "test_accuracy"
NARROWEST, CROWDED = 7.2, 11.0
"""Inches of a picture of one panel, and of one with many lines, which are named where they end."""
ROOM = 2.6
"""Times the last iteration that the axis reaches to, where lines are named behind their ends."""
ACROSS = 4
"""Panels side by side; further ones begin a new line."""
LETTER = 0.08
"""Inches of a letter in the legend."""
EXACT = 1e-10
"""A consensus error that never exceeds this is rounding."""
COLOURS = 64
"""Of a small picture's palette: enough for lines, and a third of the bytes."""
LARGEST = 150_000
"""Bytes of a small picture."""


def overlaid(panels: Mapping[str, Run]) -> Run:
    """Several runs as one, whose methods are told apart by the name of their panel."""
    first = next(iter(panels.values()))
    records, methods = list[Record](), dict[str, MethodFacts]()
    for panel, run in panels.items():
        alone = len(run.methods) == 1
        names = {method: panel if alone else f"{method} ({panel})" for method in run.methods}
        records += [replace(record, method=names[record.method]) for record in run.records]
        for method, name in names.items():
            label = panel if alone else f"{run.labels[method]}, {panel}"
            methods[name] = run.about(method).model_copy(update={"label": label})
    return Run(first.folder, records, first.file.model_copy(update={"methods": methods}))


def draw_paper(panels: Mapping[str, Run], folder: Path, *, overlay: bool = False) -> list[Path]:
    """FOLDER/figures/paper.png and .svg."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(RC):
        return save_figure(_figure(panels, overlay), folder / "figures" / "paper")


def draw_small(panels: Mapping[str, Run], path: Path, *, overlay: bool = False) -> Path:
    """The same picture for a page, as a PNG of at most LARGEST bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(RC):
        figure = _figure(panels, overlay)
        for dpi in (96, 80, 64, 48):
            drawn = io.BytesIO()
            figure.savefig(drawn, format="png", dpi=dpi)
            small = io.BytesIO()
            Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(small, "png", optimize=True)
            if small.tell() <= LARGEST:
                break
    with atomic(path) as part:
        part.write_bytes(small.getvalue())
    return path


def _quantities(run: Run) -> list[Quantity]:
    shown = run.quantities
    accuracy = [quantity for quantity in shown if quantity.key == ACCURACY]
    return [shown[0], *(accuracy or shown[1:])][:ROWS]


def _lowest(run: Run, quantity: Quantity) -> float | None:
    """Below all methods but those that agree exactly by their nature, whose rounding errors would take half of the picture."""
    medians = [run.curve(method, "k", quantity).median for method in run.methods]
    medians = [median[np.isfinite(median)] for median in medians]
    part = [median.min() for median in medians if median.size and median.max() > EXACT]
    return float(min(part)) / 2 if part else None


def _figure(panels: Mapping[str, Run], overlay: bool) -> Figure:
    if overlay and len(panels) > 1:
        panels = {"": overlaid(panels)}
    runs = list(panels.values())
    methods = list(dict.fromkeys(method for run in runs for method in run.methods))
    styles = styled(methods)
    columns = max(1, min(len(runs), ACROSS))
    named = len(runs) == 1 and runs[0].crowded
    lines, width = -(-max(len(runs), 1) // columns), max(4.1 * columns, CROWDED if named else NARROWEST)
    longest = max((len(run.labels[method]) for run in runs for method in run.methods), default=0)
    across = max(1, min(6, len(methods), int(width / (0.6 + LETTER * longest))))
    figure = new_figure(width, (9.4 if named else 6.3) * lines + 0.24 * -(-len(methods) // across))
    pictures = figure.subplots(ROWS * lines, columns, squeeze=False)
    handles = {}
    for spare in range(len(runs), lines * columns):
        for row in range(ROWS):
            pictures[ROWS * (spare // columns) + row][spare % columns].set_axis_off()
    for number, (name, run) in enumerate(panels.items()):
        line, column = divmod(number, columns)
        run.styles = {method: styles[method] for method in run.methods}
        for row, quantity in enumerate(_quantities(run)):
            picture = pictures[ROWS * line + row][column]
            draw_curves(picture, run, AXIS["k"], quantity, bands=len(run.methods) <= 4)
            picture.set_ylabel(quantity.title)
            if not run.moved:
                picture.text(0.5, 0.5, "the start is the optimum", ha="center", va="center", transform=picture.transAxes)
                picture.set_yticks([])
            if quantity.key == "consensus" and (low := _lowest(run, quantity)) is not None:
                picture.set_ylim(bottom=low)
            drawn = zip(*picture.get_legend_handles_labels(), strict=True)
            handles |= {label: handle for handle, label in drawn if label not in handles}
            if row == 0 and name:
                picture.set_title(name, loc="left", pad=6)
            if row < ROWS - 1:
                picture.set_xlabel("")
            if column:
                picture.set_ylabel("")
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=across, handlelength=2.6,
        columnspacing=1.4, fontsize=9.5,
    )  # fmt: skip
    if named:
        for row, quantity in enumerate(_quantities(runs[0])):
            picture = pictures[row][0]
            picture.set_xlim(right=picture.get_xlim()[1] * ROOM)
            name_lines(figure, picture, runs[0], AXIS["k"], quantity)
    return figure


def name_lines(figure: Figure, panel: Axes, run: Run, axis: Axis, quantity: Quantity) -> None:
    """The label of every method at the end of its line, in its colour; of a second entry the legend alone tells."""
    figure.draw_without_rendering()  # positions are known once the picture is laid out
    taken: list[Bbox] = []
    low, high = panel.get_ylim()
    for method in run.methods:
        curve, style = run.curve(method, axis.key, quantity), run.styles[method]
        seen = np.flatnonzero(np.isfinite(curve.x) & np.isfinite(curve.median) & (curve.median >= low) & (curve.median <= high))
        if style.variant or not seen.size:
            continue
        end = (curve.x[seen[-1]], curve.median[seen[-1]])
        label = shortened_title(run.labels[method], 28)
        note = panel.annotate(
            label, end, (6, 0), textcoords="offset points", color=style.light, fontsize=9.5, va="center",
            fontweight="bold", zorder=5, annotation_clip=False, path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip
        note.set_in_layout(False)
        _settle(note, taken, panel.bbox, figure.dpi)


def _settle(note: Annotation, taken: list[Bbox], inside: Bbox, dpi: float) -> None:
    """Moves a label up or down to the nearest place where no other one is."""
    box = note.get_window_extent()
    places = sorted((step * box.height / 2 for step in range(-24, 25)), key=abs)
    shift = next((p for p in places if _is_free(box.translated(0, p), taken, inside)), 0.0)
    note.set_position((6, shift * 72 / dpi))
    taken.append(box.translated(0, shift))


def _is_free(box: Bbox, taken: list[Bbox], inside: Bbox) -> bool:
    return inside.y0 <= box.y0 and box.y1 <= inside.y1 and not any(box.overlaps(other) for other in taken)


def write_overview(folder: Path, *, name: str, title: str, claim: str, said: list[tuple[str, str]], panels: list[str]) -> Path:
    """FOLDER/report.html of several panels: the figure, what was found, and where each panel's report is."""
    page = template(OVERVIEW).render(name=name, title=title, claim=claim, said=said, panels=panels)
    target = folder / "report.html"
    with atomic(target) as part:
        part.write_text(page, encoding="utf-8")
    return target
