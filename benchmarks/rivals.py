"""Auto for bytes, untuned, against rivals tuned for fewest bytes: with the same freedom on its own problem, and on others.

    python benchmarks/rivals.py own [GRAPHS]         ring(10), grid(5x5) and tree(31) (hours)
    python benchmarks/rivals.py own "ring(10)" --rivals dapg prox-ed --instances 4 --iterations 600 --points 3      to try it
    python benchmarks/rivals.py others [PROBLEMS]    other problems, on ring(10) (hours; the largest one needs 6 GB)

Medians over --instances (32) unseen instances, fp64; what auto's nodes tell each other before they choose is counted.

`own`: LASSO(n,300,10,0.1). Every rival is tuned on 4 instances for fewest bytes to a mean gap of 1e-3 in five levels, 4, 6 and
8 bits and, where it has a choice, over every operator (numbers of rounds up to 2/sqrt(gap)). A variant runs no further than
what the best one of its method sent, or 20x what auto sends on the same instances: beyond that it cannot matter. The best
variant of each, its messages coded like auto's, which changes no iteration, races auto. Goal: auto sends at most 1.1x the bytes
of the best rival. Tuned variants are kept in runs/rivals/GRAPH/tuned.json, the race is an ordinary run beside it.

`others`: the gap is 1e-3 where a case is the paper's LASSO(10,300,10,lam), and 1e-4 of the gap at the start elsewhere. Prox-ED
and DAPG are tuned on 4 other instances (fewer where said) for fewest bytes to that gap; for LASSO(10,30000,1000) on
LASSO(10,3000,100), with step sizes in units of 1/L. "> x": not reached within the iterations that were given. BSDS needs its
photographs (docs/data.md). Kept in runs/transfer/CASE/results.json. What is complete is not run again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _harness import AXES, Kept, Part, cell, folder_name, row, run_part, table, verdict, wanted

from milodo.algorithms import METHODS, Algorithm, TreeAPG
from milodo.algorithms.auto import choose, learn
from milodo.algorithms.parameters import StepSize
from milodo.bench.benchmark import Benchmark
from milodo.bench.recorder import Limits, Recorder, record
from milodo.bench.records import read_records
from milodo.bench.run_file import RunFile
from milodo.bench.speedup import Speedup, cost_to_reach, quantile, speedup_table
from milodo.bench.tuning import Parameters, Search, tune
from milodo.config.experiment import parse_experiment
from milodo.config.tables import MethodTable
from milodo.errors import InvalidInput
from milodo.network import StackedNetwork, StackedObserver, message_format
from milodo.problems import FAMILIES, ElasticNet, Lasso, LeastSquares, Logistic, Problem, instance_seeds, optimum
from milodo.topology import topology
from milodo.words import amount, brief

GRAPHS = ("ring(10)", "grid(5x5)", "tree(31)")
WAYS = ("tree", "gossip", "minimax", "fastmix")
"""Chebyshev's polynomial is left out: `fitted` leaves no more of disagreement in as many rounds."""
RIVALS: dict[str, tuple[str | None, ...]] = {
    "dapg": WAYS, "odapg": WAYS, "apapc": (None,), "lepdo": (None,), "prox-ed": (None,), "admm": (None,),
}  # fmt: skip
FORMS = ("5-level", "4-bit", "6-bit", "8-bit")
GAPS = (1e-3, 1e-5)
TUNED_ON = 4
MOST = 6000
"""Iterations that a candidate may take in tuning, and a third of those in the race."""
INNER = 30
"""Gradients of ADMM's inner steps: 4 % more iterations than 100, which count as exact, for a third of the time."""
GOAL = 1.1
HOPELESS = 20
"""Times the bytes that auto needs at which a variant is given up."""


