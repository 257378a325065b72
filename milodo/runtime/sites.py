"""A fit whose sites are processes of their own: what they agree upon before, and what they keep on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from milodo.files import make_writable
from milodo.fit import Choice, Fit, PenaltyPath, Plan, Site, Task, choose_sites, fit_sites
from milodo.fit.sites import classes_here, numeric_target, same_columns, two_classes
from milodo.learned.checkpoint import find_optimizer, read_card
from milodo.network import DistributedNetwork, TreeObserver
from milodo.runtime.group import Group, flat
from milodo.runtime.snapshots import Snapshots


def fit_with_others(
    site: Site, task: Task, group: Group, progress: Callable[[int, float], None] | None = None,
    *, choice: Choice | None = None, along: Callable[[float, str], None] | None = None,
    announce: Callable[[Plan], None] | None = None, write: Callable[[Fit, PenaltyPath | None], None] | None = None,
    out: Path | None = None, snapshot_every: int | None = None, resume: bool = False,
) -> tuple[Fit, PenaltyPath | None]:  # fmt: skip
    """This process's site, with the others of the group. Names of columns and classes are compared at the meeting point.

    With a choice the penalty is chosen first; snapshots are of the fit after it, and who resumes chooses again, the same.
    `write` saves the result into `out` before anybody forgets its snapshots there.
    """
    graph = task.topology(group.world)
    classes = classes_here(site, task.target) if task.loss == "logistic" else None
    if task.loss == "squared":
        numeric_target(site, task.target)  # refused here, before anybody waits for this site
    net = DistributedNetwork(graph, task.weights, processes=[(node,) for node in range(graph.n)], timeout=group.timeout)
    keeper = None
    if out is not None and snapshot_every:
        data = hashlib.sha256(site.features.tobytes() + repr(site.target.tolist()).encode()).hexdigest()
        run = f"{asdict(task)} {choice} {graph.fingerprint} {site.columns} {data}"
        keeper = Snapshots(out / "snapshots", group.rank, net, snapshot_every, hashlib.sha256(run.encode()).hexdigest())
    weights = read_card(find_optimizer(task.optimizer)).weights.sha256 if task.optimizer else None
    chosen = {"l1": "auto", "choice": asdict(choice)} if choice else {}
    same = {**asdict(task), **chosen, "graph": graph.fingerprint, "optimizer": weights}
    same |= {"snapshot-every": snapshot_every, "resume": resume}
    own = {"columns": list(site.columns), "classes": classes, "file": Path(site.name).name}
    facts = {"same": flat(same), **own, "snapshots": keeper.available() if keeper else []}
    everybody = group.agree(facts, lambda rank: f"node {rank} (rank {rank})")
    first = f"node 0's {everybody[0]['file']}"
    for rank, other in enumerate(everybody):
        same_columns(first, everybody[0]["columns"], f"node {rank}'s {other['file']}", other["columns"])
    pair = two_classes([other["classes"] for other in everybody], task.target) if task.loss == "logistic" else None
    if keeper is not None:
        resume = resume or group.restarted
        keeper.choose([other["snapshots"] for other in everybody] if resume else [[]])
    observer = TreeObserver(net.peers, graph.n)
    if out is not None and (write is not None or keeper is not None):
        make_writable(out)  # before the work, not after it
    group.meet("ready")
    also: dict[str, Any] = {"keeper": keeper, "progress": progress, "announce": announce}
    if choice is None:
        found, path = fit_sites([site], pair, task, net, observer, **also), None
    else:
        found, path = choose_sites([site], pair, task, choice, net, observer, along=along, **also)
    if write is not None:
        write(found, path)
    observer.barrier()
    if keeper is not None:
        keeper.forget()
    return found, path
