"""Commands that run an experiment in this process, and report: demo, bench, tune, train, report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from milodo.cli.folders import draw_curve, show_run, working_in, writing_to
from milodo.cli.options import DataDir, Device, Dtype, ExperimentFile, Out, Overwrite, Resume, Seed, Threads, command_line
from milodo.cli.terminal import as_written, console, say
from milodo.errors import InvalidInput, quoted
from milodo.files import atomic, is_file, make_writable
from milodo.shipped import find_experiment

if TYPE_CHECKING:
    from milodo.config import Experiment

SMALL = 1 << 26
"""Bytes of data in a batch up to which one thread is used: a second one makes the demo's race 1.4
times faster on an idle machine, and made the demo 2.9 times slower on a busy one, where the threads wait for each other."""


def demo(
    seed: Seed = None, device: Device = None, dtype: Dtype = None, out: Out = None, threads: Threads = None,
    quick: Annotated[bool, typer.Option("--quick", help="Four methods, 150 iterations: a first look in half a minute.")] = False,
) -> None:  # fmt: skip
    """The main job in two minutes: tune six methods, race them with two that need none and a learned one, and draw the picture.

    The first run tunes; later ones find the tuning in the cache and take about half the time.
    """
    bench(Path("demo-quick" if quick else "demo"), seed, device, dtype, out, overwrite=True, threads=threads)


def bench(
    experiment: ExperimentFile, seed: Seed = None, device: Device = None, dtype: Dtype = None, out: Out = None,
    resume: Resume = False, overwrite: Overwrite = False, threads: Threads = None, data_dir: DataDir = None,
) -> None:  # fmt: skip
    """Run an experiment: certify the optimum, tune every method on instances of its own, race them on unseen ones.

    Writes records.csv, run.json, figures and report.html to the run's folder. Ctrl-C keeps what was recorded;
    the same command with --resume goes on.
    """
    options = {"seed": seed, "device": device, "dtype": dtype}
    loaded, folder = opened(experiment, options, out, threads)
    from milodo.bench.benchmark import Benchmark

    again = command_line("bench", experiment, options | {"data-dir": data_dir}, folder)
    with working_in(folder, "recorded", f"{again} --resume") as bars:
        Benchmark(loaded, folder, bars, as_written(again)).run(resume=resume, overwrite=overwrite)
    show_run(folder)


def tune(
    experiment: ExperimentFile, seed: Seed = None, device: Device = None, dtype: Dtype = None, out: Out = None,
    overwrite: Overwrite = False, threads: Threads = None, data_dir: DataDir = None,
) -> None:  # fmt: skip
    """Only tune: find the best parameters of every method of an experiment, on its tuning instances.

    The result goes into the run's folder, where `milodo bench EXPERIMENT --resume` finds it, and into the cache.
    """
    options = {"seed": seed, "device": device, "dtype": dtype}
    loaded, folder = opened(experiment, options, out, threads)
    from milodo.bench.benchmark import Benchmark
    from milodo.cli.tables import tuning_table

    again = command_line("tune", experiment, options | {"data-dir": data_dir}, folder)
    with working_in(folder, "tuned", again) as bars:
        benchmark = Benchmark(loaded, folder, bars, as_written(again))
        run = benchmark.prepare(resume=not overwrite, overwrite=overwrite)
        benchmark.tune_all()
    console.print(tuning_table(run))
    say(console, f"Saved in {folder}. Race with these: {command_line('bench', experiment, options, folder)} --resume")


def train(
    experiment: ExperimentFile, seed: Seed = None, out: Out = None, resume: Resume = False, overwrite: Overwrite = False,
    threads: Annotated[int, typer.Option(help="Threads torch may use; with 1 a resumed training is bit-identical.", min=1)] = 1,
    data_dir: DataDir = None,
) -> None:  # fmt: skip
    """Train a learned optimizer as an experiment's [training] says, stage by stage, keeping the best on validation.

    Writes NAME.safetensors with its card NAME.json, training.csv, TensorBoard's files and the training curve to the run's
    folder. Ctrl-C loses the batch under way, a kill at most half a minute more; the same command with --resume goes on.
    """
    loaded, folder = opened(experiment, {"seed": seed}, out, threads)
    from milodo.learned.checkpoint import read_card
    from milodo.training import Trainer

    given = {"seed": seed, "threads": threads if threads > 1 else None, "data-dir": data_dir}
    again = command_line("train", experiment, given, folder)
    with working_in(folder, "trained", f"{again} --resume") as bars:
        path = Trainer(loaded, folder, bars, as_written(again)).run(resume=resume, overwrite=overwrite)
    say(console, f"Trained {path}, with its card beside it; the curve is in {draw_curve(folder)}.")
    if not (folder / "tensorboard").exists():
        say(console, "TensorBoard is not installed, so nothing was written for it: pip install 'milodo[train]'.")
    say(console, f'Race it: in [[methods]] write name = "{read_card(path).kind}", weights = "{path}".')


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
        from milodo.bench.merge import merge_runs

        run = merge_runs([run, *others], out or Path("runs") / "-and-".join(path.name for path in (run, *others)))
    elif out is not None:
        raise InvalidInput("--out is for a report of several runs; one run's report goes into its own folder.")
    if is_file(run / "training.csv"):
        say(console, f"The curve of the training is in {draw_curve(run, alone=False)}.")
        if not (run / "run.json").exists():
            return
    show_run(run, alone=False)


def init(
    experiment: Annotated[Path, typer.Argument(help="The file to write.")] = Path("experiment.toml"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file of that name.")] = False,
) -> None:
    """Write an experiment to begin with: every table with a comment beside each key, ready for `milodo bench`."""
    from milodo.config.template import template

    if experiment.suffix != ".toml":
        raise InvalidInput(f"{quoted(str(experiment))} would be no experiment. Give a name that ends in .toml.")
    if experiment.exists() and not overwrite:
        raise InvalidInput(f"{quoted(str(experiment))} is there already. Choose another name, or replace it.", "overwrite")
    make_writable(experiment.parent)
    with writing_to(experiment), atomic(experiment) as part:
        part.write_text(template(experiment), encoding="utf-8")
    say(console, f"Written to {experiment}. Run it: {shlex.join(['milodo', 'bench', str(experiment)])}")


def loaded_experiment(experiment: Path, **options: Any) -> Experiment:
    """An experiment with the command's options; of a figure of the paper, its first panel at laptop size."""
    path = find_experiment(experiment)  # before anything is imported that computes: a misspelt name is answered at once
    from milodo.config.experiment import parse_experiment, read_content
    from milodo.paper.reproduction import first_panel

    return parse_experiment(first_panel(read_content(path), str(path)), str(path), **options)


def opened(experiment: Path, options: dict[str, Any], out: Path | None, threads: int | None) -> tuple[Experiment, Path]:
    """The experiment and its run's folder; torch has its threads."""
    loaded = loaded_experiment(experiment, **options)
    use_threads(loaded, threads)
    return loaded, out or Path("runs") / loaded.name


def use_threads(experiment: Experiment, threads: int | None, most: int | None = None) -> None:
    """As many as asked for; else one for a small problem, and for a large one `most`, or what torch has."""
    import torch

    run = experiment.run
    data = experiment.family.memory(min(run.batch or run.instances, run.instances))
    if threads is not None or data <= SMALL:
        torch.set_num_threads(threads or 1)
    elif most is not None:
        torch.set_num_threads(most)
