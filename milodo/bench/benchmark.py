"""From an experiment to a folder of records: certify, tune, race, and lose nothing on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from milodo.algorithms import METHODS, Algorithm
from milodo.algorithms.published import published
from milodo.bench import cache
from milodo.bench.recorder import Limits, Recorder, Stopwatch, record
from milodo.bench.records import FORMAT, append_records, read_json, read_records, write_records
from milodo.bench.tuning import Parameters, Search, tune
from milodo.config import Experiment, MethodTable
from milodo.errors import InvalidInput, quoted
from milodo.files import make_writable, write_json
from milodo.learned import Learned
from milodo.learned.checkpoint import load_optimizer
from milodo.memory import need_memory
from milodo.network import Network, Observer
from milodo.problems import Problem, Reference, instance_seeds, optimum
from milodo.provenance import provenance
from milodo.solve import Keeper, Status, check
from milodo.topology import EXACT

Progress = Callable[[str, float, str], None]
"""Called with a task's name, the fraction of it that is done, and a word on where it is."""

UNFINISHED = {Status.RUNNING.name, Status.INTERRUPTED.name}


class Interrupted(Exception):
    """The user stopped the run; the folder holds what was recorded."""

    def __init__(self, folder: Path, done: int, total: int) -> None:
        super().__init__(f"stopped; {done} of {total} methods are complete in {folder}")
        self.folder, self.done, self.total = folder, done, total


