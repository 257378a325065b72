"""The command that reproduces the paper: one figure or table, or all of them."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from milodo.cli.experiments import use_threads
from milodo.cli.folders import drawing, working_in, writing_to
from milodo.cli.options import DataDir, Threads
from milodo.cli.terminal import as_written, console, say
from milodo.errors import InvalidInput, Stopped, unknown
from milodo.files import atomic, is_file

if TYPE_CHECKING:
    from milodo.paper.panels import Size
    from milodo.paper.reproducer import Reproducer
    from milodo.paper.reproduction import Reproduction

SIZES = ("laptop", "paper")


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Of a figure or table (--list), 'all', or a TOML file.", show_default=False)
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="What there is, what each needs, how long it takes.")] = False,
    size: Annotated[str, typer.Option(help="laptop: at most 15 minutes on 2 cores; paper: the paper's sizes.")] = "laptop",
    train: Annotated[bool, typer.Option("--train", help="Train the optimizers first, instead of loading them.")] = False,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; runs/NAME unless given (with 'all': runs).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew; without it, what was begun goes on.")] = False,
    page: Annotated[Path | None, typer.Option(help="A markdown file in which the section of each is written anew.")] = None,
    threads: Threads = None,
) -> None:
    """Reproduce a figure or table of the paper: race its methods, draw its figure, and say whether its claim holds.

    Writes records, figures like the paper's and report.html to runs/NAME. Ctrl-C keeps what was recorded; the same command
    goes on, and draws again what is complete.
    """
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    if show:
        show_list()
        return
    if name is None:
        raise InvalidInput("which figure? `milodo reproduce --list` shows them all, `milodo reproduce fig-lasso-300` runs one.")
    from milodo.paper.reproduction import NAMES, load_reproduction

    wanted: Size = "paper" if size == "paper" else "laptop"
    options = Options(wanted, train, overwrite, threads, page)
    if name != "all":
        loaded = load_reproduction(name, wanted)
        say(console, line(options.reproduced(loaded, name, out or options.place(Path("runs"), loaded.name), data_dir), 0))
        return
    lines, failed = [], False
    for one in NAMES:
        start = time.monotonic()
        try:
            loaded = load_reproduction(one, wanted)
            done = options.reproduced(loaded, one, options.place(out or Path("runs"), one), data_dir)
            lines.append(line(done, max(map(len, NAMES))))
        except (typer.Exit, typer.Abort):
            raise
        except (InvalidInput, Stopped) as error:
            failed = True
            lines.append(f"{one:{max(map(len, NAMES))}}  not run: {error}")
        except Exception as error:  # a bug in one must not cost the others their turn
            failed = True
            took = time.monotonic() - start
            lines.append(f"{one:{max(map(len, NAMES))}}  failed after {took:.0f} s: {type(error).__name__}: {error}")
    for each in lines:
        say(console, " ".join(each.split("\n")))
    if failed:
        raise typer.Exit(1)


class Options:
    """How to reproduce, whatever it is."""

    def __init__(self, size: Size, train: bool, overwrite: bool, threads: int | None, page: Path | None) -> None:
        self.size, self.train, self.overwrite, self.threads, self.page = size, train, overwrite, threads, page

    def place(self, parent: Path, name: str) -> Path:
        """A folder of its own for every size, and for optimizers of one's own."""
        return parent / (name + ("-paper" if self.size == "paper" else "") + ("-trained" if self.train else ""))

    def command(self, name: str) -> list[str]:
        sized = ["--size", self.size] if self.size != "laptop" else []
        return ["milodo", "reproduce", name, *sized, *(["--train"] if self.train else [])]

    def reproduced(self, loaded: Reproduction, name: str, folder: Path, data_dir: Path | None) -> Reproducer:
        """Trained, run, drawn, and written into the page."""
        import torch

        from milodo.paper.reproducer import Reproducer

        command = shlex.join(self.command(name))
        given = [*(["--data-dir", str(data_dir)] if data_dir else []), "--out", str(folder)]
        again = shlex.join([*self.command(name), *given])
        most = torch.get_num_threads()
        with working_in(folder, "recorded", again) as bars:
            whole = Reproducer(loaded, folder, bars, as_written(command), overwrite=self.overwrite)
            if not self.train:
                whole.check()  # before anything is written
            with whole.timed():
                if self.train:
                    torch.set_num_threads(self.threads or 1)  # with one thread, training goes on to the very same weights
                    whole.train()
                    whole.check()
                for panel in loaded.panels:
                    use_threads(panel.experiment, self.threads, most)
                    whole.run(panel)
        torch.set_num_threads(most)
        with drawing(folder, alone=True):
            report = whole.draw()
        for panel, findings in whole.verdict.findings.items():
            for finding in findings:
                before = "" if panel == "" else "all panels: " if panel == "*" else f"{panel}: "
                say(console, f"{before}{finding.said}: {finding.level}.")
        say(console, f"Open {report} in a browser; the figure is {folder / 'figures' / 'paper.png'}.")
        if self.page is not None:
            write_section(whole, self.page)
        return whole


def line(done: Reproducer, width: int) -> str:
    """Name, verdict, key number, time."""
    from milodo.paper.results_page import spent

    name, found = done.reproduction.name, done.verdict
    return f"{name:{width}}  {found.level}: {found.short} ({spent(done.facts.seconds, done.facts.processor)})"


def write_section(done: Reproducer, page: Path) -> None:
    """The section in the page, the small figure beside it."""
    from milodo.paper.drawing import draw_small
    from milodo.paper.results_page import replaced, section, spent

    about, facts = done.reproduction, done.facts
    with writing_to(page):
        picture = draw_small(done.runs, page.parent / "figures" / f"{about.name}.png", overlay=about.about.overlay)
        figure = picture.relative_to(page.parent).as_posix()
        text = section(
            about, done.runs, done.verdict, command=facts.command, took=spent(facts.seconds, facts.processor), figure=figure
        )
        before = page.read_text(encoding="utf-8") if is_file(page) else ""
        with atomic(page) as part:
            part.write_text(replaced(before, about.name, text), encoding="utf-8")
    say(console, f"Written into {page}, with {picture}.")


def show_list() -> None:
    """Without any data or weights there."""
    from milodo.learned.checkpoint import shipped
    from milodo.paper.reproduction import NAMES, load_reproduction
    from milodo.problems.datasets import data_folder

    table = Table(title="What `milodo reproduce NAME` runs", title_justify="left")
    for column in ("name", "what it shows", "needs", "minutes, laptop / paper"):
        table.add_column(column, no_wrap=column == "name", justify="right" if column.startswith("minutes") else "left")
    there = shipped()
    for name in NAMES:
        loaded = load_reproduction(name)
        data = [f"{each} ({'there' if any((data_folder() / each).glob('*')) else 'missing'})" for each in loaded.about.needs]
        weights = [f"{each} ({'there' if each in there else 'missing'})" for each in loaded.weights]
        minutes = " / ".join(f"{each:,.0f}" for each in loaded.about.minutes)
        table.add_row(name, escape(loaded.title), escape(", ".join([*data, *weights]) or "nothing"), minutes)
    console.print(table)
    say(console, f"Data sets are looked for in {data_folder()} (--data-dir, MILODO_DATA). Run all: milodo reproduce all")
