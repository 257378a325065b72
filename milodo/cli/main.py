"""The command line: one short function a command, no mathematics."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import milodo
from milodo.algorithms import METHODS
from milodo.bench.benchmark import Benchmark
from milodo.bench.merge import merge_runs
from milodo.bench.run_file import RunFile
from milodo.cli.progress import Bars
from milodo.cli.tables import optimizers_table, race_tables, topology_table, tuning_table
from milodo.cli.terminal import Terminal, as_written, end, print_whatever_comes
from milodo.config import Experiment, find_experiment, load_experiment
from milodo.errors import InvalidInput
from milodo.files import is_file, is_folder, locked
from milodo.learned import LEARNED
from milodo.learned.checkpoint import find_optimizer, read_card, shipped
from milodo.process import keep_freed_memory, silence_torch
from milodo.report import draw_topology, draw_training, write_report
from milodo.runtime.group import Stopped
from milodo.topology import EXAMPLES, topology
from milodo.training import Trainer, TrainingInterrupted

console = Terminal()
complaints = Terminal(stderr=True)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # commands take it over
    rich_markup_mode="markdown",
    help=f"""**milodo**: decentralised optimization, handcrafted and learned, raced fairly on any graph.

    Data sit at n sites joined by a network; a site talks only to its neighbours; together they solve
    min (1/n) Σ f_i(x) + r(x).

    Start with **milodo demo**. Then copy experiments/demo.toml, change it, and run **milodo bench yours.toml**.

    Methods: {", ".join(METHODS)}; learned: {", ".join(LEARNED)} (**milodo optimizers**, **milodo train**).
    """,
)

ExperimentFile = Annotated[
    Path, typer.Argument(help="A TOML file, or the name of a shipped experiment such as `demo`.", show_default=False)
]
Seed = Annotated[int | None, typer.Option(help="Another seed: other tuning and test instances.", min=0)]
Device = Annotated[str | None, typer.Option(help="Where tensors live: cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str | None, typer.Option(help="float64 or float32. Gaps are always computed in float64.")]
Out = Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME unless given.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already in the folder.")]
Threads = Annotated[int | None, typer.Option(help="Threads torch may use; by the size of the problem unless given.", min=1)]


def version(show: bool) -> None:
    if show:
        console.print(f"milodo {milodo.__version__}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")] = False,
) -> None:
    keep_freed_memory()


@app.command()
def demo(seed: Seed = None, device: Device = None, dtype: Dtype = None, out: Out = None, threads: Threads = None) -> None:
    """The main job in two minutes: tune six methods, race them with two that need none and a learned one, and draw the picture.

    The first run tunes; later ones find the tuning in the cache and take about half the time.
    """
    run_benchmark("demo", {"seed": seed, "device": device, "dtype": dtype}, out, threads, resume=False, overwrite=True)


@app.command()
def bench(
    experiment: ExperimentFile,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    threads: Threads = None,
) -> None:
    """Run an experiment: certify the optimum, tune every method on instances of its own, race them on unseen ones.

    Writes records.csv, run.json, figures and report.html to the run's folder. Ctrl-C keeps what was recorded;
    the same command with --resume goes on.
    """
    options = {"seed": seed, "device": device, "dtype": dtype}
    run_benchmark(str(experiment), options, out, threads, resume=resume, overwrite=overwrite)


@app.command()
def tune(
    experiment: ExperimentFile,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    overwrite: Overwrite = False,
    threads: Threads = None,
) -> None:
    """Only tune: find the best parameters of every method of an experiment, on its tuning instances.

    The result goes into the run's folder, where `milodo bench EXPERIMENT --resume` finds it, and into the cache.
    """
    options = {"seed": seed, "device": device, "dtype": dtype}
    loaded = load_experiment(find_experiment(experiment), **options)
    use_threads(threads, loaded)
    folder = out or Path("runs") / loaded.name
    again = command_line("tune", str(experiment), options, folder)
    try:
        with locked(folder), Bars(console) as bars:
            benchmark = Benchmark(loaded, folder, bars, as_written(again))
            run = benchmark.prepare(resume=not overwrite, overwrite=overwrite)
            benchmark.tune_all()
    except KeyboardInterrupt:
        say(complaints, f"\nStopped. What was tuned is kept in {folder}.\nGo on with: {again}")
        raise typer.Exit(130) from None
    console.print(tuning_table(run))
    say(console, f"Saved in {folder}. Race with these: {command_line('bench', str(experiment), options, folder)} --resume")


@app.command()
def train(
    experiment: ExperimentFile,
    seed: Seed = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    threads: Annotated[int, typer.Option(help="Threads torch may use; with 1 a resumed training is bit-identical.", min=1)] = 1,
) -> None:
    """Train a learned optimizer as an experiment's [training] says, stage by stage, keeping the best on validation.

    Writes NAME.safetensors with its card NAME.json, training.csv, TensorBoard's files and the training curve to the run's
    folder. Ctrl-C loses the batch under way, a kill at most half a minute more; the same command with --resume goes on.
    """
    loaded = load_experiment(find_experiment(experiment), seed=seed)
    torch.set_num_threads(threads)
    folder = out or Path("runs") / loaded.name
    command = command_line("train", str(experiment), {"seed": seed, "threads": threads if threads > 1 else None}, folder)
    try:
        with locked(folder):
            with Bars(console) as bars:
                path = Trainer(loaded, folder, bars, as_written(command)).run(resume=resume, overwrite=overwrite)
            with drawing(folder):
                curve = draw_training(folder)
    except (TrainingInterrupted, KeyboardInterrupt):
        say(complaints, f"\nStopped. What was trained is kept in {folder}.\nGo on with: {command} --resume")
        raise typer.Exit(130) from None
    say(console, f"Trained {path}, with its card beside it; the curve is in {curve}.")
    if not (folder / "tensorboard").exists():
        say(console, "TensorBoard is not installed, so nothing was written for it: pip install 'milodo[train]'.")
    say(console, f'Race it: in [[methods]] write name = "{read_card(path).kind}", weights = "{path}".')


@app.command()
def optimizers(
    name: Annotated[str | None, typer.Argument(help="One of them, or a path: show its whole card.", show_default=False)] = None,
) -> None:
    """List the trained optimizers that come with milodo, and what each is good for; with a name, show its card."""
    if name is not None:
        console.print_json(read_card(find_optimizer(name)).model_dump_json(), ensure_ascii=True)  # no control characters
        return
    console.print(optimizers_table([read_card(path) for path in shipped().values()]))
    say(console, 'Race one: in [[methods]] of an experiment write name = "milodo" and weights = "NAME".')


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run's folder, e.g. runs/demo.")],
    others: Annotated[
        list[Path] | None, typer.Argument(help="More runs of the same problem, e.g. the distributed one.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With several runs: the folder of the report of all.")] = None,
) -> None:
    """Draw the figures and write report.html again, from a run's records alone; a training's curve too. Nothing is re-run.

    With several runs, their records go into one report in a folder of its own.
    """
    if others:
        run = merge_runs([run, *others], out or Path("runs") / "-and-".join(path.name for path in (run, *others)))
    elif out is not None:
        raise InvalidInput("--out is for a report of several runs; one run's report goes into its own folder.")
    if is_file(run / "training.csv"):
        with drawing(run):
            curve = draw_training(run)
        say(console, f"The curve of the training is in {curve}.")
        if not (run / "run.json").exists():
            return
    with drawing(run):
        path = write_report(run)
    show_result(run, path)


@app.command("topology")
def show_topology(
    name: Annotated[
        str, typer.Argument(help=f"A name ({', '.join(EXAMPLES)}), an edge list or a .graphml file.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="Where to draw it, .png, .svg or .pdf; NAME.png unless given.")] = None,
) -> None:
    """Facts of a graph (size, diameter, how fast each choice of weights mixes), and its picture."""
    graph = topology(name)
    path = Path("".join(c if c.isalnum() else "-" for c in Path(graph.name).stem).strip("-") + ".png")
    if out is not None:
        path = out / path if is_folder(out) else out
    if path.suffix not in PICTURES:
        raise InvalidInput(f"cannot draw to {str(path)!r}. Give a name that ends in {', '.join(PICTURES)}.")
    with console.status("mixing and drawing"), writing_to(path):
        table = topology_table(graph)
        written = draw_topology(graph, path)
    console.print(table)
    say(console, f"Drawn to {' and '.join(map(str, written))}.")


PICTURES = (".png", ".svg", ".pdf")
SMALL = 1 << 23
"""Numbers of data in a batch up to which one thread is used: a second one makes the demo's race 1.4
times faster on an idle machine, and made the demo 2.9 times slower on a busy one, where the threads wait for each other."""
FEW = 32
"""Fewer instances than this make rough medians."""


def say(where: Console, text: str) -> None:
    """Plain text: paths may hold what rich would take for markup."""
    where.print(text, markup=False, soft_wrap=True)


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"cannot write to {str(path)!r} ({error.strerror or error}). Choose another place.") from error


@contextmanager
def drawing(folder: Path) -> Iterator[None]:
    """Figures come from files that are whole already: who stops here loses nothing."""
    try:
        with console.status("drawing the figures"), writing_to(folder):
            yield
    except KeyboardInterrupt:
        again = shlex.join(["milodo", "report", str(folder)])
        say(complaints, f"\nStopped while drawing the figures. All results are kept in {folder}.\nDraw them with: {again}")
        raise typer.Exit(130) from None


def use_threads(threads: int | None, experiment: Experiment) -> None:
    problem, run = experiment.problem, experiment.run
    data = problem.n * problem.N * problem.d * min(run.batch or run.instances, run.instances)
    if threads is not None or data <= SMALL:
        torch.set_num_threads(threads or 1)


def command_line(command: str, experiment: str, options: dict[str, Any], folder: Path) -> str:
    """What to type to do the same again."""
    given = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    return shlex.join(["milodo", command, experiment, *given, "--out", str(folder)])


def run_benchmark(
    experiment: str, options: dict[str, Any], out: Path | None, threads: int | None, *, resume: bool, overwrite: bool
) -> None:
    loaded = load_experiment(find_experiment(experiment), **options)
    folder = out or Path("runs") / loaded.name
    command = command_line("bench", experiment, options, folder)
    use_threads(threads, loaded)
    try:
        with locked(folder):
            with Bars(console) as bars:
                Benchmark(loaded, folder, bars, as_written(command)).run(resume=resume, overwrite=overwrite)
            with drawing(folder):
                path = write_report(folder)
    except KeyboardInterrupt:
        say(complaints, f"\nStopped. What was recorded is kept in {folder}.\nGo on with:      {command} --resume")
        if (folder / "records.csv").exists():
            say(complaints, f"Look at it with: {shlex.join(['milodo', 'report', str(folder)])}")
        raise typer.Exit(130) from None
    show_result(folder, path)


def show_result(folder: Path, path: Path) -> None:
    console.print(*race_tables(folder))
    instances = RunFile.read(folder).instances
    if instances is not None and instances < FEW:
        say(console, f"Only {instances} of the {FEW} instances a comparison should have: take these medians as a first look.")
    say(console, f"Open {path} in a browser; figures are in {folder / 'figures'}.")


def run(arguments: list[str] | None = None) -> int:
    """The program: an InvalidInput becomes one sentence and exit code 2."""
    import milodo.cli.processes  # noqa: F401  # adds its commands to the app

    standalone: Callable[..., Any] = app
    try:
        return standalone(args=arguments, standalone_mode=True) or 0
    except InvalidInput as error:
        say(complaints, f"milodo: {error}")
        return 2
    except Stopped as error:
        if not error.said:
            say(complaints, "\n".join([f"milodo: {str(error).removesuffix('.')}.", *getattr(error, "__notes__", [])]))
        return 3


def entry() -> None:
    print_whatever_comes()
    silence_torch()
    try:
        code: Any = run()
    except SystemExit as ended:
        code = ended.code
    end(code if isinstance(code, int) else int(code is not None))
