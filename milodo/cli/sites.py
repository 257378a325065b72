"""Commands for one's own data: solve, with all files here, and node, with one file a machine."""

from __future__ import annotations

import dataclasses
import glob
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from milodo.cli.folders import writing_to
from milodo.cli.options import Resume, SecretFile, SnapshotEvery, Timeout, typed
from milodo.cli.processes import first, resuming, warn
from milodo.cli.progress import Bars
from milodo.cli.terminal import as_written, complaints, console, say
from milodo.errors import InvalidInput, unknown
from milodo.files import locked
from milodo.status import Status

if TYPE_CHECKING:
    from milodo.fit import Choice, Fit, Listeners, PenaltyPath, Plan, Task
    from milodo.fit.task import SiteFacts

Target = Annotated[str, typer.Option(help="The column to predict.", callback=as_written)]
LOSSES = ("squared", "logistic")
"""Of tables; more than two classes are fitted by milodo.sklearn alone."""
Loss = Annotated[str, typer.Option(help="squared (regression) or logistic (two classes); milodo.sklearn fits more classes.")]
AUTO = "auto"


def weight(word: str) -> float | str:
    """A number, or auto."""
    if word == AUTO:
        return word
    try:
        return float(word)
    except ValueError:
        raise typer.BadParameter(f"{word!r} is no number. Give one, or 'auto' to have it chosen by cross-validation.") from None


L1Weight = Annotated[
    Any,
    typer.Option(
        "--l1", parser=weight, metavar="FLOAT|auto",
        help="Weight of the L1 penalty; alpha of scikit-learn's Lasso, 1/(C N) of its LogisticRegression. "
        "auto: chosen by cross-validation.",
    ),
]  # fmt: skip
FoldsOption = Annotated[
    str, typer.Option("--folds", help="With --l1 auto: folds of each site's rows, or 'sites' to leave out one site at a time.")
]
RuleOption = Annotated[
    str, typer.Option("--rule", help="With --l1 auto: min (least mean loss) or 1se (sparsest within one standard error of it).")
]
Penalties = Annotated[int, typer.Option("--penalties", help="With --l1 auto: how many are tried.", min=2)]
Seed = Annotated[int, typer.Option("--seed", help="With --l1 auto: of the folds.", min=0)]
Graph = Annotated[str, typer.Option(help="Who talks to whom: ring, path, star, complete, ..., grid(2x3), or a file.")]
Links = Annotated[
    str,
    typer.Option(
        help="reliable: sums over a spanning tree, the cheapest; lossy: gossip, which goes on without lost messages where losses "
        "are simulated. Real links lose none, and a process that does not answer ends the run."
    ),
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
    folds: FoldsOption = "5", rule: RuleOption = "min", penalties: Penalties = 30, seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Where fit.json, coefficients.csv and the path go.")] = Path("runs/fit"),
) -> None:  # fmt: skip
    """Fit one sparse linear model to data at several sites, as if they were pooled: a file a site, all on this machine.

    The sites are simulated in one process. With the files on different machines, start `milodo node` on each.
    """
    import torch

    from milodo.fit.sites import choose_here, fit_here
    from milodo.fit.tables import read_sites

    task, choice = task_of(context, chosen), choice_of(context)
    paths = [Path(name) for pattern in data for name in sorted(glob.glob(pattern)) or [pattern]]  # noqa: PTH207
    sites = read_sites(paths, target, ignore or [], loss)
    torch.set_num_threads(1)
    with locked(out):
        with Bars(console) as bars:
            listeners, path = listeners_of(task, bars), None
            if choice is None:
                fit = fit_here(sites, task, listeners)
            else:
                fit, path = choose_here(sites, task, choice, listeners)
        with writing_to(out):
            write(fit, path, task, choice, out, "simulated")
    show_fit(fit, path, out)


def node(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="This site's file. {rank} stands for the node's number.", show_default=False)],
    target: Target = "y", loss: Loss = "squared", l1: L1Weight = 0.0, graph: Graph = "ring", links: Links = "reliable",
    pay: Pay = "bytes", latency: Latency = None, bandwidth: Bandwidth = None, intercept: Intercept = True,
    standardise: Standardise = False, ignore: Ignore = None, method: Method = None,
    chosen: Set = None, optimizer: Optimizer = None, tolerance: Tolerance = 1e-8, iterations: Iterations = 200_000,
    folds: FoldsOption = "5", rule: RuleOption = "min", penalties: Penalties = 30, seed: Seed = 0,
    out: Annotated[
        Path,
        typer.Option(help="Where node 0 saves fit.json and coefficients.csv; node 2 in OUT/node-2. {rank} stands for the node."),
    ] = Path("runs/fit"),
    snapshot_every: SnapshotEvery = None, resume: Resume = False, timeout: Timeout = None, secret: SecretFile = None,
) -> None:  # fmt: skip
    """Be one site of a decentralised fit: this process reads its own file and talks to its neighbours only.

    Start one on every machine, with torchrun (docs/decentralised.md) or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set:
    torchrun --nnodes 3 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m milodo node --data x.csv --secret KEY

    Between machines all need the same secret: `milodo secret KEY` makes one; copy it to all of them.
    """
    if resume and snapshot_every is None:
        raise InvalidInput("--resume goes on from snapshots: give --snapshot-every as well.")
    import torch

    from milodo.fit.tables import read_site
    from milodo.runtime.group import TIMEOUT, joined, launched
    from milodo.runtime.launch import die_with_parent
    from milodo.runtime.sites import Place, fit_with_others
    from milodo.secret import read_secret

    if not launched():
        raise InvalidInput(
            "milodo node is one of several processes: start it with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. "
            "For files on this machine use `milodo solve`."
        )
    die_with_parent()
    torch.set_num_threads(1)
    place = Place(out, snapshot_every, resume)
    advice = resuming(out, typed(), f"To start again: {typed()}", snapshot_every)
    patience, known = timeout or TIMEOUT, None if secret is None else read_secret(secret)
    with advice, joined(patience, secret=known, warn=warn) as group, first(group, Bars(console)) as bars:
        task, choice, shows = task_of(context, chosen), choice_of(context), group.rank == 0
        site = read_site(Path(str(data).replace("{rank}", str(group.rank))), target, ignore or [], loss)
        fit, path = fit_with_others(
            site, task, group, place=place, choice=choice, listeners=listeners_of(task, bars, shows),
            write=lambda found, path, folder: write(found, path, task, choice, folder, "distributed"),
        )  # fmt: skip
    folder = place.folder(group.rank)
    say(console, f"Node {group.rank} saved its copy of the model in {folder / 'fit.json'}: sha256 {fit.sha256}.")
    if shows:
        show_fit(fit, path, folder)
    if fit.status is not Status.CONVERGED:
        raise typer.Exit(1)


