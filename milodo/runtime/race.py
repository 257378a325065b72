"""`milodo run`: an experiment's race with real processes, each holding its own nodes and nothing of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from milodo.bench.benchmark import Benchmark, Progress
from milodo.bench.recorder import Recorder, Stopwatch
from milodo.bench.records import Record
from milodo.config import Experiment, MethodTable
from milodo.files import make_writable
from milodo.learned.checkpoint import find_optimizer, read_card
from milodo.network import DistributedNetwork, TreeObserver, degraded, place
from milodo.runtime.group import Group, flat, node_names
from milodo.runtime.snapshots import Snapshots, forget_all
from milodo.solve import Keeper, Status


class RealBenchmark(Benchmark):
    """A Benchmark in which this process is one of several.

    Process 0 also does what is measuring and not method: it tunes, certifies the optimum and writes the records. For that it
    builds all nodes' data for a while; when the race begins every process builds its own slice only.
    """

    runtime = "distributed"

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        group: Group,
        progress: Progress | None = None,
        command: str | None = None,
        *,
        snapshot_every: int | None = None,
    ) -> None:
        super().__init__(experiment, folder, progress, command)
        self.group, self.snapshot_every, self.resume = group, snapshot_every, False
        self.held = place(self.net.topology.n, group.world)

    def run(self, *, resume: bool = False, overwrite: bool = False) -> Path:
        group, rank = self.group, self.group.rank
        group.agree({"same": self._same()}, node_names(self.held))
        resume, overwrite = resume or group.restarted, overwrite and not group.restarted
        self.resume = resume
        if rank == 0:
            run = self.prepare(resume=resume, overwrite=overwrite)
            run["processes"] = group.world
            self._check_weights(run)
            done = self._completed()
            self.tune_all(run)
            group.tell("plan", {"methods": run["methods"], "done": [[key, list(chunk)] for key, chunk in done]})
        else:
            run = group.hear("plan")
            done = {(key, tuple(chunk)) for key, chunk in run["done"]}
        if not resume:
            self._forget_snapshots()
        network = self.experiment.network
        real = DistributedNetwork(
            network.build(),
            network.weights,
            processes=self.held,
            timeout=group.timeout,
            dtype=self.dtype,
            device=self.experiment.run.device,
        )
        self.observer = TreeObserver(real.peers, real.topology.n, real.device)
        self.net = degraded(real, outage=network.outage, messages=network.messages, seed=self.experiment.seed)
        self._race_all(run, done)
        self.observer.barrier()
        self._forget_snapshots()
        return self.folder

    def _forget_snapshots(self) -> None:
        """Also those of methods that were complete before this start, and of processes that there were in an earlier one."""
        rank, world = self.group.rank, self.group.world
        forget_all(self.folder / "snapshots", lambda other: other == rank or (rank == 0 and other >= world))

    def _same(self) -> dict[str, str]:
        """What must not differ between processes; graphs and weights by content, wherever their files lie."""
        experiment = self.experiment.model_dump(mode="json", exclude={"network": {"topology"}})
        weights = {m.key: read_card(find_optimizer(m.weights)).weights.sha256 for m in self.experiment.methods if m.weights}
        return flat(
            {
                "graph": self.net.topology.fingerprint,
                "weights": weights,
                "snapshot-every": self.snapshot_every,
                "experiment": experiment,
            }
        )

    def _race_all(self, run: dict[str, Any], done: set[tuple[str, tuple[int, int]]]) -> None:
        for number, chunk in enumerate(self._chunks()):
            todo = [method for method in self.experiment.methods if (method.key, chunk) not in done]
            if not todo:
                continue
            key = f"optimum/{number}"
            if self.group.rank == 0:
                known = self._known(run, chunk, self.family.sample(self._seeds(chunk), device=self.experiment.run.device))
                self.group.tell(key, {"values": [repr(value) for value in known.tolist()]})
            values = [float(value) for value in self.group.hear(key)["values"]]
            judge, problem = self._instances(chunk, self.net.nodes)
            self.group.meet(f"data/{number}")
            for method in todo:
                keep = self._keeping(method, chunk) if self.snapshot_every else None
                self._race(
                    run,
                    method,
                    chunk,
                    judge,
                    problem,
                    torch.tensor(values, dtype=torch.float64),
                    observer=self.observer,
                    keep=keep,
                    writes=self.group.rank == 0,
                )

    def _keeping(self, method: MethodTable, chunk: tuple[int, int]) -> Any:
        """Snapshots of one method on one chunk, with the records and the seconds up to them."""
        assert self.snapshot_every
        name = "".join(c if c.isalnum() else "-" for c in method.key).strip("-")
        run = f"{self.experiment.model_dump_json()} {method.key} {chunk} {self.held}"
        folder = self.folder / "snapshots" / f"{name}-{chunk[0]}"
        make_writable(self.folder)
        snapshots = Snapshots(folder, self.group.rank, self.net, self.snapshot_every, run)
        if not self.resume:
            snapshots.forget()

        def keep(recorder: Recorder, watch: Stopwatch) -> Keeper:
            where = f"snapshots/{method.key}/{chunk[0]}"
            self.group.tell(f"{where}/{self.group.rank}", {"available": snapshots.available()})
            each = [self.group.hear(f"{where}/{rank}", rank)["available"] for rank in range(self.group.world)]
            snapshots.choose(each)
            snapshots.notes = lambda: {
                "seconds": watch.seconds,
                "rows": [[asdict(row) for row in rows] for rows in recorder.rows],
                "sent_before": vars(recorder.sent_before),
            }
            return _Restoring(snapshots, recorder, watch, lambda: self.group.meet(f"{where}/restored"))

        return keep


class _Restoring:
    """Snapshots that also put records, seconds and counters back."""

    def __init__(self, snapshots: Snapshots, recorder: Recorder, watch: Stopwatch, meet: Callable[[], None]) -> None:
        self.snapshots, self.recorder, self.watch, self.meet = snapshots, recorder, watch, meet

    def keep(self, k: int, state: Any) -> None:
        self.snapshots.keep(k, state)

    def last(self, first: Any) -> tuple[int, Any] | None:
        found = self.snapshots.last(first)
        if found is not None:
            notes = self.snapshots.found
            self.watch.seconds = float(notes["seconds"])
            self.recorder.rows = [[Record(**row) for row in rows] for rows in notes["rows"]]
            self.recorder.ended = [Status[rows[-1].status] for rows in self.recorder.rows]
            for name, value in notes["sent_before"].items():
                setattr(self.recorder.sent_before, name, int(value))
        self.meet()
        return found
