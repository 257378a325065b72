"""Commands with real processes or real data: run, solve, node."""

from __future__ import annotations

import glob
import math
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import torch
import typer

from milodo.bench.benchmark import Benchmark
from milodo.cli.main import (
    Dtype,
    ExperimentFile,
    Out,
    Overwrite,
    Resume,
    Seed,
    app,
    command_line,
    complaints,
    console,
    drawing,
    say,
    show_result,
    writing_to,
)
from milodo.cli.progress import Bars
from milodo.cli.tables import fit_tables
from milodo.cli.terminal import as_written
from milodo.config import find_experiment, load_experiment
from milodo.errors import InvalidInput
from milodo.files import locked
from milodo.fit import Fit, Task
from milodo.fit.model import Plan
from milodo.network import place
from milodo.network.distributed import TIMEOUT
from milodo.problems.sites import read_site
from milodo.report import write_report
from milodo.runtime.group import LAUNCHED, Group, Stopped, joined, launched
from milodo.runtime.launch import die_with_parent, launch
from milodo.runtime.race import Processes
from milodo.runtime.sites import fit_here, fit_with_others, write_fit
from milodo.runtime.snapshots import latest

Timeout = Annotated[float, typer.Option(help="Seconds to wait for a neighbour before it counts as lost.", min=0.1)]
SnapshotEvery = Annotated[
    int | None, typer.Option(help="Iterations between two snapshots of every process's state, to --resume from.", min=1)
]


@app.command("run")
def run_for_real(
    experiment: ExperimentFile,
    seed: Seed = None,
    dtype: Dtype = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    processes: Annotated[int | None, typer.Option(help="How many; one a node unless given.", min=1)] = None,
    snapshot_every: SnapshotEvery = None,
    timeout: Timeout = TIMEOUT,
) -> None:
    """Run an experiment for real: one process a node, messages between neighbours only, the same records as `milodo bench`.

    Starts the processes on this machine; started by `torchrun ... -m milodo run EXPERIMENT` each of its processes joins instead.
    """
    loaded = load_experiment(find_experiment(experiment), seed=seed, dtype=dtype)
    folder = out or Path("runs") / f"{loaded.name}-distributed"
    n = loaded.network.build().n
    place(n, processes or n)
    options = {"seed": seed, "dtype": dtype, "processes": processes, "snapshot-every": snapshot_every}
    command = command_line("run", str(experiment), {**options, "timeout": timeout if timeout != TIMEOUT else None}, folder)
    if not launched():
        flags = ["--resume"] * resume + ["--overwrite"] * overwrite
        started = ["run", str(experiment), *shlex.split(command)[3:], *flags]
        code, killed = launch(started, processes or n, timeout=timeout)
        finish(code, killed, command)
        show_report(folder)
        return
    die_with_parent()
    advice = resuming(folder, command, f"To go on with what is not complete: {command} --resume", snapshot_every)
    with advice, joined(timeout, loaded.run.device) as group, bars_of(group) as bars, first_writes(group, folder):
        here = Processes(group, folder, snapshot_every=snapshot_every)
        Benchmark(loaded, folder, bars, as_written(command), place=here).run(resume=resume, overwrite=overwrite)
    if group.rank == 0 and LAUNCHED not in os.environ:
        show_report(folder)


def show_report(folder: Path) -> None:
    with locked(folder), drawing(folder):
        path = write_report(folder)
    show_result(folder, path)


def finish(code: int, killed: str | None, command: str) -> None:
    """The end of launched processes that did not end well."""
    if killed:
        say(complaints, f"milodo: {killed}.")
    if code == 130:
        say(complaints, f"\nStopped. What was recorded is kept.\nGo on with: {command} --resume")
    if code:
        raise typer.Exit(code)


def bars_of(group: Group) -> AbstractContextManager[Bars | None]:
    """Progress from process 0 only; the others would draw over it."""
    return Bars(console) if group.rank == 0 else nullcontext()


def first_writes(group: Group, folder: Path) -> AbstractContextManager[None]:
    """Process 0 writes the results, so it is the one that must be alone in the folder."""
    return locked(folder) if group.rank == 0 else nullcontext()


