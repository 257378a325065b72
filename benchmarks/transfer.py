"""Auto for bytes, untouched, on other problems than it was made on, against Prox-ED and DAPG tuned for fewest bytes on each.

    python benchmarks/transfer.py                     all cases (hours; the largest one needs 6 GB)
    python benchmarks/transfer.py elastic L-spread    those whose names begin so
    python benchmarks/transfer.py --instances 4 ...   fewer than 32, to try it

ring(10), fp64, medians over unseen instances. The gap is 1e-3 where a case is the paper's LASSO(10,300,10,lam), and 1e-4 of the
gap at the start elsewhere; what auto's nodes tell each other before they choose is counted. Rivals are tuned on 4 other instances
(fewer where said) for fewest bytes to that gap; for LASSO(10,30000,1000) on LASSO(10,3000,100), with step sizes in units of 1/L.
"> x": not reached within the iterations that were given. BSDS needs its photographs (docs/data.md).

Results are kept in runs/transfer/CASE/results.json: what is there is not run again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _kept import Kept

from milodo.algorithms import METHODS, Algorithm
from milodo.algorithms.auto import choose, learn
from milodo.algorithms.parameters import StepSize
from milodo.bench.recorder import Limits, Recorder, record
from milodo.bench.speedup import cost_to_reach, quantile
from milodo.bench.tuning import Search, tune
from milodo.cli.process import keep_freed_memory
from milodo.errors import InvalidInput
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import FAMILIES, ElasticNet, Family, Lasso, LeastSquares, Logistic, Problem, instance_seeds, optimum
from milodo.words import amount, brief

GRAPH, NODES = "ring(10)", 10
RIVALS = ("prox-ed", "dapg")
AXES = ("k", "rounds", "bytes")
OBSERVER = StackedObserver()
RELATIVE, ABSOLUTE = 1e-4, 1e-3
AT_START = 1e-12
"""A start this close to optimal, relative to the objective there, is the optimum."""

Make = Callable[[Sequence[int]], Problem]
"""Instances from their seeds."""


@dataclass(frozen=True)
class Case:
    """A problem, and how much of it is affordable."""

    make: Make
    absolute: bool = False
    """Whether the gap is 1e-3, or 1e-4 of that at the start."""
    instances: int = 32
    tuned_on: int = 4
    most: int = 20_000
    """Iterations given to rivals, and a third of them in tuning."""
    accuracy: float = 1e-14
    """Of the certified optimum, relative to its value."""
    like: str | None = None
    """The case whose tuned parameters are used, in units of 1/L."""


def plain(family: Family) -> Make:
    return family.sample


def uneven(seeds: Sequence[int]) -> Problem:
    """Sites with 1 to 100 samples; all samples count alike."""
    whole = Lasso(NODES, 300, 100, 0.1).sample(seeds)
    sizes = torch.logspace(0, 2, NODES, dtype=torch.float64).round()
    held = (torch.arange(100) < sizes[_order()].unsqueeze(-1)).double()
    return LeastSquares(whole.A, whole.b, whole.reg, (held * held.numel() / held.sum()).expand_as(whole.b))


def spread(seeds: Sequence[int]) -> Problem:
    """L_i from 1/100 to 1 of what they were."""
    even = Lasso(NODES, 300, 10, 0.1).sample(seeds)
    scale = torch.logspace(-1, 0, NODES, dtype=torch.float64)[_order()]
    return LeastSquares(even.A * scale.reshape(-1, 1, 1), even.b * scale.reshape(-1, 1), even.reg)


def _order() -> torch.Tensor:
    """So that neighbours are no neighbours in size."""
    return torch.randperm(NODES, generator=torch.Generator().manual_seed(0))


def bsds(seeds: Sequence[int]) -> Problem:
    return FAMILIES["bsds-lasso"]().sample(seeds)


CASES: dict[str, Case] = {
    "LASSO(10,300,10,0.02)": Case(plain(Lasso(NODES, 300, 10, 0.02)), absolute=True),
    "LASSO(10,300,10,0.5)": Case(plain(Lasso(NODES, 300, 10, 0.5)), absolute=True),
    "elastic net(10,300,10,0.1,0.1)": Case(plain(Lasso(NODES, 300, 10, reg=ElasticNet(0.1, 0.1)))),
    "linear regression(10,300,10)": Case(plain(Lasso(NODES, 300, 10, 0.0))),
    "sites of 1 to 100 samples": Case(uneven),
    "L-spread 100x": Case(spread),
    "logistic(10,50,100,0.1)": Case(plain(Logistic(NODES, 50, 100, 0.1)), most=6000),
    "logistic(10,200,100,0.1)": Case(plain(Logistic(NODES, 200, 100, 0.1)), most=6000),
    "logistic(10,500,100,0.1)": Case(plain(Logistic(NODES, 500, 100, 0.1)), most=6000),
    "logistic(10,1000,100,0.1)": Case(plain(Logistic(NODES, 1000, 100, 0.1)), most=6000),
    "BSDS LASSO(10,200,10,0.05)": Case(bsds),
    "LASSO(10,3000,100,0.1)": Case(plain(Lasso(NODES, 3000, 100, 0.1)), instances=8, tuned_on=2, most=3000),
    "LASSO(10,30000,1000,0.1)": Case(
        plain(Lasso(NODES, 30_000, 1000, 0.1)), instances=1, most=600, accuracy=1e-9, like="LASSO(10,3000,100,0.1)"
    ),
}


def target(case: Case, problem: Problem, best: torch.Tensor) -> torch.Tensor:
    """The gap that counts as solved [*batch]; inf where the start is optimal."""
    first = problem.objective(problem.start()[..., 0, :], OBSERVER)
    gap = torch.full_like(best, ABSOLUTE) if case.absolute else RELATIVE * (first - best)
    return torch.where(first - best > AT_START * first.abs(), gap, torch.inf)


def tuned(name: str, case: Case, instances: int) -> dict[str, Any]:
    """Parameters of a rival, and 1/L, the unit of its step sizes."""
    count = min(case.tuned_on, instances)
    problem = case.make(instance_seeds("tuning", count))
    best = optimum(problem).value
    search = Search(
        instances=count, iterations=max(1, case.most // 3), target=float(_known(target(case, problem, best)).mean()), points=9,
        points_each=5, refinements=2, wide=True, cost="bytes",
    )  # fmt: skip
    found = tune(METHODS[name], problem, StackedNetwork(GRAPH), best, search)
    return {"parameters": found.best, "reached": found.reached, "unit": _unit(problem)}


def _known(gap: torch.Tensor) -> torch.Tensor:
    """Of instances where there is something to do."""
    return gap[gap.isfinite()]


def _unit(problem: Problem) -> float:
    return 1 / float(problem.lipschitz().max())


def scaled(name: str, found: dict[str, Any], problem: Problem) -> Algorithm:
    """With step sizes that are to 1/L what they were where they were found."""
    space, ratio = METHODS[name].space, _unit(problem) / found["unit"]
    return METHODS[name](**{
        key: value * ratio if isinstance(space[key], StepSize) else value for key, value in found["parameters"].items()
    })  # fmt: skip


class Race:
    """The unseen instances of a case, and what methods need on them."""

    def __init__(self, case: Case, instances: int, kept: Kept) -> None:
        self.seeds, self.kept = instance_seeds("test", instances), kept
        self.problem = case.make(self.seeds)
        kept.say("certified optimum ...")
        found = optimum(self.problem, case.accuracy)
        self.best = torch.where(found.certified, found.value, torch.nan)
        self.gap = target(case, self.problem, self.best)

    def run(self, algorithm: Algorithm, most: int, *, learns: bool = False) -> dict[str, Any]:
        """What each instance cost (None: not reached), and where the run ended."""
        net = StackedNetwork(GRAPH)
        recorder = Recorder(algorithm.label, self.problem, net, self.best, self.seeds, 0)
        if learns:
            learn(self.problem, net)
        limits = Limits(iterations=most, stop_gap=0.99 * float(_known(self.gap).min()), samples_per_decade=40)
        record(algorithm, self.problem, net, recorder, limits)
        costs = {
            axis: [cost_to_reach(rows, gap, axis) for rows, gap in zip(recorder.rows, self.gap.tolist(), strict=True)]
            for axis in AXES
        }
        ended = {axis: max(rows[-1].value(axis) for rows in recorder.rows) for axis in AXES}
        needed = {axis: [None if math.isnan(cost) else cost for cost in each] for axis, each in costs.items()}
        return {"label": algorithm.label, "needed": needed, "ended": ended}

    def auto(self, most: int) -> dict[str, Any]:
        net = StackedNetwork(GRAPH)
        chosen = choose("bytes", learn(self.problem, net), net, self.problem.d)
        return self.run(chosen.algorithm, most, learns=True)


def row(result: dict[str, Any]) -> list[str]:
    """Medians of iterations, rounds and bytes; how many reached the gap."""
    cells = []
    for axis in AXES:
        middle = quantile((math.inf if cost is None else cost for cost in result["needed"][axis]), 0.5)
        value, more = (middle, "") if math.isfinite(middle) else (result["ended"][axis], "> ")
        cells.append(more + (amount(round(value)) if axis == "bytes" else f"{value:,.0f}"))
    every = result["needed"]["bytes"]
    return [*cells, f"{sum(cost is not None for cost in every)} of {len(every)}"]


def compare(name: str, case: Case, out: Path, fewer: int) -> bool | None:
    """The rows of one case, printed; whether auto sent the fewest bytes, None where there was nothing to send."""
    instances = min(case.instances, fewer)
    kept = Kept(out / "".join(c if c.isalnum() else "-" for c in name) / "results.json", {"instances": fewer})
    race: Race | None = None

    def test() -> Race:
        nonlocal race
        race = race or Race(case, instances, kept)
        return race

    at_start = kept.get("optimal at the start", lambda: not len(_known(test().gap)))
    if at_start:
        print(f"| {name} | the start is optimal: nothing to do | | | | |", flush=True)
        return None
    results = {"auto": kept.get("auto", lambda: test().auto(case.most))}
    for rival in RIVALS:
        like = case.like or name
        source = Kept(out / "".join(c if c.isalnum() else "-" for c in like) / "results.json", {"instances": fewer})
        found = (kept if like == name else source).get(
            f"{rival} tuned", lambda rival=rival, like=like: tuned(rival, CASES[like], fewer)
        )
        kept.say(f"{rival}: {brief(found['parameters'])}")
        results[rival] = kept.get(
            rival, lambda rival=rival, found=found: test().run(scaled(rival, found, test().problem), case.most)
        )
    for key, result in results.items():
        label = f"**auto**: {result['label']}" if key == "auto" else f"{result['label']}, tuned"
        print(f"| {name} | {label} | " + " | ".join(row(result)) + " |", flush=True)
    least = {key: quantile((math.inf if c is None else c for c in each["needed"]["bytes"]), 0.5) for key, each in results.items()}
    return math.isfinite(least["auto"]) and least["auto"] == min(least.values())


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="how their names begin")
    parser.add_argument("--instances", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("runs/transfer"))
    asked = parser.parse_args()
    print("| problem | method | iterations | rounds | bytes | reached |\n|---|---|---:|---:|---:|---:|")
    fewest = {}
    for name, case in CASES.items():
        if asked.cases and not any(name.startswith(begin) for begin in asked.cases):
            continue
        try:
            fewest[name] = compare(name, case, asked.out, asked.instances)
        except InvalidInput as error:  # data that are not there
            print(f"| {name} | not run: {error} | | | | |", flush=True)
    counted = [ok for ok in fewest.values() if ok is not None]
    print(f"\nauto converges and sends the fewest bytes in {sum(counted)} of {len(counted)} cases (goal: all)")
    for name in (name for name, ok in fewest.items() if ok is False):
        print(f"  not on {name}")


if __name__ == "__main__":
    main()
