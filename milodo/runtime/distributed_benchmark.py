"""`milodo run`: the benchmark of an experiment by real processes, each holding its own nodes and nothing of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from milodo.bench.recorder import Recorder, Stopwatch
from milodo.bench.records import Record
from milodo.bench.runtimes import Chunk, Runtime, Shared
from milodo.config import Experiment, MethodTable
from milodo.files import make_writable
from milodo.learned.checkpoint import find_optimizer, read_card
from milodo.loop import Keeper
from milodo.network import DistributedNetwork, Network, Observer, TreeObserver, place
from milodo.network.distributed import called
from milodo.runtime.group import Group, flat
from milodo.runtime.snapshots import Snapshots, forget_all
from milodo.status import Status
from milodo.topology import Topology, schedule


class Processes(Runtime):
    """This process is one of several.

    Process 0 also does what is measuring and not method: it tunes, certifies the optimum and writes the records. For that it
    builds all nodes' data for a while; everything else a process builds is its own slice.
    """

    name = "distributed"
    experiment: Experiment
    held: list[tuple[int, ...]]
    """Nodes of every process."""
    net: Network
    observer: Observer
    tree: TreeObserver
    resume = False

    def __init__(self, group: Group, folder: Path, *, snapshot_every: int | None = None) -> None:
        self.group, self.folder, self.snapshot_every = group, folder, snapshot_every
        self.processes, self.writes = group.world, group.rank == 0

    def begin(self, experiment: Experiment, net: Network, *, resume: bool, overwrite: bool) -> tuple[bool, bool]:
        self.experiment, self.held = experiment, place(net.topology.n, self.group.world)
        self.group.agree({"same": self._same(net.topology)}, lambda rank: called(self.held[rank], rank))
        self.resume = resume or self.group.restarted
        return self.resume, overwrite and not self.group.restarted

    def _same(self, graph: Topology) -> dict[str, str]:
        """What must not differ between processes; graphs and weights by content, wherever their files lie."""
        experiment = self.experiment.model_dump(mode="json", exclude={"network": {"topology", "schedule"}})
        weights = {m.key: read_card(find_optimizer(m.weights)).weights.sha256 for m in self.experiment.methods if m.weights}
        every, table = self.snapshot_every, self.experiment.network
        if table.schedule is not None:
            experiment["network"]["schedule"] = schedule(table.schedule, graph, self.experiment.seed).fingerprint
        return flat({"graph": graph.fingerprint, "weights": weights, "snapshot-every": every, "experiment": experiment})

    def shared(self, what: str, kind: type[Shared], find: Callable[[], Shared]) -> Shared:
        if self.writes:
            self.group.tell(what, find().model_dump(exclude_none=True))
        return kind.model_validate(self.group.hear(what))

    def network(self, net: Network) -> Network:
        if not self.resume:
            self._forget_snapshots()

        def connected(*args: Any, **options: Any) -> DistributedNetwork:
            """Messages of the observer travel between the same neighbours, but neither get lost nor are shortened."""
            real = DistributedNetwork(*args, processes=self.held, timeout=self.group.timeout, **options)
            self.observer = self.tree = TreeObserver(real.peers, real.topology.n, real.device)
            return real

        self.net = self.experiment.connected(net.dtype, make=connected)
        return self.net

    def meet(self, where: str) -> None:
        self.group.meet(where)

    def finish(self) -> None:
        self.group.heed()
        self.tree.barrier()
        self._forget_snapshots()

    def _forget_snapshots(self) -> None:
        """Also those of methods that were complete before this start, and of processes that there were in an earlier one."""
        rank, world = self.group.rank, self.group.world
        forget_all(self.folder / "snapshots", lambda other: other == rank or (rank == 0 and other >= world))

    def keeper(self, method: MethodTable, chunk: Chunk, recorder: Recorder, watch: Stopwatch) -> Keeper | None:
        """Snapshots of one method on one chunk, with the records and the seconds up to them."""
        if self.snapshot_every is None:
            return None
        name = "".join(c if c.isalnum() else "-" for c in method.key).strip("-")
        run = f"{self.experiment.model_dump_json()} {method.key} {chunk} {self.held}"
        make_writable(self.folder)
        folder, group = self.folder / "snapshots" / f"{name}-{chunk[0]}", self.group
        snapshots = Snapshots(folder, group.rank, self.net, self.snapshot_every, run)
        if not self.resume:
            snapshots.forget()
        where = f"snapshots/{method.key}/{chunk[0]}"
        group.tell(f"{where}/{group.rank}", {"available": snapshots.available()})
        snapshots.choose([group.hear(f"{where}/{rank}", rank)["available"] for rank in range(group.world)])

        def notes() -> dict[str, Any]:
            rows = [[{**asdict(row), "status": row.status.name} for row in rows] for rows in recorder.rows]
            return {"seconds": watch.seconds, "rows": rows, "sent_before": recorder.sent_before.to_json()}

        def restored(notes: dict[str, Any] | None) -> None:
            """Puts records, seconds and counters back."""
            if notes is not None:
                watch.seconds = float(notes["seconds"])
                recorder.rows = [[Record(**{**row, "status": Status[row["status"]]}) for row in rows] for rows in notes["rows"]]
                recorder.ended = [rows[-1].status for rows in recorder.rows]
                recorder.sent_before.restore(notes["sent_before"])
            self.meet(f"{where}/restored")

        snapshots.notes, snapshots.restored = notes, restored
        return snapshots