def variants(name: str) -> Iterator[tuple[str, dict[str, Any], Parameters]]:
    """What a method can be told beside its parameters, short messages first: a name, keys of [[methods]], what is fixed."""
    for form in FORMS:
        for over in RIVALS[name]:
            fixed: Parameters = {"K": 1} if over in ("tree", "gossip") else {"inner": INNER} if name == "admm" else {}
            label = {"label": f"over {over}, tuned", "exchange": over} if over else {"label": "tuned"}
            keys = {"name": name, "messages": form, **label}
            yield f"{name}{f' over {over}' if over else ''}, {message_format(form)}", keys, fixed


def bytes_of_auto(graph: str, known: Problem, best: torch.Tensor, search: Search) -> float:
    """On the tuning instances; the few numbers that nodes exchange before they choose are left out."""
    net = StackedNetwork(graph)
    algorithm = choose("bytes", learn(known, net), net, known.d).algorithm
    return tune(TreeAPG, known, net, best, search, make=lambda parameters: algorithm).score


def tuned(
    name: str, graph: str, known: Problem, best: torch.Tensor, search: Search, kept: Kept, most: float
) -> dict[str, Any] | None:
    """The best variant of a rival as an entry of [[methods]]; None if none reached the target with so many bytes."""
    least, found = most, None
    for variant, keys, fixed in variants(name):

        def compute(keys: dict[str, Any] = keys, fixed: Parameters = fixed, least: float = least) -> dict[str, Any]:
            make, net = MethodTable.model_validate({**keys, "use": "safe"}).handcrafted, StackedNetwork(graph)
            result = tune(METHODS[name], known, net, best, search, fixed=fixed, make=make, beat=least)
            return {"reached": result.reached, "bytes": result.score if result.reached else None, "parameters": result.best}

        result = kept.get(variant, compute)
        if result["reached"] and result["bytes"] < least:
            coded = {"messages": f"{keys['messages']}-coded", "use": "given", "parameters": result["parameters"]}
            least, found = result["bytes"], {**keys, **coded}
            kept.say(f"{variant}: {amount(round(least))} on tuning instances with {brief(result['parameters'])}")
    return found


def race(
    graph: str, rivals: list[dict[str, Any]], instances: int, iterations: int, folder: Path, kept: Kept
) -> dict[str, list[Speedup]]:
    """What each method needs to each gap, in bytes, by its label."""
    content = {
        "name": "rivals",
        "problem": {"family": "lasso", "n": topology(graph).n, "d": 300, "N": 10, "lam": 0.1},
        "network": {"topology": graph},
        "run": {"iterations": iterations, "instances": instances, "batch": min(8, instances), "stop_gap": 0.9 * GAPS[-1]},
        "methods": [{"name": "auto"}, *rivals],
        "report": {"gaps": list(GAPS)},
    }

    def progress(task: str, fraction: float, detail: str) -> None:
        if fraction == 1.0:
            kept.say(f"{task}: {detail}")

    benchmark = Benchmark(parse_experiment(content, graph), folder, progress)
    benchmark.run(resume=(folder / "run.json").exists())
    run, medians = RunFile.read(folder), speedup_table(read_records(folder / "records.csv"), GAPS, None)
    return {
        facts.label or key: [each for each in medians if each.method == key and each.axis == "bytes"]
        for key, facts in run.methods.items()
    }


def own(asked: argparse.Namespace) -> None:
    search = Search(
        instances=TUNED_ON, iterations=asked.iterations, target=GAPS[0], points=2 * asked.points - 1, points_each=asked.points,
        refinements=2, wide=True, cost="bytes",
    )  # fmt: skip
    heads = (head for gap in GAPS for head in (f"bytes to {gap:g}", "auto / it"))
    table("graph", "method", *heads, "reached", numbers=2 * len(GAPS) + 1)
    verdicts = [line for graph in wanted(GRAPHS, asked.names) for line in compare_own(graph, search, asked)]
    print("\n" + "\n".join(verdicts))


