"""What all benchmarks share: options, tables, ratios of times, costs on unseen instances, and results that are kept."""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from milodo.algorithms import Algorithm
from milodo.algorithms.auto import Facts, gossips, learn, made
from milodo.bench.recorder import Limits, Recorder, record
from milodo.bench.speedup import cost_to_reach, quantile
from milodo.cli.process import keep_freed_memory
from milodo.files import write_json
from milodo.learned import MiLoDo, special_initialisation
from milodo.network import Network, StackedNetwork, StackedObserver
from milodo.problems import Lasso, Problem, instance_seeds, optimum
from milodo.topology import topology
from milodo.words import amount

TWELVE = (
    "grid(5x5)", "tree(31)", "exponential(16)", "erdos_renyi(50,0.1,seed=1)", "ring(100)", "star(20)",
    "regular(24,3,seed=7)", "torus(5x6)", "hypercube(5)", "path(17)", "erdos_renyi(33,0.15,seed=11)", "complete(12)",
)  # fmt: skip
"""Six graphs of the paper's kind, and six drawn from other families."""
AXES = ("k", "rounds", "bytes")

Part = Callable[[argparse.Namespace], None]


def run_part(
    doc: str | None,
    parts: Mapping[str, Part],
    options: Callable[[argparse.ArgumentParser], object] | None = None,
    fresh: Sequence[str] = (),
) -> None:
    """The command line of a benchmark: which part of it (the first unless given), which cases, how many instances. One thread.

    Freed memory is kept, as the command line of milodo does, but for the parts that say they are `fresh`.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=parts, nargs="?", default=next(iter(parts)))
    parser.add_argument("names", nargs="*", help="how the names of cases begin; all of them unless given")
    parser.add_argument("--instances", type=int, default=32)
    parser.add_argument("--out", type=Path, help="where results are kept")
    if options is not None:
        options(parser)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.part not in fresh:
        keep_freed_memory()
    parts[asked.part](asked)


def wanted(names: Sequence[str], begins: Sequence[str]) -> Sequence[str]:
    """Those that begin in one of these ways, or what is asked for if none does; all of them if nothing is."""
    return [name for name in names if not begins or name.startswith(tuple(begins))] or begins


# Tables


def table(*heads: str, numbers: int = 0) -> None:
    """The head of a table whose last columns are numbers."""
    print("| " + " | ".join(heads) + " |\n|" + "---|" * (len(heads) - numbers) + "---:|" * numbers)


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def cell(value: float, axis: str) -> str:
    if not math.isfinite(value):
        return "never"
    return amount(round(value)) if axis == "bytes" else f"{value:,.0f}"


def verdict(ok: bool) -> str:
    return "ok" if ok else "MISSED"


def folder_name(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


class Kept:
    """Results that took long, by name, in a file written whole after each: what is there is not computed again.

    `asked` is what they depend on: a trial's results are not taken for a full run's.
    """

    def __init__(self, path: Path, asked: dict[str, Any]) -> None:
        self.path, self.since = path, time.perf_counter()
        self.content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"asked": asked}
        if self.content["asked"] != asked:
            sys.exit(f"{path} was computed with {self.content['asked']}, and now {asked} is asked for. Give another --out.")

    def get(self, name: str, compute: Callable[[], Any]) -> Any:
        if name not in self.content:
            self.say(f"{name} ...")
            self.content[name] = compute()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, self.content)
        return self.content[name]

    def say(self, what: str) -> None:
        """Progress, beside the table."""
        print(f"[{time.perf_counter() - self.since:6.0f} s] {self.path.parent.name}: {what}", file=sys.stderr, flush=True)


# Time and memory


def medians(
    tasks: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    inner: int = 1,
    warm: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of one call of each task, by the clock; the tasks take turns, so that a noisy machine disturbs both sides of
    a ratio alike."""
    for task in tasks.values() if warm else ():
        task()
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            start = clock()
            for _ in range(inner):
                task()
            seconds[name].append((clock() - start) / inner)
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes. Linux counts in kilobytes, and begins with the parent's."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# What methods need to reach a gap on unseen instances


def gossip(facts: Facts, net: Network, d: int) -> Algorithm:
    """What auto takes for bytes if it may not sum over a tree."""
    found = made(min(gossips("bytes", facts, net, d, None), key=lambda candidate: candidate.cost("bytes")).parameters)
    assert found.compressor is not None
    return found


@dataclass
class Costs:
    """In iterations, rounds and bytes, by axis, gap and instance; inf where a gap was not reached."""

    needed: dict[str, list[list[float]]]

    def quartiles(self, axis: str, gap: int) -> tuple[float, float, float]:
        """The quarter, the median and three quarters of what the gap of that number cost."""
        each = self.needed[axis][gap]
        return quantile(each, 0.25), quantile(each, 0.5), quantile(each, 0.75)

    def median(self, axis: str, gap: int) -> float:
        return self.quartiles(axis, gap)[1]

    def cells(self, axis: str) -> str:
        """Medians for all gaps."""
        words = [cell(self.median(axis, gap), axis) for gap in range(len(self.needed[axis]))]
        return "never" if set(words) == {"never"} else " / ".join(words)


class Instances:
    """Unseen instances with certified optima, and gaps [*batch] to reach on them."""

    def __init__(self, problem: Problem, seeds: Sequence[int]) -> None:
        self.problem, self.seeds = problem, seeds
        found = optimum(problem)
        assert bool(found.certified.all())
        self.best = found.value

    @classmethod
    def lasso(cls, graph: str, count: int) -> Instances:
        """Of LASSO(n,300,10,0.1)."""
        seeds = instance_seeds("test", count)
        return cls(Lasso(topology(graph).n, 300, 10, 0.1).sample(seeds), seeds)

    def gaps_of_start(self, fractions: Sequence[float]) -> list[torch.Tensor]:
        """Fractions of the gap at the start."""
        first = self.problem.objective(self.problem.start()[..., 0, :], StackedObserver())
        return [fraction * (first - self.best) for fraction in fractions]

    def costs(
        self, algorithm: Algorithm, net: StackedNetwork, gaps: Sequence[torch.Tensor | float], *, most: int, learns: bool = False
    ) -> Costs:
        """Of a method; with what nodes tell each other before they choose it, where they learn."""
        wanted = [torch.as_tensor(gap, dtype=self.best.dtype).expand_as(self.best) for gap in gaps]
        recorder = Recorder(algorithm.label, self.problem, net, self.best, self.seeds, 0)
        if learns:
            learn(self.problem, net)
        limits = Limits(iterations=most, stop_gap=0.99 * float(wanted[-1].min()), samples_per_decade=40)
        record(algorithm, self.problem, net, recorder, limits)

        def cost(axis: str, gap: torch.Tensor) -> list[float]:
            each = [cost_to_reach(rows, least, axis) for rows, least in zip(recorder.rows, gap.tolist(), strict=True)]
            return [math.inf if math.isnan(value) else value for value in each]

        return Costs({axis: [cost(axis, gap) for gap in wanted] for axis in AXES})


@torch.no_grad()
def disturbed(optimizer: MiLoDo, net: Network, gamma: float) -> MiLoDo:
    """Specially initialised, and then its final layers disturbed: networks that do look at their inputs."""
    special_initialisation(optimizer, net, gamma)
    for network in (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u):
        network.w_2.add_(0.05 * torch.randn_like(network.w_2))
    return optimizer
