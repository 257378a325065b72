"""A folder of results: alone in it while working, drawn and shown at the end; what is said to who stops half way."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from milodo.cli.progress import Bars
from milodo.cli.terminal import complaints, console, say
from milodo.errors import InvalidInput
from milodo.files import locked

if TYPE_CHECKING:
    from milodo.report.run import Run

FEW = 32
"""Fewer instances than this make rough medians."""


@contextmanager
def working_in(folder: Path, kept: str, again: str) -> Iterator[Bars]:
    """Alone in the folder, with progress bars; who stops it is told what is kept and how to go on."""
    try:
        with locked(folder), Bars(console) as bars:
            yield bars
    except KeyboardInterrupt:
        say(complaints, f"\nStopped. What was {kept} is kept in {folder}.\nGo on with:      {again}")
        if (folder / "records.csv").exists():
            say(complaints, f"Look at it with: {shlex.join(['milodo', 'report', str(folder)])}")
        raise typer.Exit(130) from None


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"cannot write to {str(path)!r} ({error.strerror or error}). Choose another place.") from error


@contextmanager
def drawing(folder: Path, alone: bool) -> Iterator[None]:
    """Figures come from files that are whole already: who stops here loses nothing."""
    try:
        with console.status("drawing the figures"), locked(folder) if alone else nullcontext(), writing_to(folder):
            yield
    except KeyboardInterrupt:
        again = shlex.join(["milodo", "report", str(folder)])
        say(complaints, f"\nStopped while drawing the figures. All results are kept in {folder}.\nDraw them with: {again}")
        raise typer.Exit(130) from None


def draw_curve(folder: Path, alone: bool = True) -> Path:
    with drawing(folder, alone):
        from milodo.report.training import draw_training

        return draw_training(folder)


def show_run(folder: Path, alone: bool = True) -> Run:
    """Its report, written anew, and its tables."""
    with drawing(folder, alone):
        from milodo.cli.tables import run_tables
        from milodo.report.html import write_report
        from milodo.report.run import Run

        run = Run(folder)
        page = write_report(run)
    console.print(*run_tables(run))
    instances = run.file.instances
    if instances is not None and instances < FEW:
        say(console, f"Only {instances} of the {FEW} instances a comparison should have: take these medians as a first look.")
    say(console, f"Open {page} in a browser; figures are in {folder / 'figures'}.")
    return run