def compare_own(graph: str, search: Search, asked: argparse.Namespace) -> list[str]:
    """The rows of one graph, printed, and what follows from them."""
    folder = (asked.out or Path("runs/rivals")) / folder_name(graph)
    kept = Kept(folder / "tuned.json", search.model_dump(mode="json"))
    known = Lasso(topology(graph).n, 300, 10, 0.1).sample(instance_seeds("tuning", TUNED_ON))
    best = optimum(known).value
    most = HOPELESS * kept.get("auto", lambda: bytes_of_auto(graph, known, best, search))
    entries = {name: tuned(name, graph, known, best, search, kept, most) for name in asked.rivals}
    found = race(graph, [e for e in entries.values() if e], asked.instances, 3 * asked.iterations, folder / "race", kept)
    (_, auto), *others = found.items()
    for label, rows in found.items():
        ratios = [our.median / its.median if math.isfinite(its.median) else 0.0 for our, its in zip(auto, rows, strict=True)]
        cells = (cell for each, ratio in zip(rows, ratios, strict=True) for cell in (_bytes(each), f"{ratio:.2f}"))
        row(graph, label, *cells, f"{rows[-1].reached} of {rows[-1].instances}")
    for name in (name for name, entry in entries.items() if entry is None):
        hopeless = f"{METHODS[name].label}: more than {HOPELESS}x auto's bytes to {GAPS[0]:g} in tuning"
        row(graph, hopeless, *[""] * (2 * len(GAPS) + 1))
    lines = []
    for at, gap in enumerate(GAPS):
        label, rows = min(others, key=lambda pair: pair[1][at].median, default=("nobody", auto))
        ratio = auto[at].median / rows[at].median
        said = f"{graph}, to {gap:g}: auto sends {ratio:.2f}x the bytes of the best rival, {label}"
        lines.append(f"{said} (goal: at most {GOAL}) {verdict(ratio <= GOAL)}")
    return lines


def _bytes(needed: Speedup) -> str:
    return amount(round(needed.median)) if math.isfinite(needed.median) else f"> {amount(round(needed.last))}"


RING, NODES = "ring(10)", 10
TUNED = ("prox-ed", "dapg")
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
    "LASSO(10,300,10,0.02)": Case(Lasso(NODES, 300, 10, 0.02).sample, absolute=True),
    "LASSO(10,300,10,0.5)": Case(Lasso(NODES, 300, 10, 0.5).sample, absolute=True),
    "elastic net(10,300,10,0.1,0.1)": Case(Lasso(NODES, 300, 10, reg=ElasticNet(0.1, 0.1)).sample),
    "linear regression(10,300,10)": Case(Lasso(NODES, 300, 10, 0.0).sample),
    "sites of 1 to 100 samples": Case(uneven),
    "L-spread 100x": Case(spread),
    "logistic(10,50,100,0.1)": Case(Logistic(NODES, 50, 100, 0.1).sample, most=6000),
    "logistic(10,200,100,0.1)": Case(Logistic(NODES, 200, 100, 0.1).sample, most=6000),
    "logistic(10,500,100,0.1)": Case(Logistic(NODES, 500, 100, 0.1).sample, most=6000),
    "logistic(10,1000,100,0.1)": Case(Logistic(NODES, 1000, 100, 0.1).sample, most=6000),
    "BSDS LASSO(10,200,10,0.05)": Case(bsds),
    "LASSO(10,3000,100,0.1)": Case(Lasso(NODES, 3000, 100, 0.1).sample, instances=8, tuned_on=2, most=3000),
    "LASSO(10,30000,1000,0.1)": Case(
        Lasso(NODES, 30_000, 1000, 0.1).sample, instances=1, most=600, accuracy=1e-9, like="LASSO(10,3000,100,0.1)"
    ),
}


def target(case: Case, problem: Problem, best: torch.Tensor) -> torch.Tensor:
    """The gap that counts as solved [*batch]; inf where the start is optimal."""
    first = problem.objective(problem.start()[..., 0, :], OBSERVER)
    gap = torch.full_like(best, ABSOLUTE) if case.absolute else RELATIVE * (first - best)
    return torch.where(first - best > AT_START * first.abs(), gap, torch.inf)


