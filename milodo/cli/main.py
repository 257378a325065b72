"""The command line: one short function a command, no mathematics; torch is imported by the commands that compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from milodo.cli import experiments, lists, predict, processes, reproduce, secret, sites
from milodo.cli.process import keep_freed_memory, silence_torch
from milodo.cli.terminal import complaints, console, end, print_whatever_comes, say
from milodo.errors import InvalidInput, Stopped
from milodo.files import is_full
from milodo.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # commands take it over
    rich_markup_mode="markdown",
    help="""**milodo**: decentralised optimization, handcrafted and learned, raced fairly on any graph.

    Data sit at n sites joined by a network; a site talks only to its neighbours; together they solve
    min (1/n) Σ f_i(x) + r(x).

    Start with **milodo demo**. Then **milodo init yours.toml**, change it, and run **milodo bench yours.toml**.
    """,
)
for command in (
    experiments.demo, experiments.init, experiments.bench, experiments.tune, experiments.train, experiments.report,
    reproduce.reproduce,
    lists.methods, lists.optimizers, lists.topology, processes.run, sites.solve, sites.node, secret.secret,
    predict.predict,
):  # fmt: skip
    app.command()(command)


def version(show: bool) -> None:
    if show:
        console.print(f"milodo {__version__}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")] = False,
) -> None:
    keep_freed_memory()


def run(arguments: list[str] | None = None) -> int:
    """The program: an InvalidInput becomes one sentence and exit code 2."""
    standalone: Callable[..., Any] = app
    try:
        return standalone(args=arguments, standalone_mode=True) or 0
    except InvalidInput as error:
        say(complaints, f"milodo: {with_options(error)}")
        return 2
    except OSError as error:
        if not is_full(error):
            raise
        where = f" {str(error.filename)!r}" if error.filename else ""
        say(complaints, f"milodo: cannot write{where} ({error.strerror}). What was written before is whole. Free some space.")
        return 2
    except Stopped as error:
        if not error.said:
            say(complaints, "\n".join([f"milodo: {str(error).removesuffix('.')}.", *getattr(error, "__notes__", [])]))
        return 3


def with_options(error: InvalidInput) -> str:
    """What it says, and the options that do what it advises."""
    remedies, cause = [], error
    while isinstance(cause, InvalidInput):  # what was only put into another sentence
        remedies, cause = [*remedies, *cause.remedies], cause.__cause__
    options = ", ".join(f"--{word.replace('_', '-')}" for word in remedies)
    return f"{str(error).removesuffix('.')} ({options})." if options else str(error)


def entry() -> None:
    print_whatever_comes()
    silence_torch()
    try:
        code: Any = run()
    except SystemExit as ended:
        code = ended.code
    end(code if isinstance(code, int) else int(code is not None))
