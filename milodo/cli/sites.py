"""Commands for one's own data: solve, with all files here, and node, with one file a machine."""

from __future__ import annotations

import dataclasses
import glob
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from milodo.cli.folders import writing_to
from milodo.cli.options import Resume, SnapshotEvery, Timeout, typed
from milodo.cli.processes import first, resuming
from milodo.cli.progress import Bars
from milodo.cli.terminal import as_written, complaints, console, say
from milodo.errors import InvalidInput
from milodo.files import locked
from milodo.status import Status

if TYPE_CHECKING:
    from milodo.fit import Fit, Task
    from milodo.fit.model import Plan

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
Pay = Annotated[str, typer.Option(help="What is to be least: bytes, rounds or seconds. The method is chosen by it.")]
Latency = Annotated[
    float | None, typer.Option(help="Of a link, in seconds, for --pay seconds. Measured in real runs unless given.", min=0)
]
Bandwidth = Annotated[float | None, typer.Option(help="Of a link, in bytes a second, likewise.", min=1)]
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


def solve(
    context: typer.Context,
    data: Annotated[
        list[str], typer.Option(help="The sites' files: a pattern such as 'site-*.csv', or repeated.", show_default=False)
    ],
    target: Target = "y", loss: Loss = "squared", l1: L1Weight = 0.0, graph: Graph = "ring", links: Links = "reliable",
    pay: Pay = "bytes", latency: Latency = None, bandwidth: Bandwidth = None, intercept: Intercept = True,
    standardise: Standardise = False, ignore: Ignore = None, method: Method = None,
    chosen: Set = None, optimizer: Optimizer = None, tolerance: Tolerance = 1e-8, iterations: Iterations = 200_000,
    out: Annotated[Path, typer.Option(help="Where fit.json and coefficients.csv go.")] = Path("runs/fit"),
) -> None:  # fmt: skip
    """Fit one sparse linear model to data at several sites, as if they were pooled: a file a site, all on this machine.

    The sites are simulated in one process. With the files on different machines, start `milodo node` on each.
    """
    import torch

    from milodo.fit.sites import fit_here
    from milodo.fit.tables import read_site, write_fit

    task = task_of(context, chosen)
    paths = [Path(name) for pattern in data for name in sorted(glob.glob(pattern)) or [pattern]]  # noqa: PTH207
    sites = [read_site(path, target, ignore or []) for path in paths]
    torch.set_num_threads(1)
    with locked(out):
        with Bars(console) as bars:
            fit = fit_here(sites, task, progress_of(bars, task), announce_plan)
        with writing_to(out):
            write_fit(fit, out, task, typed(), "simulated")
    show_fit(fit, out)


def node(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="This site's file. {rank} stands for the node's number.", show_default=False)],
    target: Target = "y", loss: Loss = "squared", l1: L1Weight = 0.0, graph: Graph = "ring", links: Links = "reliable",
    pay: Pay = "bytes", latency: Latency = None, bandwidth: Bandwidth = None, intercept: Intercept = True,
    standardise: Standardise = False, ignore: Ignore = None, method: Method = None,
    chosen: Set = None, optimizer: Optimizer = None, tolerance: Tolerance = 1e-8, iterations: Iterations = 200_000,
    out: Annotated[Path, typer.Option(help="Where node 0 writes fit.json and coefficients.csv.")] = Path("runs/fit"),
    snapshot_every: SnapshotEvery = None, resume: Resume = False, timeout: Timeout = None,
) -> None:  # fmt: skip
    """Be one site of a decentralised fit: this process reads its own file and talks to its neighbours only.

    Start one on every machine, with torchrun (docs/decentralised.md) or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set:
    torchrun --nnodes 3 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m milodo node --data site.csv --l1 0.01
    """
    if resume and snapshot_every is None:
        raise InvalidInput("--resume goes on from snapshots: give --snapshot-every as well.")
    import torch

    from milodo.fit.tables import read_site, write_fit
    from milodo.runtime.group import TIMEOUT, joined, launched
    from milodo.runtime.launch import die_with_parent
    from milodo.runtime.sites import fit_with_others

    if not launched():
        raise InvalidInput(
            "milodo node is one of several processes: start it with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. "
            "For files on this machine use `milodo solve`."
        )
    die_with_parent()
    torch.set_num_threads(1)
    advice = resuming(out, typed(), f"To start again: {typed()}", snapshot_every)
    with advice, joined(timeout or TIMEOUT) as group, first(group, Bars(console)) as bars, first(group, locked(out)):
        task, writes = task_of(context, chosen), group.rank == 0
        site = read_site(Path(str(data).replace("{rank}", str(group.rank))), target, ignore or [])
        fit = fit_with_others(
            site, task, group, progress_of(bars, task) if bars else None,
            announce=announce_plan if writes else None,
            write=(lambda found: write_fit(found, out, task, typed(), "distributed") and None) if writes else None,
            out=out, snapshot_every=snapshot_every, resume=resume,
        )  # fmt: skip
    if writes:
        show_fit(fit, out)


def task_of(context: typer.Context, chosen: list[str] | None) -> Task:
    """What the options ask for: those that are named as a field of Task, and the chosen parameters."""
    from milodo.fit import Task

    given = {field.name: context.params[field.name] for field in dataclasses.fields(Task) if field.name in context.params}
    return Task(**given, parameters=dict(map(parameter, chosen or [])))


def parameter(word: str) -> tuple[str, float]:
    """gamma=0.1 -> gamma, 0.1; K=3 -> K, the whole number 3."""
    name, _, value = word.partition("=")
    try:
        number = float(value)
    except ValueError:
        raise InvalidInput(f"--set {word}: write a name and a number, e.g. --set gamma=0.1.") from None
    return name, int(number) if number.is_integer() and "." not in value and "e" not in value else number


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
    from milodo.cli.tables import fit_tables

    console.print(*fit_tables(fit))
    say(console, f"Saved in {out / 'fit.json'} and {out / 'coefficients.csv'}.")
    if fit.status is Status.CONVERGED:
        return
    said = f"milodo: not converged after {fit.iterations} iterations. Allow more --iterations, or --standardise."
    if fit.status is Status.DIVERGED:
        said = f"milodo: it diverged after {fit.iterations} iterations. Take a smaller step, or leave out --method and --set."
    say(complaints, said)
    raise typer.Exit(1)