def tuned_like(name: str, case: Case, instances: int) -> dict[str, Any]:
    """Parameters of a rival, and 1/L, the unit of its step sizes."""
    count = min(case.tuned_on, instances)
    problem = case.make(instance_seeds("tuning", count))
    best = optimum(problem).value
    search = Search(
        instances=count, iterations=max(1, case.most // 3), target=float(_known(target(case, problem, best)).mean()), points=9,
        points_each=5, refinements=2, wide=True, cost="bytes",
    )  # fmt: skip
    found = tune(METHODS[name], problem, StackedNetwork(RING), best, search)
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
        net = StackedNetwork(RING)
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
        net = StackedNetwork(RING)
        chosen = choose("bytes", learn(self.problem, net), net, self.problem.d)
        return self.run(chosen.algorithm, most, learns=True)


def cells_of(result: dict[str, Any]) -> list[str]:
    """Medians of iterations, rounds and bytes; how many reached the gap."""
    cells = []
    for axis in AXES:
        middle = quantile((math.inf if cost is None else cost for cost in result["needed"][axis]), 0.5)
        value, more = (middle, "") if math.isfinite(middle) else (result["ended"][axis], "> ")
        cells.append(more + cell(value, axis))
    every = result["needed"]["bytes"]
    return [*cells, f"{sum(cost is not None for cost in every)} of {len(every)}"]


def compare_other(name: str, case: Case, out: Path, fewer: int) -> bool | None:
    """The rows of one case, printed; whether auto sent the fewest bytes, None where there was nothing to send."""
    instances = min(case.instances, fewer)
    kept = Kept(out / folder_name(name) / "results.json", {"instances": fewer})
    race: Race | None = None

    def test() -> Race:
        nonlocal race
        race = race or Race(case, instances, kept)
        return race

    at_start = kept.get("optimal at the start", lambda: not len(_known(test().gap)))
    if at_start:
        row(name, "the start is optimal: nothing to do", *[""] * 4)
        return None
    results = {"auto": kept.get("auto", lambda: test().auto(case.most))}
    for rival in TUNED:
        like = case.like or name
        source = Kept(out / folder_name(like) / "results.json", {"instances": fewer})
        found = (kept if like == name else source).get(
            f"{rival} tuned", lambda rival=rival, like=like: tuned_like(rival, CASES[like], fewer)
        )
        kept.say(f"{rival}: {brief(found['parameters'])}")
        results[rival] = kept.get(
            rival, lambda rival=rival, found=found: test().run(scaled(rival, found, test().problem), case.most)
        )
    for key, result in results.items():
        label = f"**auto**: {result['label']}" if key == "auto" else f"{result['label']}, tuned"
        row(name, label, *cells_of(result))
    least = {key: quantile((math.inf if c is None else c for c in each["needed"]["bytes"]), 0.5) for key, each in results.items()}
    return math.isfinite(least["auto"]) and least["auto"] == min(least.values())


def others(asked: argparse.Namespace) -> None:
    table("problem", "method", "iterations", "rounds", "bytes", "reached", numbers=4)
    fewest, out = {}, asked.out or Path("runs/transfer")
    for name in wanted(list(CASES), asked.names):
        try:
            fewest[name] = compare_other(name, CASES[name], out, asked.instances)
        except InvalidInput as error:  # data that are not there
            row(name, f"not run: {error}", *[""] * 4)
    counted = [ok for ok in fewest.values() if ok is not None]
    print(f"\nauto converges and sends the fewest bytes in {sum(counted)} of {len(counted)} cases (goal: all)")
    for name in (name for name, ok in fewest.items() if ok is False):
        print(f"  not on {name}")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=list(RIVALS), help="of `own`")
    parser.add_argument("--iterations", type=int, default=MOST, help="of a candidate in tuning")
    parser.add_argument("--points", type=int, default=5, help="grid points of each parameter")


PARTS: dict[str, Part] = {"own": own, "others": others}

if __name__ == "__main__":
    run_part(__doc__, PARTS, options)
