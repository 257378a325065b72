"""Options that several commands share, and what to type to do the same again."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from milodo.cli.terminal import as_written
from milodo.errors import InvalidInput


def one_of_both(context: typer.Context, given: bool) -> bool:
    if given and (context.params.get("resume") or context.params.get("overwrite")):
        raise InvalidInput("--resume continues a run and --overwrite replaces it. Choose one of them.")
    return given


def where_data_are(folder: Path | None) -> Path | None:
    if folder is not None:
        os.environ["MILODO_DATA"] = str(folder)
    return folder


ExperimentFile = Annotated[
    Path,
    typer.Argument(help="A TOML file, or the name of a shipped experiment such as `demo`.", show_default=False),
]
Seed = Annotated[int | None, typer.Option(help="Another seed: other tuning and test instances.", min=0)]
Device = Annotated[str | None, typer.Option(help="Where tensors live: cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str | None, typer.Option(help="float64 or float32. Gaps are always computed in float64.")]
Out = Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME unless given.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.", callback=one_of_both)]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a run that is already in the folder.", callback=one_of_both)
]
Threads = Annotated[int | None, typer.Option(help="Threads torch may use; by the size of the problem unless given.", min=1)]
DataDir = Annotated[
    Path | None, typer.Option(help="Where data sets lie; $MILODO_DATA or the cache unless given.", callback=where_data_are)
]
Timeout = Annotated[
    float | None, typer.Option(help="Seconds to wait for a neighbour before it counts as lost; 60 unless given.", min=0.1)
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret",
        help="File with the run's secret, the same for all processes (`milodo secret`); $MILODO_SECRET unless given.",
    ),
]
SnapshotEvery = Annotated[
    int | None, typer.Option(help="Iterations between two snapshots of every process's state, to --resume from.", min=1)
]


def command_line(command: str, experiment: Path, options: dict[str, Any], folder: Path) -> str:
    """What to type to do the same again."""
    given = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    return shlex.join(["milodo", command, str(experiment), *given, "--out", str(folder)])


def typed() -> str:
    """What was typed, to do it again."""
    return as_written(shlex.join(["milodo", *(word for word in sys.argv[1:] if word != "--resume")]))
