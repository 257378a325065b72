"""The choice by price on twelve graphs, untouched and untuned: six of the paper's kind, and six drawn from other families.

    python benchmarks/graphs.py auto      what auto needs for bytes and for rounds on LASSO(n,300,10,0.1) (minutes)
    python benchmarks/graphs.py dapg      beside it DAPG, tuned with numbers of rounds up to 2/sqrt(gap) (hours)

Links that fail are the subject of lossy.py.

Names of graphs behind it restrict it; --instances N takes fewer than 32. A race is an ordinary run: records and run.json are in
runs/graphs/KIND/GRAPH, and what is complete is not run again.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch

from milodo.bench.benchmark import Benchmark
from milodo.bench.records import read_records
from milodo.bench.run_file import RunFile
from milodo.bench.speedup import speedup_table
from milodo.config.experiment import parse_experiment
from milodo.topology import topology
from milodo.words import amount

GRAPHS = (
    "grid(5x5)", "tree(31)", "exponential(16)", "erdos_renyi(50,0.1,seed=1)", "ring(100)", "star(20)",
    "regular(24,3,seed=7)", "torus(5x6)", "hypercube(5)", "path(17)", "erdos_renyi(33,0.15,seed=11)", "complete(12)",
)  # fmt: skip
AUTO: list[dict[str, Any]] = [{"name": "auto"}, {"name": "auto", "pay": "rounds"}]
KINDS: dict[str, dict[str, Any]] = {
    "auto": {"methods": AUTO, "gaps": [1e-3, 1e-5], "iterations": 6000},
    "dapg": {"methods": [*AUTO, {"name": "dapg"}], "gaps": [1e-3, 1e-5], "iterations": 6000},
}


def experiment(graph: str, kind: str, instances: int) -> Any:
    asked, n = KINDS[kind], topology(graph).n
    stop, together = 0.9 * asked["gaps"][-1], min(8, instances)
    content = {
        "name": kind,
        "problem": {"family": "lasso", "n": n, "d": 300, "N": 10, "lam": 0.1},
        "network": {"topology": graph},
        "run": {"iterations": asked["iterations"], "instances": instances, "batch": together, "stop_gap": stop},
        "tuning": {
            "instances": 4, "iterations": min(asked["iterations"], 6000), "target": asked["gaps"][-1],
            "points_each": 5, "points": 9, "refinements": 2, "wide": True, "cost": "rounds",
        },
        "methods": asked["methods"],
        "report": {"gaps": asked["gaps"]},
    }  # fmt: skip
    return parse_experiment(content, graph)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("graphs", nargs="*")
    parser.add_argument("--instances", type=int, default=32)
    asked = parser.parse_args()
    gaps = KINDS[asked.kind]["gaps"]
    print("| graph | method | " + " | ".join(f"rounds to {gap:g} | bytes" for gap in gaps) + " | reached |")
    print("|---|---|" + "---:|" * (2 * len(gaps) + 1))
    for graph in asked.graphs or GRAPHS:
        folder = Path("runs/graphs") / asked.kind / "".join(c if c.isalnum() else "-" for c in graph)
        Benchmark(experiment(graph, asked.kind, asked.instances), folder).run(resume=(folder / "run.json").exists())
        run, records = RunFile.read(folder), read_records(folder / "records.csv")
        table = speedup_table(records, gaps, None)
        for key, facts in run.methods.items():
            cells = []
            for gap in gaps:
                row = {r.axis: r.median for r in table if r.method == key and r.gap == gap}
                known = statistics.fmean(row.values()) < float("inf")
                cells += [f"{row['rounds']:,.0f}", amount(round(row["bytes"]))] if known else ["never", "never"]
            last = {r.instance: r.gap for r in records if r.method == key}
            reached = sum(gap <= gaps[-1] for gap in last.values())
            print(f"| {graph} | {facts.label} | " + " | ".join(cells) + f" | {reached} of {len(last)} |", flush=True)


if __name__ == "__main__":
    main()
