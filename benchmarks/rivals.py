"""Auto for bytes, untuned, against rivals with the same freedom: each with its best operator and fewest bits, tuned for bytes.

    python benchmarks/rivals.py                 ring(10), grid(5x5) and tree(31) (hours)
    python benchmarks/rivals.py "ring(10)"      one of them
    python benchmarks/rivals.py --rivals dapg prox-ed --instances 4 --iterations 600 --points 3      to try it

LASSO(n,300,10,0.1), fp64. Every rival is tuned on 4 instances for fewest bytes to a mean gap of 1e-3 in five levels, 4, 6 and 8
bits and, where it has a choice, over every operator (numbers of rounds up to 2/sqrt(gap)). A variant runs no further than what
the best one of its method sent, or 20x what auto sends on the same instances: beyond that it cannot matter. The best variant of
each, its messages coded like auto's, which changes no iteration, races auto on 32 unseen instances. Goal: auto sends at most
1.1x the bytes of the best rival, what its nodes tell each other before the start counted.

Tuned variants are kept in runs/rivals/GRAPH/tuned.json, the race is an ordinary run beside it: what is complete is not run again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from _kept import Kept
from _measure import verdict

from milodo.algorithms import METHODS, TreeAPG
from milodo.algorithms.auto import choose, learn
from milodo.bench.benchmark import Benchmark
from milodo.bench.records import read_records
from milodo.bench.run_file import RunFile
from milodo.bench.speedup import Speedup, speedup_table
from milodo.bench.tuning import Parameters, Search, tune
from milodo.config.experiment import parse_experiment
from milodo.config.tables import MethodTable
from milodo.network import StackedNetwork, message_format
from milodo.problems import Lasso, Problem, instance_seeds, optimum
from milodo.topology import topology
from milodo.words import amount, brief

GRAPHS = ("ring(10)", "grid(5x5)", "tree(31)")
WAYS = ("tree", "round", "fitted", "fastmix")
"""Chebyshev's polynomial is left out: `fitted` leaves no more of disagreement in as many rounds."""
RIVALS: dict[str, tuple[str | None, ...]] = {
    "dapg": WAYS, "odapg": WAYS, "apapc": (None,), "lepdo": (None,), "prox-ed": (None,), "admm": (None,),
}  # fmt: skip
FORMS = ("5-level", "4-bit", "6-bit", "8-bit")
GAPS = (1e-3, 1e-5)
TUNED_ON, INSTANCES = 4, 32
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
            fixed: Parameters = {"K": 1} if over in ("tree", "round") else {"inner": INNER} if name == "admm" else {}
            label = {"label": f"over {over}, tuned", "over": over} if over else {"label": "tuned"}
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
    run, table = RunFile.read(folder), speedup_table(read_records(folder / "records.csv"), GAPS, None)
    return {
        facts.label or key: [row for row in table if row.method == key and row.axis == "bytes"]
        for key, facts in run.methods.items()
    }


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=list(RIVALS))
    parser.add_argument("--instances", type=int, default=INSTANCES)
    parser.add_argument("--iterations", type=int, default=MOST)
    parser.add_argument("--points", type=int, default=5, help="grid points of each parameter")
    parser.add_argument("--out", type=Path, default=Path("runs/rivals"))
    asked = parser.parse_args()
    search = Search(
        instances=TUNED_ON, iterations=asked.iterations, target=GAPS[0], points=2 * asked.points - 1, points_each=asked.points,
        refinements=2, wide=True, cost="bytes",
    )  # fmt: skip
    print("| graph | method | " + " | ".join(f"bytes to {gap:g} | auto / it" for gap in GAPS) + " | reached |")
    print("|---|---|" + "---:|" * (2 * len(GAPS) + 1))
    verdicts = [line for graph in asked.graphs for line in compare(graph, search, asked)]
    print("\n" + "\n".join(verdicts))


def compare(graph: str, search: Search, asked: argparse.Namespace) -> list[str]:
    """The rows of one graph, printed, and what follows from them."""
    folder = asked.out / "".join(c if c.isalnum() else "-" for c in graph)
    kept = Kept(folder / "tuned.json", search.model_dump(mode="json"))
    known = Lasso(topology(graph).n, 300, 10, 0.1).sample(instance_seeds("tuning", TUNED_ON))
    best = optimum(known).value
    most = HOPELESS * kept.get("auto", lambda: bytes_of_auto(graph, known, best, search))
    entries = {name: tuned(name, graph, known, best, search, kept, most) for name in asked.rivals}
    found = race(graph, [e for e in entries.values() if e], asked.instances, 3 * asked.iterations, folder / "race", kept)
    (_, auto), *others = found.items()
    for label, rows in found.items():
        ratios = [own.median / row.median if math.isfinite(row.median) else 0.0 for own, row in zip(auto, rows, strict=True)]
        cells = (f"{_bytes(row)} | {ratio:.2f}" for row, ratio in zip(rows, ratios, strict=True))
        print(f"| {graph} | {label} | " + " | ".join(cells) + f" | {rows[-1].reached} of {rows[-1].instances} |", flush=True)
    for name in (name for name, entry in entries.items() if entry is None):
        hopeless = f"| {graph} | {METHODS[name].label}: more than {HOPELESS}x auto's bytes to {GAPS[0]:g} in tuning "
        print(hopeless + "| " * (2 * len(GAPS) + 1) + "|", flush=True)
    lines = []
    for at, gap in enumerate(GAPS):
        label, rows = min(others, key=lambda pair: pair[1][at].median, default=("nobody", auto))
        ratio = auto[at].median / rows[at].median
        said = f"{graph}, to {gap:g}: auto sends {ratio:.2f}x the bytes of the best rival, {label}"
        lines.append(f"{said} (goal: at most {GOAL}) {verdict(ratio <= GOAL)}")
    return lines


def _bytes(row: Speedup) -> str:
    return amount(round(row.median)) if math.isfinite(row.median) else f"> {amount(round(row.last))}"


if __name__ == "__main__":
    main()
