"""One model from data at several sites: what a site does, in one process with the others or in one of its own."""

from __future__ import annotations

import csv
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from milodo.algorithms import METHODS, Algorithm
from milodo.algorithms.base import StepSize
from milodo.errors import InvalidInput, unknown
from milodo.files import atomic, is_file, make_writable, write_json
from milodo.learned.checkpoint import find_optimizer, load_optimizer, read_card
from milodo.network import DistributedNetwork, Network, Observer, StackedNetwork, StackedObserver, TreeObserver
from milodo.network.consensus import maximum
from milodo.problems.linear import LinearModel
from milodo.problems.pooled import LOSSES, Scaling, pooled_problem, scaling
from milodo.problems.sites import Site, classes_here, indicator, numeric_target, two_classes
from milodo.provenance import provenance
from milodo.runtime.group import Group, flat
from milodo.runtime.snapshots import Snapshots
from milodo.solve import Stop, Units, mean_point, off_by, solve
from milodo.topology import FAMILIES, Topology, topology

DEFAULT = "prox-ed"
FORMAT = 1
WHY = "Prox-ED with step size 1/L, L the largest curvature of any site: nothing to tune, and it finds the optimum of all data"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to fit, and how; the same at every site."""

    target: str
    loss: str = "squared"
    l1: float = 0.0
    graph: str = "ring"
    weights: str = "metropolis"
    intercept: bool = True
    standardise: bool = False
    method: str | None = None
    parameters: dict[str, float] = field(default_factory=dict)
    optimizer: str | None = None
    """Weights of a learned method."""
    tolerance: float = 1e-10
    """Relative, as `Stop` has it."""
    iterations: int = 200_000

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise unknown("loss", self.loss, LOSSES)
        if not (math.isfinite(self.l1) and self.l1 >= 0):
            raise InvalidInput(f"--l1 is {self.l1}, but a penalty must be a finite number >= 0.")
        if self.optimizer is not None and self.method is not None:
            raise InvalidInput("--method names a handcrafted method and --optimizer a learned one. Choose one of them.")
        if self.method is not None and self.method not in METHODS:
            raise unknown("method", self.method, METHODS)

    def topology(self, sites: int) -> Topology:
        """The graph: a full name such as grid(2x3), a file, or a family's name for as many nodes as there are sites."""
        named = "(" in self.graph or Path(self.graph).suffix or "/" in self.graph
        file = is_file(self.graph) and self.graph.lower() not in FAMILIES  # a file called ring does not replace the default
        graph = topology(self.graph if named or file else f"{self.graph}({sites})")
        if graph.n != sites:
            raise InvalidInput(
                f"{graph} has {graph.n} nodes, but there are {sites} sites. Give a graph of {sites}, e.g. ring({sites})."
            )
        return graph


@dataclass(frozen=True)
class Fit:
    """What came out, the same at every site up to the consensus error."""

    columns: tuple[str, ...]
    coefficients: list[float]
    """In the units of the data."""
    intercept: float
    standardised: list[float] | None
    """Coefficients of the standardised features, where those were asked for."""
    classes: tuple[str, str] | None
    samples: int
    method: str
    why: str
    parameters: dict[str, float]
    objective: float
    gap: float
    """By how much the objective can exceed its minimum (duality), relative to that of the model without features; NaN without a
    penalty."""
    residual: float
    """How far one more proximal step of 1/L goes, relative to the size of x."""
    consensus: float
    """How far sites are from their mean, relative to its size."""
    iterations: int
    status: str
    rounds: int
    bytes: int
    seconds: float


def fit_here(sites: Sequence[Site], task: Task, progress: Callable[[int, float], None] | None = None) -> Fit:
    """All sites in this process: a simulation that moves no bytes, and counts those it would move."""
    for site in sites[1:]:
        _same_columns(sites[0].path.name, sites[0].columns, site.path.name, site.columns)
    graph = task.topology(len(sites))
    classes = None
    if task.loss == "logistic":
        classes = two_classes([classes_here(site, task.target) for site in sites], task.target)
    net = StackedNetwork(graph, task.weights)
    return _fit(sites, classes, task, net, StackedObserver(), None, progress)


