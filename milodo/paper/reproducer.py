"""A figure or table of the paper: its optimizers trained if asked to, its panels run one by one, its claim judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from milodo.bench.benchmark import Benchmark
from milodo.bench.run_file import NAME as RUN_FILE
from milodo.config import load_experiment
from milodo.errors import InvalidInput
from milodo.files import FORMAT, is_file, make_writable, read_versioned_json, write_json
from milodo.paper.drawing import draw_paper, write_overview
from milodo.paper.panels import Size
from milodo.paper.reproduction import Panel, Reproduction
from milodo.paper.verdict import Verdict, verdict
from milodo.problems import instance_seeds
from milodo.report.html import write_report
from milodo.report.run import Run
from milodo.training import Trainer

FACTS = "reproduction.json"
Progress = Callable[[str, float, str], None]


class Facts(BaseModel):
    """What reproduction.json says: all that the records of the panels do not."""

    model_config = ConfigDict(extra="ignore")
    format: int = FORMAT
    name: str = ""
    size: Size = "laptop"
    command: str = ""
    seconds: float = 0.0
    """Of all starts together, training included."""
    processor: float = 0.0
    """Seconds of all of its threads in the same time: what it takes whatever else the machine does."""
    panels: list[str] = []

    @classmethod
    def read(cls, folder: Path) -> Facts:
        try:
            return cls.model_validate(read_versioned_json(folder / FACTS))
        except ValidationError as error:
            raise InvalidInput(f"{folder / FACTS}: not written by milodo. Reproduce it again.", "overwrite") from error


class Reproducer:
    """One reproduction in one folder: with several panels each has a folder of its own within."""

    def __init__(
        self, reproduction: Reproduction, folder: Path, progress: Progress | None = None, command: str = "",
        *, overwrite: bool = False,
    ) -> None:  # fmt: skip
        self.reproduction, self.folder, self.overwrite = reproduction, folder, overwrite
        self.progress = progress or (lambda task, fraction, detail: None)
        begun = Facts.read(folder) if is_file(folder / FACTS) and not overwrite else Facts()
        names = [panel.name for panel in reproduction.panels]
        self.facts = Facts(
            name=reproduction.name, size=reproduction.size, command=command, panels=names,
            seconds=begun.seconds, processor=begun.processor,
        )  # fmt: skip
        self.trained: dict[str, Path] = {}
        """Weights by name that were trained here."""
        self.benchmarks: dict[str, Benchmark] = {}
        """By panel."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Its seconds are added to those of earlier starts, also if it is stopped."""
        make_writable(self.folder)
        clocks = {"seconds": time.perf_counter, "processor": time.process_time}
        start = {name: getattr(self.facts, name) - clock() for name, clock in clocks.items()}
        try:
            yield
        finally:
            self.facts = self.facts.model_copy(update={name: start[name] + clock() for name, clock in clocks.items()})
            write_json(self.folder / FACTS, self.facts.model_dump())

    def folder_of(self, panel: Panel) -> Path:
        """The folder of a panel's run."""
        return self.folder / panel.name if panel.name else self.folder

    def train(self) -> None:
        """Every learned optimizer of the figure, by the experiment of its name; what was begun goes on."""
        for name in self.reproduction.weights:
            folder = self.folder / "training" / name
            resume = is_file(folder / "training.json") and not self.overwrite
            trainer = Trainer(load_experiment(name), folder, self._named(name), f"milodo train {name}")
            self.trained[name] = trainer.run(resume=resume, overwrite=self.overwrite)

    def check(self) -> None:
        """Before the first run: all data and all weights are there."""
        if self.reproduction.about.needs:
            for panel in self.reproduction.panels:
                panel.experiment.family.sample(instance_seeds("test", 1))
        for panel in self.reproduction.panels:
            benchmark = self._benchmark(panel)
            for method in benchmark.experiment.methods:
                benchmark.planner.weights(method)

    def run(self, panel: Panel) -> Path:
        """The benchmark of one panel, from where it was left."""
        benchmark = self._benchmark(panel)
        resume = is_file(benchmark.folder / RUN_FILE) and not self.overwrite
        return benchmark.run(resume=resume, overwrite=self.overwrite)

    def _benchmark(self, panel: Panel) -> Benchmark:
        """Of a panel; made once, when its optimizers are trained."""
        if panel.name not in self.benchmarks:
            experiment, folder = self._with_trained(panel).experiment, self.folder_of(panel)
            self.benchmarks[panel.name] = Benchmark(experiment, folder, self._named(panel.name), self.facts.command)
        return self.benchmarks[panel.name]

    @cached_property
    def runs(self) -> dict[str, Run]:
        """What was recorded, by panel."""
        return {panel.name: Run(self.folder_of(panel)) for panel in self.reproduction.panels}

    @cached_property
    def verdict(self) -> Verdict:
        panels = {panel.name: (self.runs[panel.name], panel.expect) for panel in self.reproduction.panels}
        return verdict(self.reproduction.expect, panels)

    def draw(self) -> Path:
        """The panels' reports, the figure like the paper's, and the page that shows it; the path of the page."""
        pages = [write_report(run) for run in self.runs.values()]
        draw_paper(self.runs, self.folder, overlay=self.reproduction.about.overlay)
        if len(pages) == 1:
            return pages[0]
        found = [(panel, f"{one.said}: {one.level}") for panel, each in self.verdict.findings.items() for one in each]
        said = [("verdict", str(self.verdict.level)), *(("all panels" if panel == "*" else panel, text) for panel, text in found)]
        about = self.reproduction
        return write_overview(
            self.folder, name=about.name, title=about.title, claim=about.about.claim, said=said, panels=list(self.runs)
        )

    def _with_trained(self, panel: Panel) -> Panel:
        """With the weights that were trained here instead of those that are shipped."""
        if not self.trained:
            return panel
        methods = [
            method.model_copy(update={"weights": str(self.trained[method.weights])}) if method.weights in self.trained else method
            for method in panel.experiment.methods
        ]
        return Panel(panel.name, panel.experiment.model_copy(update={"methods": methods}), panel.expect)

    def _named(self, name: str) -> Progress:
        """Tasks of several panels are told apart."""
        return (lambda task, fraction, detail: self.progress(f"{name}: {task}", fraction, detail)) if name else self.progress