class Benchmark:
    """One experiment in one folder."""

    runtime = "simulated"

    def __init__(
        self, experiment: Experiment, folder: Path, progress: Progress | None = None, command: str | None = None
    ) -> None:
        self.experiment, self.folder, self.command = experiment, folder, command
        self.progress = progress or (lambda task, fraction, detail: None)
        self.family = experiment.problem.build()
        self.dtype = getattr(torch, experiment.run.dtype)
        self.net = self._network(self.dtype)
        self.run_file, self.records_file = folder / "run.json", folder / "records.csv"

    def _network(self, dtype: torch.dtype) -> Network:
        return self.experiment.network.network(seed=self.experiment.seed, dtype=dtype, device=self.experiment.run.device)

    def prepare(self, *, resume: bool = False, overwrite: bool = False) -> dict[str, Any]:
        """The folder, checked and writable; the run's facts so far."""
        if not self.experiment.methods:
            raise InvalidInput(f"{self.experiment.name} has no [[methods]], so there is nothing to race. Add some.")
        self._check_memory()
        make_writable(self.folder)
        if resume and overwrite:
            raise InvalidInput("a run is either resumed or overwritten. Choose one of them.")
        config = self.experiment.model_dump(mode="json")
        if self.run_file.exists() and not overwrite:
            if not resume:
                said = f"{str(self.folder)!r} already holds a run. Resume it, overwrite it, or write to another folder."
                raise InvalidInput(said, "resume", "overwrite", "out")
            run = read_json(self.run_file)
            if run["provenance"].get("config") != config:
                raise InvalidInput(
                    f"{str(self.folder)!r} was made with another configuration, and mixing the two would not be a fair race. "
                    "Overwrite it, or write to another folder.",
                    "overwrite", "out",
                )  # fmt: skip
            if run.get("runtime") != self.runtime:
                raise InvalidInput(
                    f"{str(self.folder)!r} holds a {quoted(run.get('runtime'))} run, and this one is {self.runtime}. "
                    "Write to another folder.",
                    "out",
                )
            if run["topology"].get("fingerprint") != self.net.topology.fingerprint:
                said = f"{str(self.folder)!r} was made on another graph than {self.net.topology} is now. Overwrite it."
                raise InvalidInput(said, "overwrite", "out")
            return run
        for stale in (self.records_file, self.folder / "report.html"):
            stale.unlink(missing_ok=True)
        graph, w = self.net.topology, self.experiment.network.weights
        run = {
            "format": FORMAT,
            "name": self.experiment.name,
            "title": self.experiment.title or self.family.name,
            "description": self.experiment.description,
            "problem": self.family.name,
            "instances": self.experiment.run.instances,
            "runtime": self.runtime,
            "topology": {
                "name": graph.name,
                "n": graph.n,
                "edges": [list(edge) for edge in graph.edges],
                **({"diameter": graph.diameter} if graph.n <= EXACT else {}),
                "weights": w,
                "contraction": self.net.contraction,
                "fingerprint": graph.fingerprint,
                "outage": self.experiment.network.outage,
                "messages": self.experiment.network.messages,
            },
            "methods": {},
            "tuning": {},
            "gaps": self.experiment.report.gaps,
            "baseline": self.experiment.report.baseline or self.experiment.methods[0].key,
            "provenance": {
                **provenance(),
                "dtype": self.experiment.run.dtype,
                "device": self.experiment.run.device,
                "seed": self.experiment.seed,
                "command": self.command,
                "config": config,
            },
        }
        write_json(self.run_file, run)
        return run

    def _check_memory(self) -> None:
        """Before anything runs: the instances that are held together fit."""
        table, family = self.experiment.run, self.family
        together = min(table.batch or table.instances, table.instances)
        needed = family.memory(together) + (family.memory(together, dtype=self.dtype) if self.dtype != torch.float64 else 0)
        need_memory(needed, f"{together} instances of {family.name}", "Set a smaller batch in [run], or make n, d or N smaller.")

    def run(self, *, resume: bool = False, overwrite: bool = False) -> Path:
        """Everything; Interrupted if the user stops it."""
        run = self.prepare(resume=resume, overwrite=overwrite)
        self._check_weights(run)
        done = self._completed()
        try:
            self.tune_all(run)
            self._race_all(run, done)
        except KeyboardInterrupt:
            complete = sum(all((m.key, chunk) in done for chunk in self._chunks()) for m in self.experiment.methods)
            raise Interrupted(self.folder, complete, len(self.experiment.methods)) from None
        return self.folder

    def _certify(self, problem: Problem, what: str) -> Reference:
        task = f"certified optimum, {what}"
        self.progress(task, 0.0, "")
        found = optimum(problem, progress=lambda worst: self.progress(task, 0.5, f"largest certificate {worst:.0e}"))
        self.progress(task, 1.0, f"{found.kind} <= {float(found.certificate.max()):.0e}")
        return found

    def tune_all(self, run: dict[str, Any]) -> None:
        """Fills run['methods'] and run['tuning']; what is tuned already, here or in the cache, is not tuned again."""
        lazy: dict[str, Any] = {}
        for method in self.experiment.methods:
            if self._is_known(run, method):
                continue
            parameters, report = ({}, None) if method.learned else self._parameters(method, lazy)
            algorithm, weights = self._algorithm(method, parameters)
            run["methods"][method.key] = {
                "label": algorithm.label + (f" ({method.remark})" if method.remark else ""),
                "parameters": parameters,
                "how": "learned" if method.learned else method.use if METHODS[method.name].space else "nothing",
                "rounds_per_iteration": algorithm.rounds_on(self.net),
                "exact": algorithm.exact,
                "needs": algorithm.needs,
                **({"weights": weights} if weights else {}),
            }
            if report is not None:
                run["tuning"][method.key] = report
            write_json(self.run_file, run)

    def _is_known(self, run: dict[str, Any], method: MethodTable) -> bool:
        """Whether run.json says with which parameters a method runs, and they are such as it can run with."""
        parameters = run["methods"].get(method.key, {}).get("parameters")
        if parameters is None or method.learned:
            return parameters is not None
        try:
            METHODS[method.name](**parameters)
        except (TypeError, InvalidInput):
            return False
        return True

    def _algorithm(self, method: MethodTable, parameters: Parameters) -> tuple[Algorithm, dict[str, str]]:
        """The method, ready to run, and which weights it has if it is learned."""
        if not method.learned:
            return METHODS[method.name](**parameters), {}  # type: ignore[arg-type]
        assert method.weights is not None
        optimizer, card = load_optimizer(method.weights)
        if card.kind != method.name:
            raise InvalidInput(f"{method.weights!r} holds weights of {card.kind!r}, not of {method.name!r}. Change the name.")
        facts = {"name": card.name, "sha256": card.weights.sha256, "trained_on": card.good_for}
        return optimizer.to(self.experiment.run.device), facts

    def _check_weights(self, run: dict[str, Any]) -> None:
        """Before anything is tuned: the weights exist, fit the graph, and are those that a resumed run began with."""
        for method in self.experiment.methods:
            if not method.learned:
                continue
            algorithm, weights = self._algorithm(method, {})
            assert isinstance(algorithm, Learned)
            algorithm.check_network(self.net)
            begun = run["methods"].get(method.key, {}).get("weights", weights)
            if begun.get("sha256") != weights["sha256"]:
                raise InvalidInput(
                    f"{str(self.folder)!r} was begun with other weights of {method.key!r} than {method.weights!r} now holds. "
                    "Overwrite it, or write to another folder.",
                    "overwrite", "out",
                )  # fmt: skip

    def _parameters(self, method: MethodTable, lazy: dict[str, Any]) -> tuple[Parameters, dict[str, Any] | None]:
        """Parameters of a method and, if any of them was searched, how."""
        if method.use == "given":
            return dict(method.parameters), None
        if method.use == "safe":
            return self._safe(METHODS[method.name]), None
        cls, table = METHODS[method.name], self.experiment.tuning
        fixed: Parameters = dict(published(method.name, self.family.name)) if method.use == "published" else {}
        if set(fixed) >= set(cls.space):
            return fixed, None
        seeds = instance_seeds("tuning", table.instances, self.experiment.seed)
        key = {
            "method": method.name,
            "fixed": fixed,
            "problem": self.family.name,
            "seeds": seeds,
            "topology": self.net.topology.fingerprint,
            "weights": self.experiment.network.weights,
            **self.experiment.network.model_dump(include={"outage", "messages"}, exclude_defaults=True),
            "search": table.model_dump(mode="json"),
            "space": {name: repr(kind) for name, kind in cls.space.items()},
        }
        task = f"tune {cls.label}" + (f" ({method.remark})" if method.remark else "")
        result = cache.load(key)
        cached = result is not None
        if result is not None:
            self.progress(task, 1.0, "from the cache")
        else:
            if not lazy:  # the tuning instances are built only if somebody needs them
                lazy["problem"] = self.family.sample(seeds, device=self.experiment.run.device)
                lazy["optimum"] = self._tuning_optimum(lazy["problem"])
                lazy["net"] = self._network(torch.float64)
            self.progress(task, 0.0, "")
            search = Search(**table.model_dump(exclude={"instances"}))
            found = tune(
                cls,
                lazy["problem"],
                lazy["net"],
                lazy["optimum"],
                search,
                fixed=fixed,
                progress=lambda fraction, detail: self.progress(task, min(fraction, 0.99), detail),  # 1 is said with the result
            )
            result = found.to_json()
            cache.store(key, result)
            self.progress(task, 1.0, _brief(result["best"]) if result["score"] is not None else "every candidate diverged")
        report = {**table.model_dump(mode="json"), "seeds": seeds, "fixed": fixed, "cached": cached, **result}
        return dict(result["best"]), report

    def _safe(self, method: type[Algorithm]) -> Parameters:
        """Parameters the method derives itself, from the largest curvature of any node of the instances it will run on."""
        chunks = (self.family.sample(self._seeds(chunk), device=self.experiment.run.device) for chunk in self._chunks())
        L = torch.cat([problem.lipschitz() for problem in chunks])  # [instances, n]
        chosen = method.safe(float(L.max()), self.net, float(L.mean(-1).max()))
        return {name: getattr(chosen, name) for name in method.space}

    def _tuning_optimum(self, problem: Problem) -> torch.Tensor:
        found = self._certify(problem, "tuning instances")
        if not bool(found.certified.all()):
            raise InvalidInput(
                f"no optimum could be certified for the tuning instances ({found.why}), so there is no gap to tune for. "
                "Give the parameters with use = 'given', or change the problem."
            )
        return found.value

    def _chunks(self) -> list[tuple[int, int]]:
        """Instances [from, to) simulated together."""
        run = self.experiment.run
        size = run.batch or run.instances
        return [(start, min(start + size, run.instances)) for start in range(0, run.instances, size)]

    def _completed(self) -> set[tuple[str, tuple[int, int]]]:
        """Which method has which chunk behind it; rows of anything else are dropped, to be run again."""
        if not self.records_file.exists():
            return set()
        rows = read_records(self.records_file, drop_cut_line=True)
        last = {(row.method, row.instance): row.status for row in rows}
        done = {
            (method.key, chunk)
            for method in self.experiment.methods
            for chunk in self._chunks()
            if all(last.get((method.key, i), "RUNNING") not in UNFINISHED for i in range(*chunk))
        }
        kept = [row for row in rows if any(key == row.method and a <= row.instance < b for key, (a, b) in done)]
        write_records(self.records_file, kept)
        return done

    def _race_all(self, run: dict[str, Any], done: set[tuple[str, tuple[int, int]]]) -> None:
        for chunk in self._chunks():
            todo = [method for method in self.experiment.methods if (method.key, chunk) not in done]
            if not todo:
                continue
            judge, problem = self._instances(chunk)
            known = self._known(run, chunk, judge)
            for method in todo:
                self._race(run, method, chunk, judge, problem, known)
                done.add((method.key, chunk))

    def _seeds(self, chunk: tuple[int, int]) -> list[int]:
        return instance_seeds("test", self.experiment.run.instances, self.experiment.seed)[slice(*chunk)]

    def _instances(self, chunk: tuple[int, int], nodes: Sequence[int] | None = None) -> tuple[Problem, Problem]:
        """The instances of a chunk in fp64, by which methods are judged, and in the precision they run in."""
        device, seeds = self.experiment.run.device, self._seeds(chunk)
        judge = self.family.sample(seeds, nodes, device=device)
        if self.dtype == torch.float64:
            return judge, judge
        return judge, self.family.sample(seeds, nodes, dtype=self.dtype, device=device)

    def _known(self, run: dict[str, Any], chunk: tuple[int, int], judge: Problem) -> torch.Tensor:
        """Certified optima of a chunk; NaN where there is none."""
        found = self._certify(judge, "test instances")
        self._note_reference(run, chunk, found)
        return torch.where(found.certified, found.value, math.nan)

    def _race(
        self,
        run: dict[str, Any],
        method: MethodTable,
        chunk: tuple[int, int],
        judge: Problem,
        problem: Problem,
        known: torch.Tensor,
        *,
        observer: Observer | None = None,
        keep: Callable[[Recorder, Stopwatch], Keeper] | None = None,
        writes: bool = True,
    ) -> None:
        """One method on one chunk; its records are appended by whoever `writes`."""
        table, net = self.experiment.run, self.net
        algorithm = self._algorithm(method, run["methods"][method.key]["parameters"])[0].at(net.nodes)
        check(algorithm, problem, net)
        limits = Limits(
            iterations=min(table.iterations, method.iterations or table.iterations),
            stop_gap=table.stop_gap,
            seconds=table.seconds,
            per_decade=table.samples_per_decade,
        )
        recorder, watch = (
            Recorder(method.key, judge, net, known, self._seeds(chunk), chunk[0], observer),
            Stopwatch(problem.device),
        )
        task = f"race {run['methods'][method.key].get('label', method.key)}"
        if len(self._chunks()) > 1:
            task += f", instances {chunk[0] + 1} to {chunk[1]}"
        self.progress(task, 0.0, "")
        keeper = keep(recorder, watch) if keep else None
        try:
            record(algorithm, problem, net, recorder, limits, lambda f: self.progress(task, f, ""), keeper, watch)
        finally:
            if writes:
                append_records(self.records_file, recorder.records)
        self.progress(task, 1.0, _outcome(recorder))

    def _note_reference(self, run: dict[str, Any], chunk: tuple[int, int], found: Reference) -> None:
        instances = self.experiment.run.instances
        values = {"kind": found.kind, "largest": 0.0, "values": [], **run.get("reference", {})}
        run["reference"] = values
        values["values"] = (values["values"] + [None] * instances)[:instances]
        certified = found.certified.tolist()
        values["values"][slice(*chunk)] = [v if ok else None for v, ok in zip(found.value.tolist(), certified, strict=True)]
        values["largest"] = max(values["largest"], float(found.certificate.max()))
        write_json(self.run_file, run)


def _brief(parameters: Parameters) -> str:
    return ", ".join(f"{name} = {value:.3g}" for name, value in parameters.items())


def _outcome(recorder: Recorder) -> str:
    statuses = {status: recorder.ended.count(status) for status in recorder.ended}
    gaps = sorted(rows[-1].gap for rows in recorder.rows)
    ends = ", ".join(f"{count} {status.name.lower()}" for status, count in statuses.items())
    return f"gap {gaps[len(gaps) // 2]:.0e} at k = {max(rows[-1].k for rows in recorder.rows)} ({ends})"