def listeners_of(task: Task, bars: Bars | None, shows: bool = True) -> Listeners:
    """What the terminal shows of a fit; bars only where there are any."""
    from milodo.fit import Listeners

    return Listeners(
        progress=progress_of(bars, task) if bars else None, along=partial(bars, "path") if bars else None,
        announce=announce_plan if shows else None, listing=list_sites if shows else None, caution=warn if shows else None,
    )  # fmt: skip


def task_of(context: typer.Context, chosen: list[str] | None) -> Task:
    """What the options ask for: those that are named as a field of Task, and the chosen parameters."""
    from milodo.extensions import load_installed
    from milodo.fit import Task

    load_installed()
    given = {field.name: context.params[field.name] for field in dataclasses.fields(Task) if field.name in context.params}
    given["l1"] = 0.0 if given["l1"] == AUTO else given["l1"]
    if given["loss"] not in LOSSES:
        raise unknown("loss", given["loss"], LOSSES)
    return Task(**given, parameters=dict(map(parameter, chosen or [])))


def choice_of(context: typer.Context) -> Choice | None:
    """How the penalty is to be chosen, if it is."""
    from milodo.fit import Choice

    given = {name: context.params[name] for name in ("folds", "rule", "penalties", "seed")}
    if context.params["l1"] != AUTO:
        for name in given:
            source = context.get_parameter_source(name)  # by name: some typers bring a click of their own
            if source is not None and source.name != "DEFAULT":
                raise InvalidInput(
                    f"--{name} says how a penalty is chosen, but --l1 is {context.params['l1']:g}. Give --l1 auto."
                )
        return None
    word = given["folds"]
    return Choice(
        folds=int(word) if word.isdecimal() else word, rule=given["rule"], n_alphas=given["penalties"], seed=given["seed"]
    )


def write(fit: Fit, path: PenaltyPath | None, task: Task, choice: Choice | None, out: Path, runtime: str) -> None:
    """All files of a fit; the task is written with the penalty that was chosen."""
    from milodo.fit.tables import write_fit, write_path

    if path is None or choice is None:
        write_fit(fit, out, task, typed(), runtime)
        return
    from milodo.report.penalty import draw_path

    write_fit(fit, out, dataclasses.replace(task, l1=path.penalty), typed(), runtime)
    write_path(path, out, choice)
    draw_path(out)


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
        left = math.log10(min(max(1e-300, off), 1e300))  # also where it is infinite, or no number
        if not first:
            first.append(left)
        decades = first[0] - math.log10(task.tolerance)
        done = (first[0] - left) / decades if decades > 0 else 1.0
        bars("fit", min(max(done, k / task.iterations, 0.0), 0.99) if off > task.tolerance else 1.0, f"k = {k}, off by {off:.0e}")

    return progress


def list_sites(sites: Sequence[SiteFacts]) -> None:
    from milodo.cli.tables import sites_table

    console.print(sites_table(sites))


def announce_plan(plan: Plan) -> None:
    say(console, f"Method: {plan.why}.\nIt will cost {plan.cost}.")


def at_end(path: PenaltyPath) -> str:
    """What it means that the least loss is that of the smallest penalty."""
    if path.chosen == path.best:
        return "The penalty chosen is the smallest that was tried: perhaps none is needed, or one that is smaller still."
    return (
        f"The least loss is that of the smallest penalty that was tried, {path.penalties[path.best]:.3g}, and the loss may fall "
        f"further below it; then one standard error above the least would be at a smaller penalty than {path.penalty:.3g}, too."
    )


def show_fit(fit: Fit, path: PenaltyPath | None, out: Path) -> None:
    from milodo.cli.tables import fit_tables, path_table

    if path is not None:
        console.print(path_table(path))
    console.print(*fit_tables(fit))
    say(console, f"Saved in {out / 'fit.json'} and {out / 'coefficients.csv'}.")
    if path is not None:
        say(console, f"The path is in {out / 'path.json'} and {out / 'path.csv'}, its picture in {out / 'path.png'}.")
        if path.at_end:
            say(console, at_end(path))
    if fit.status is Status.CONVERGED:
        return
    said = f"milodo: not converged after {fit.iterations} iterations. Allow more --iterations, or --standardise."
    if fit.status is Status.DIVERGED:
        said = f"milodo: it diverged after {fit.iterations} iterations. Take a smaller step, or leave out --method and --set."
    say(complaints, said)
    raise typer.Exit(1)
