"""Real processes: the command `run`, and what it shares with `node`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from milodo.cli.experiments import loaded_experiment
from milodo.cli.folders import show_run
from milodo.cli.options import (
    Dtype,
    ExperimentFile,
    Out,
    Overwrite,
    Resume,
    SecretFile,
    Seed,
    SnapshotEvery,
    Timeout,
    command_line,
)
from milodo.cli.progress import Bars
from milodo.cli.terminal import as_written, complaints, console, say
from milodo.errors import Stopped
from milodo.files import locked
from milodo.status import Status

if TYPE_CHECKING:
    from milodo.runtime.group import Group

T = TypeVar("T")


def run(
    experiment: ExperimentFile, seed: Seed = None, dtype: Dtype = None, out: Out = None, resume: Resume = False,
    overwrite: Overwrite = False,
    processes: Annotated[int | None, typer.Option(help="How many; one a node unless given.", min=1)] = None,
    snapshot_every: SnapshotEvery = None, timeout: Timeout = None, secret: SecretFile = None,
) -> None:  # fmt: skip
    """Run an experiment for real: one process a node, messages between neighbours only, the same records as `milodo bench`.

    Starts the processes on this machine; started by `torchrun ... -m milodo run EXPERIMENT` each of its processes joins instead.
    """
    loaded = loaded_experiment(experiment, seed=seed, dtype=dtype)
    from milodo.bench.benchmark import Benchmark
    from milodo.network import place
    from milodo.runtime.distributed_benchmark import Processes
    from milodo.runtime.group import LAUNCHED, TIMEOUT, joined, launched
    from milodo.runtime.launch import die_with_parent, launch
    from milodo.secret import read_secret

    folder = out or Path("runs") / f"{loaded.name}-distributed"
    n = loaded.graph.n
    place(n, processes or n)
    options = {"seed": seed, "dtype": dtype, "processes": processes, "snapshot-every": snapshot_every, "timeout": timeout}
    options["secret"] = secret
    command = command_line("run", experiment, options, folder)
    patience, known = timeout or TIMEOUT, None if secret is None else read_secret(secret)
    if not launched():
        flags = ["--resume"] * resume + ["--overwrite"] * overwrite
        finish(*launch([*shlex.split(command)[1:], *flags], processes or n, timeout=patience), command)
        end_as([row.method for row in show_run(folder).records if row.status is Status.DIVERGED])
        return
    die_with_parent()
    advice = resuming(folder, command, f"To go on with what is not complete: {command} --resume", snapshot_every)
    meeting = partial(joined, patience, loaded.run.device, secret=known, warn=warn)
    with advice, meeting() as group, first(group, Bars(console)) as bars, first(group, locked(folder)):
        here = Processes(group, folder, snapshot_every=snapshot_every)
        benchmark = Benchmark(loaded, folder, bars, as_written(command), runtime=here)
        benchmark.run(resume=resume, overwrite=overwrite)
    if LAUNCHED in os.environ:  # who launched it shows the records, and ends as they say
        return
    if group.rank == 0:
        show_run(folder)
    end_as(benchmark.diverged)


def warn(sentence: str) -> None:
    """Of something that does not stop a run."""
    say(complaints, f"milodo: warning: {sentence}")


def end_as(diverged: list[str]) -> None:
    """All is recorded, but what diverged is no success of real processes."""
    if diverged:
        names = ", ".join(dict.fromkeys(diverged))
        say(
            complaints,
            f"milodo: diverged: {names}. Take smaller steps; if `milodo bench` does not diverge, check the nodes' data.",
        )
        raise typer.Exit(1)


def finish(code: int, killed: str | None, command: str) -> None:
    """The end of launched processes that did not end well."""
    if killed:
        say(complaints, f"milodo: {killed}.")
    if code == 130:
        say(complaints, f"\nStopped. What was recorded is kept.\nGo on with: {command} --resume")
    if code:
        raise typer.Exit(code)


def first(group: Group, context: AbstractContextManager[T]) -> AbstractContextManager[T | None]:
    """For process 0 alone: the others would draw over its progress bars, and it is the one that writes the results."""
    return context if group.rank == 0 else nullcontext()


@contextmanager
def resuming(folder: Path, command: str, without: str, snapshot_every: int | None) -> Iterator[None]:
    """Adds to the message about a lost process from where to go on; `without` is what to say where there are no snapshots."""
    try:
        yield
    except Stopped as error:
        if snapshot_every is None:
            error.add_note(without)
            raise
        from milodo.runtime.snapshots import latest

        here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
        found = latest(folder / "snapshots", here)
        where = f"from iteration {found[1]} ({found[0]})" if found else "from the start (there is no common snapshot)"
        error.add_note(f"To go on {where}: {command} --resume")
        raise
