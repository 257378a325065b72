"""One model from data at several sites: what a site does, in one process with the others or in one of its own."""

from __future__ import annotations

import csv
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from milodo.errors import InvalidInput
from milodo.files import FORMAT, atomic, make_writable, write_json
from milodo.fit import Fit, Task, fit_model
from milodo.fit.model import Plan
from milodo.learned.checkpoint import find_optimizer, read_card
from milodo.network import DistributedNetwork, Network, Observer, StackedNetwork, StackedObserver, TreeObserver
from milodo.problems.sites import Site, classes_here, indicator, numeric_target, two_classes
from milodo.provenance import provenance
from milodo.runtime.group import Group, flat
from milodo.runtime.snapshots import Snapshots


def fit_here(
    sites: Sequence[Site],
    task: Task,
    progress: Callable[[int, float], None] | None = None,
    announce: Callable[[Plan], None] | None = None,
) -> Fit:
    """All sites in this process: a simulation that moves no bytes, and counts those it would move."""
    for site in sites[1:]:
        _same_columns(sites[0].path.name, sites[0].columns, site.path.name, site.columns)
    graph = task.topology(len(sites))
    classes = None
    if task.loss == "logistic":
        classes = two_classes([classes_here(site, task.target) for site in sites], task.target)
    net = StackedNetwork(graph, task.weights)
    return _fit(sites, classes, task, net, StackedObserver(), None, progress, announce)


def fit_with_others(
    site: Site,
    task: Task,
    group: Group,
    progress: Callable[[int, float], None] | None = None,
    *,
    announce: Callable[[Plan], None] | None = None,
    write: Callable[[Fit], None] | None = None,
    out: Path | None = None,
    snapshot_every: int | None = None,
    resume: bool = False,
) -> Fit:
    """This process's site, with the others of the group. Names of columns and classes are compared at the meeting point.

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
        run = f"{asdict(task)} {graph.fingerprint} {site.columns} {data}"
        keeper = Snapshots(out / "snapshots", group.rank, net, snapshot_every, hashlib.sha256(run.encode()).hexdigest())
    weights = read_card(find_optimizer(task.optimizer)).weights.sha256 if task.optimizer else None
    same = {**asdict(task), "graph": graph.fingerprint, "optimizer": weights, "snapshot-every": snapshot_every, "resume": resume}
    facts = {
        "same": flat(same),
        "columns": list(site.columns),
        "classes": classes,
        "file": site.path.name,
        "snapshots": keeper.available() if keeper else [],
    }
    everybody = group.agree(facts, lambda rank: f"node {rank} (rank {rank})")
    for rank, other in enumerate(everybody):
        _same_columns(
            f"node 0's {everybody[0]['file']}", everybody[0]["columns"], f"node {rank}'s {other['file']}", other["columns"]
        )
    pair = two_classes([other["classes"] for other in everybody], task.target) if task.loss == "logistic" else None
    if keeper is not None:
        resume = resume or group.restarted
        keeper.choose([other["snapshots"] for other in everybody] if resume else [[]])
    observer = TreeObserver(net.peers, graph.n)
    if out is not None and (write is not None or keeper is not None):
        make_writable(out)  # before the work, not after it
    group.meet("ready")
    found = _fit([site], pair, task, net, observer, keeper, progress, announce)
    if write is not None:
        write(found)
    observer.barrier()
    if keeper is not None:
        keeper.forget()
    return found


def _same_columns(first: str, ours: Sequence[str], other: str, theirs: Sequence[str]) -> None:
    if list(ours) == list(theirs):
        return
    missing = [name for name in ours if name not in theirs]
    extra = [name for name in theirs if name not in ours]
    if missing:
        said = f"{other} has no column {missing[0]!r}, which {first} has"
    elif extra:
        said = f"{other} has a column {extra[0]!r}, which {first} has not"
    else:
        said = f"{other} has the columns of {first} in another order"
    raise InvalidInput(f"{said}. All sites need the same columns in the same order (see --ignore).")


def _fit(
    sites: Sequence[Site],
    classes: tuple[str, str] | None,
    task: Task,
    net: Network,
    observer: Observer,
    keeper: Snapshots | None,
    progress: Callable[[int, float], None] | None,
    announce: Callable[[Plan], None] | None,
) -> Fit:
    start = time.perf_counter()
    features = [torch.from_numpy(site.features) for site in sites]
    targets = [torch.from_numpy(indicator(site, classes) if classes else numeric_target(site, task.target)) for site in sites]
    found = fit_model(features, targets, task, net, observer, keeper=keeper, progress=progress, announce=announce)
    coefficients, intercept = found.in_units_of_the_data(task.intercept)
    sent = observer.total(torch.tensor([float(net.traffic.bytes)], dtype=torch.float64))
    return Fit(
        columns=sites[0].columns,
        coefficients=coefficients,
        intercept=intercept,
        standardised=found.x[: len(coefficients)].tolist() if task.standardise else None,
        classes=classes,
        samples=int(found.scaled.samples[0, 0]),
        method=found.plan.label,
        why=found.plan.why,
        parameters=found.plan.parameters or {},
        objective=found.objective,
        gap=float(found.off.gap),
        residual=float(found.off.moved),
        consensus=found.consensus,
        iterations=found.iterations,
        status=found.status.name,
        rounds=net.traffic.rounds,
        bytes=round(float(sent)),
        seconds=time.perf_counter() - start,
    )


def _finite(value: Any) -> Any:
    """JSON knows neither NaN nor infinity."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_fit(fit: Fit, folder: Path, task: Task, command: str | None, runtime: str) -> Path:
    """fit.json with everything, and coefficients.csv."""
    make_writable(folder)
    content = {key: _finite(value) for key, value in asdict(fit).items()}
    facts: dict[str, Any] = {"format": FORMAT, "runtime": runtime, "command": command, "task": asdict(task), **content}
    write_json(folder / "fit.json", {**facts, "provenance": provenance()})
    with atomic(folder / "coefficients.csv") as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "coefficient"])
        writer.writerows(zip((*fit.columns, "(intercept)"), (*fit.coefficients, fit.intercept), strict=True))
    return folder / "fit.json"