class resuming:
    """Adds to the message about a lost process from where to go on, or how to begin again where nothing was kept."""

    def __init__(self, folder: Path, command: str, without: str, snapshot_every: int | None) -> None:
        """`without` is what to say where there are no snapshots."""
        self.folder, self.command, self.without, self.snapshot_every = folder, command, without, snapshot_every

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if isinstance(error, Stopped) and self.snapshot_every is None:
            error.add_note(self.without)
        elif isinstance(error, Stopped):
            here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
            found = latest(self.folder / "snapshots", here)
            where = f"from iteration {found[1]} ({found[0]})" if found else "from the start (there is no common snapshot)"
            error.add_note(f"To go on {where}: {self.command} --resume")


Target = Annotated[str, typer.Option(help="The column to predict.", callback=as_written)]
Loss = Annotated[str, typer.Option(help="squared (regression) or logistic (two classes).")]
L1Weight = Annotated[
    float,
    typer.Option("--l1", help="Weight of the L1 penalty; alpha of scikit-learn's Lasso, 1/(C N) of its LogisticRegression."),
]
Graph = Annotated[str, typer.Option(help="Who talks to whom: ring, path, star, complete, ..., grid(2x3), or a file.")]
Links = Annotated[
    str, typer.Option(help="reliable: sums over a spanning tree, the cheapest; lossy: gossip, which survives lost messages.")
]
Intercept = Annotated[bool, typer.Option(help="Fit an intercept, which is not penalised.")]
Standardise = Annotated[
    bool, typer.Option("--standardise", help="Scale features by the mean and variance of all sites, found by consensus.")
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(help="A column that is no feature; may be repeated.", callback=lambda words: [*map(as_written, words or [])]),
]
Method = Annotated[str | None, typer.Option(help="A handcrafted method; a safe one that needs no tuning unless given.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A parameter of --method, e.g. --set gamma=0.1; may be repeated.")]
Optimizer = Annotated[str | None, typer.Option(help="A learned optimizer instead (`milodo optimizers`), or its path.")]
Tolerance = Annotated[
    float, typer.Option(help="Stop when gap, residual and consensus error are below this, each relative to the data's own units.")
]
Iterations = Annotated[int, typer.Option(help="At most so many.", min=1)]


def task_of(
    target: str,
    loss: str,
    l1: float,
    graph: str,
    links: str,
    intercept: bool,
    standardise: bool,
    method: str | None,
    chosen: list[str] | None,
    optimizer: str | None,
    tolerance: float,
    iterations: int,
) -> Task:
    parameters = {}
    for word in chosen or []:
        name, _, value = word.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise InvalidInput(f"--set {word}: write a name and a number, e.g. --set gamma=0.1.") from None
        parameters[name] = int(number) if number.is_integer() and "." not in value and "e" not in value else number
    return Task(
        target=target,
        loss=loss,
        l1=l1,
        graph=graph,
        links=links,
        intercept=intercept,
        standardise=standardise,
        method=method,
        parameters=parameters,
        optimizer=optimizer,
        tolerance=tolerance,
        iterations=iterations,
    )


@app.command()
def solve(
    data: Annotated[
        list[str], typer.Option(help="The sites' files: a pattern such as 'site-*.csv', or repeated.", show_default=False)
    ],
    target: Target = "y",
    loss: Loss = "squared",
    l1: L1Weight = 0.0,
    graph: Graph = "ring",
    links: Links = "reliable",
    intercept: Intercept = True,
    standardise: Standardise = False,
    ignore: Ignore = None,
    method: Method = None,
    chosen: Set = None,
    optimizer: Optimizer = None,
    tolerance: Tolerance = 1e-8,
    iterations: Iterations = 200_000,
    out: Annotated[Path, typer.Option(help="Where fit.json and coefficients.csv go.")] = Path("runs/fit"),
) -> None:
    """Fit one sparse linear model to data at several sites, as if they were pooled: a file a site, all on this machine.

    The sites are simulated in one process. With the files on different machines, start `milodo node` on each.
    """
    task = task_of(target, loss, l1, graph, links, intercept, standardise, method, chosen, optimizer, tolerance, iterations)
    paths = [Path(name) for pattern in data for name in sorted(glob.glob(pattern)) or [pattern]]  # noqa: PTH207
    sites = [read_site(path, target, ignore or []) for path in paths]
    torch.set_num_threads(1)
    with locked(out):
        with Bars(console) as bars:
            fit = fit_here(sites, task, progress_of(bars, task), announce_plan)
        with writing_to(out):
            write_fit(fit, out, task, typed(), "simulated")
    show_fit(fit, out)


