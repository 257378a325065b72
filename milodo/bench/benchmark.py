"""From an experiment to a folder of records: certify, tune, run, and lose nothing on the way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from milodo.algorithms.auto import learn
from milodo.bench.plan import Planner, Progress, certified, chunks, run_seeds
from milodo.bench.recorder import Recorder, Stopwatch, record
from milodo.bench.records import append_records, read_records, write_records
from milodo.bench.run_file import NAME, GraphFacts, MethodFacts, Provenance, ReferenceFacts, RunFile
from milodo.bench.runtimes import Chunk, Optima, Plan, Runtime, Simulated
from milodo.config import Experiment, MethodTable
from milodo.config.tables import AUTO
from milodo.errors import InvalidInput
from milodo.folder import RunFolder
from milodo.learned import fused
from milodo.loop import check
from milodo.memory import need_memory
from milodo.network import Network
from milodo.problems import Problem
from milodo.provenance import provenance
from milodo.status import Status

UNFINISHED = {Status.RUNNING, Status.INTERRUPTED}
LEAVES = ("records.csv", "report.html", "figures/*.png", "figures/*.svg")


class Benchmark:
    """One experiment in one folder, simulated or as `runtime` carries it out."""

    def __init__(
        self, experiment: Experiment, folder: Path, progress: Progress | None = None, command: str | None = None,
        *, runtime: Runtime | None = None,
    ) -> None:  # fmt: skip
        self.experiment, self.folder, self.command, self.runtime = experiment, folder, command, runtime or Simulated()
        self.progress = progress or (lambda task, fraction, detail: None)
        self.family = experiment.family
        self.dtype = getattr(torch, experiment.run.dtype)
        self.whole = experiment.connected(self.dtype)
        """The network with all of its nodes: what is planned with, and in a simulation what methods run on."""
        self.planner = Planner(experiment, self.whole, self.progress)
        self.records_file = folder / "records.csv"
        self.diverged: list[str] = []
        """Methods that did so on some instance in this run, the same in every process."""
        self.file = RunFile()
        """What run.json says, where it is written."""

    def prepare(self, *, resume: bool = False, overwrite: bool = False) -> RunFile:
        """The folder, checked and writable; the run's facts so far."""
        if not self.experiment.methods:
            raise InvalidInput(f"{self.experiment.name} has no [[methods]], so there is nothing to compare. Add some.")
        self._check_memory()
        folder = RunFolder(self.folder, "run", NAME, LEAVES)
        begun, now = None, self._begun()
        if folder.begin(resume=resume, overwrite=overwrite):
            begun = RunFile.read(self.folder)
            folder.check_same(_identity(begun), _identity(now))
        self.file = begun or now
        self.file.processes = self.runtime.processes
        if begun is None:
            self.file.write(self.folder)
        return self.file

    def _begun(self) -> RunFile:
        """The facts of a run that is about to begin."""
        experiment = self.experiment
        asked = {"seed": experiment.seed, "command": self.command, "config": experiment.model_dump(mode="json")}
        how = fused.provenance() if any(method.learned for method in experiment.methods) else {}
        made_with = {**provenance(), **how, **experiment.run.model_dump(include={"dtype", "device"}), **asked}
        return RunFile(
            name=experiment.name, title=experiment.title or self.family.name, description=experiment.description,
            problem=self.family.name, instances=experiment.run.instances, runtime=self.runtime.name,
            topology=GraphFacts.of(self.whole, experiment.network),
            gaps=experiment.report.gaps, baseline=experiment.report.baseline or experiment.methods[0].key,
            provenance=Provenance.model_validate(made_with),
        )  # fmt: skip

    def _check_memory(self) -> None:
        """Before anything runs: the instances that are held together fit."""
        table, family = self.experiment.run, self.family
        together = min(table.batch or table.instances, table.instances)
        needed = sum(family.memory(together, dtype=dtype) for dtype in {self.dtype, family.judged_in})
        need_memory(needed, f"{together} instances of {family.name}", "Set a smaller batch in [run], or make n, d or N smaller.")

    def run(self, *, resume: bool = False, overwrite: bool = False) -> Path:
        """Everything. Who stops it with Ctrl-C finds in the folder what was recorded, to be resumed."""
        runtime = self.runtime
        resume, overwrite = runtime.begin(self.experiment, self.whole, resume=resume, overwrite=overwrite)
        plan = runtime.shared("plan", Plan, lambda: self._plan(resume=resume, overwrite=overwrite))
        net = runtime.network(self.whole)
        for chunk in chunks(self.experiment):
            if todo := [method for method in self.experiment.methods if (method.key, chunk) not in plan.done]:
                self._run_chunk(todo, plan.methods, chunk, net)
        runtime.finish()
        return self.folder

    def _plan(self, *, resume: bool, overwrite: bool) -> Plan:
        self.prepare(resume=resume, overwrite=overwrite)
        self._check_weights()
        done = self._completed()
        self.tune_all()
        return Plan(methods=self.file.methods, done=done)

    def tune_all(self) -> None:
        """Plans every method; what is tuned already, here or in the cache, is not tuned again."""
        for method in self.experiment.methods:
            if self.planner.is_known(method, self.file.methods.get(method.key, MethodFacts())):
                continue
            self.file.methods[method.key], tuning = self.planner.plan(method)
            if tuning is not None:
                self.file.tuning[method.key] = tuning
            self.file.write(self.folder)

    def _check_weights(self) -> None:
        """Before anything is tuned: the weights exist, fit the graph, and are those that a resumed run began with."""
        for method in self.experiment.methods:
            weights, begun = self.planner.weights(method), self.file.methods.get(method.key, MethodFacts()).weights
            if weights and begun and begun.sha256 != weights.sha256:
                raise InvalidInput(
                    f"{str(self.folder)!r} was begun with other weights of {method.key!r} than {method.weights!r} now holds. "
                    "Overwrite it, or write to another folder.",
                    "overwrite", "out",
                )  # fmt: skip

    def _completed(self) -> list[tuple[str, Chunk]]:
        """Which method has which chunk behind it; rows of anything else are dropped, to be run again."""
        if not self.records_file.exists():
            return []
        rows = read_records(self.records_file, drop_cut_line=True)
        last = {(row.method, row.instance): row.status for row in rows}
        done = [
            (method.key, chunk)
            for method in self.experiment.methods
            for chunk in chunks(self.experiment)
            if all(last.get((method.key, i), Status.RUNNING) not in UNFINISHED for i in range(*chunk))
        ]
        kept = [row for row in rows if any(key == row.method and a <= row.instance < b for key, (a, b) in done)]
        write_records(self.records_file, kept)
        return done

    def _run_chunk(self, todo: Sequence[MethodTable], methods: dict[str, MethodFacts], chunk: Chunk, net: Network) -> None:
        judge, problem = self._instances(chunk, net.nodes)
        known = self.runtime.shared(f"optimum/{chunk[0]}", Optima, lambda: Optima(values=self._optima(chunk, judge)))
        self.runtime.meet(f"data/{chunk[0]}")
        optima, seeds = torch.tensor(known.values, dtype=torch.float64), run_seeds(self.experiment, chunk)
        for method in todo:
            recorder = Recorder(method.key, judge, net, optima, seeds, chunk[0], self.runtime.observer)
            self._run(method, methods[method.key], chunk, problem, recorder)
            if Status.DIVERGED in recorder.ended:
                self.diverged.append(method.key)

    def _instances(self, chunk: Chunk, nodes: Sequence[int]) -> tuple[Problem, Problem]:
        """The instances of a chunk in the precision by which methods are judged, and in that in which they run."""
        device, seeds = self.experiment.run.device, run_seeds(self.experiment, chunk)
        judge = self.family.sample(seeds, nodes, dtype=self.family.judged_in, device=device)
        if self.dtype == self.family.judged_in:
            return judge, judge
        return judge, self.family.sample(seeds, nodes, dtype=self.dtype, device=device)

    def _optima(self, chunk: Chunk, held: Problem) -> list[float]:
        """Certified, and noted in run.json; NaN where there is none. Takes the data of all nodes, be they held here or not."""
        seeds = run_seeds(self.experiment, chunk)
        if not held.knows_lipschitz:
            return [math.nan] * len(seeds)
        whole = held if held.n == self.family.n else self.family.sample(seeds, device=self.experiment.run.device)
        found = certified(whole, "test instances", self.progress)
        if found is None:
            return [math.nan] * len(seeds)
        optima = torch.where(found.certified, found.value, math.nan).tolist()
        instances, so_far = self.experiment.run.instances, self.file.reference or ReferenceFacts()
        values = (so_far.values + [None] * instances)[:instances]
        values[slice(*chunk)] = [None if math.isnan(value) else value for value in optima]
        largest = max(so_far.largest or 0.0, float(found.certificate.max()))
        self.file.reference = ReferenceFacts(kind=so_far.kind or found.kind, largest=largest, values=values)
        self.file.write(self.folder)
        return optima

    def _run(self, method: MethodTable, facts: MethodFacts, chunk: Chunk, problem: Problem, recorder: Recorder) -> None:
        """One method on one chunk."""
        table, runtime, net, watch = self.experiment.run, self.runtime, recorder.net, Stopwatch(problem.device)
        algorithm = self.planner.algorithm(method, facts.parameters or {})[0].at(net.nodes)
        check(algorithm, problem, net)
        limits = table.model_copy(update={"iterations": min(table.iterations, method.iterations or table.iterations)})
        task = f"run {facts.label or method.key}"
        if chunk[1] - chunk[0] < table.instances:
            task += f", instances {chunk[0] + 1} to {chunk[1]}"
        self.progress(task, 0.0, "")
        keeper = runtime.keeper(method, chunk, recorder, watch)
        if method.name == AUTO:
            learn(problem, net)  # what nodes tell each other before they choose is part of the price
        try:
            record(algorithm, problem, net, recorder, limits, lambda f: self.progress(task, f, ""), keeper, watch)
        finally:
            if runtime.writes:
                append_records(self.records_file, recorder.records)
        self.progress(task, 1.0, _outcome(recorder))


def _identity(run: RunFile) -> dict[str, Any]:
    """What a run that goes on must have in common with its beginning."""
    return {"configuration": run.provenance.config, "runtime": run.runtime, "graph": run.topology.fingerprint}


def _outcome(recorder: Recorder) -> str:
    last = [rows[-1] for rows in recorder.rows]
    what = "gap" if any(math.isfinite(row.gap) for row in last) else "loss"
    middle = sorted(row.value(what) for row in last)[len(last) // 2]
    ends = ", ".join(f"{count} {status.name.lower()}" for status, count in Counter(recorder.ended).items())
    return f"{what} {middle:.0e} at k = {max(row.k for row in last)} ({ends})"