def fit_with_others(
    site: Site,
    task: Task,
    group: Group,
    progress: Callable[[int, float], None] | None = None,
    *,
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
    found = _fit([site], pair, task, net, observer, keeper, progress)
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
) -> Fit:
    start = time.perf_counter()
    features = [torch.from_numpy(site.features) for site in sites]
    targets = [torch.from_numpy(indicator(site, classes) if classes else numeric_target(site, task.target)) for site in sites]
    scaled = scaling(features, net, standardise=task.standardise)
    problem = pooled_problem(task.loss, features, targets, scaled, n=net.topology.n, l1=task.l1, intercept=task.intercept)
    algorithm, parameters, why = _method(task, problem, net)
    stop = Stop(steps=task.iterations, tolerance=task.tolerance, every=50)
    result = solve(algorithm.at(net.nodes), problem, net, stop, observer=observer, keeper=keeper, progress=progress)
    x = problem.settled(mean_point(result.x, observer), observer)
    off = off_by(problem, problem.everywhere(x), observer, units := Units.of(problem, observer))
    coefficients, intercept = _in_units_of_the_data(x, scaled, task.intercept)
    sent = observer.total(torch.tensor([float(net.traffic.bytes)], dtype=torch.float64))
    return Fit(
        columns=sites[0].columns,
        coefficients=coefficients,
        intercept=intercept,
        standardised=x[: len(coefficients)].tolist() if task.standardise else None,
        classes=classes,
        samples=int(scaled.samples[0, 0]),
        method=algorithm.label,
        why=why,
        parameters=parameters,
        objective=float(problem.objective(x, observer)),
        gap=float(off.gap),
        residual=float(off.moved),
        consensus=float(off_by(problem, result.x, observer, units).consensus),
        iterations=result.k,
        status=result.status.name,
        rounds=net.traffic.rounds,
        bytes=round(float(sent)),
        seconds=time.perf_counter() - start,
    )


def _method(task: Task, problem: LinearModel, net: Network) -> tuple[Algorithm, dict[str, float], str]:
    """The method asked for, or the safe default, with step sizes from the curvature that the sites tell each other."""
    if task.optimizer is not None:
        optimizer, card = load_optimizer(task.optimizer)
        return optimizer, {}, f"{card.name}, trained for {card.good_for}"
    method = METHODS[task.method or DEFAULT]
    parameters = dict(task.parameters)
    for name in parameters:
        if name not in method.space:
            raise InvalidInput(f"--set {name}: {unknown('parameter', name, method.space)}")
    steps = [name for name, kind in method.space.items() if isinstance(kind, StepSize) and name not in parameters]
    if steps:
        largest = float(maximum(net, problem.lipschitz().unsqueeze(-1)).max())
        parameters |= dict.fromkeys(steps, 1 / largest)
    missing = [name for name in method.space if name not in parameters]
    if missing:
        raise InvalidInput(
            f"{method.label} also needs {', '.join(missing)}: give {' '.join(f'--set {name}=...' for name in missing)}, or leave "
            "out --method for one that needs nothing."
        )
    asked = task.method is not None or bool(task.parameters)
    why = f"{method.label} with {_brief(parameters)}, as asked for" if asked else f"{WHY} ({_brief(parameters)})"
    return method(**parameters), parameters, why  # type: ignore[arg-type]


def _brief(parameters: dict[str, float]) -> str:
    return ", ".join(f"{name} = {value:.3g}" for name, value in parameters.items())


def _in_units_of_the_data(x: torch.Tensor, scaled: Scaling, intercept: bool) -> tuple[list[float], float]:
    mean, scale = scaled.mean[0], scaled.scale[0]
    w = x[: len(scale)] / scale
    return w.tolist(), float(x[-1] - w @ mean) if intercept else -float(w @ mean)


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