@app.command()
def node(
    data: Annotated[Path, typer.Option(help="This site's file. {rank} stands for the node's number.", show_default=False)],
    target: Target = "y",
    loss: Loss = "squared",
    l1: L1Weight = 0.0,
    graph: Graph = "ring",
    links: Links = "reliable",
    intercept: Intercept = True,
    standardise: Standardise = False,
    ignore: Ignore = None,
    method: Method = None,
    chosen: Set = None,
    optimizer: Optimizer = None,
    tolerance: Tolerance = 1e-8,
    iterations: Iterations = 200_000,
    out: Annotated[Path, typer.Option(help="Where node 0 writes fit.json and coefficients.csv.")] = Path("runs/fit"),
    snapshot_every: SnapshotEvery = None,
    resume: Resume = False,
    timeout: Timeout = TIMEOUT,
) -> None:
    """Be one site of a decentralised fit: this process reads its own file and talks to its neighbours only.

    Start one on every machine, with torchrun (docs/decentralised.md) or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set:
    torchrun --nnodes 3 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m milodo node --data site.csv --l1 0.01
    """
    if not launched():
        raise InvalidInput(
            "milodo node is one of several processes: start it with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. "
            "For files on this machine use `milodo solve`."
        )
    if resume and snapshot_every is None:
        raise InvalidInput("--resume goes on from snapshots: give --snapshot-every as well.")
    die_with_parent()
    torch.set_num_threads(1)
    advice = resuming(out, typed(), f"To start again: {typed()}", snapshot_every)
    with advice, joined(timeout) as group, bars_of(group) as bars, first_writes(group, out):
        task = task_of(target, loss, l1, graph, links, intercept, standardise, method, chosen, optimizer, tolerance, iterations)
        site = read_site(Path(str(data).replace("{rank}", str(group.rank))), target, ignore or [])
        first = group.rank == 0
        fit = fit_with_others(
            site,
            task,
            group,
            progress_of(bars, task) if bars else None,
            announce=announce_plan if first else None,
            write=(lambda found: write_fit(found, out, task, typed(), "distributed") and None) if first else None,
            out=out,
            snapshot_every=snapshot_every,
            resume=resume,
        )
    if first:
        show_fit(fit, out)


def typed() -> str:
    """What to type to do the same again."""
    return as_written(shlex.join(["milodo", *(word for word in sys.argv[1:] if word != "--resume")]))


def progress_of(bars: Bars, task: Task) -> Callable[[int, float], None]:
    """Iterations say little about how far there is to go; the fraction is that of the decades to the tolerance."""
    first: list[float] = []

    def progress(k: int, off: float) -> None:
        if not first:
            first.append(off)
        decades = math.log10(max(first[0], 1e-300) / task.tolerance)
        done = math.log10(max(first[0], 1e-300) / max(off, 1e-300)) / decades if decades > 0 else 1.0
        bars("fit", min(max(done, k / task.iterations, 0.0), 0.99) if off > task.tolerance else 1.0, f"k = {k}, off by {off:.0e}")

    return progress


def announce_plan(plan: Plan) -> None:
    say(console, f"Method: {plan.why}.\nIt will cost {plan.cost}.")


def show_fit(fit: Fit, out: Path) -> None:
    console.print(*fit_tables(fit))
    say(console, f"Saved in {out / 'fit.json'} and {out / 'coefficients.csv'}.")
    if fit.status == "DIVERGED":
        say(
            complaints,
            f"milodo: it diverged after {fit.iterations} iterations. Take a smaller step, or leave out --method and --set.",
        )
        raise typer.Exit(1)
    if fit.status != "CONVERGED":
        say(complaints, f"milodo: not converged after {fit.iterations} iterations. Allow more --iterations, or --standardise.")
        raise typer.Exit(1)
