"""Auto's two methods over 100,000 iterations in fp32 and fp64: nothing drifts, in the iterates, between nodes or in the duals.

    python benchmarks/drift.py                       both methods, both precisions (an hour of a busy core)
    python benchmarks/drift.py float32 tree          one of them
    python benchmarks/drift.py --iterations 10000    shorter

LASSO(10,30,4,0.1) on ring(10), 4 unseen instances, the largest of each number. The gap is relative to f*, in fp64 against the
certified optimum; |sum y| is relative to the largest |y|. What is printed is kept in runs/drift/results.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from _costs import gossip
from _kept import Kept
from _measure import verdict

from milodo.algorithms import Algorithm, Remembering, TreeAPG
from milodo.algorithms.auto import learn
from milodo.loop import iterate
from milodo.metrics import consensus_error, judged_point
from milodo.network import Bits, StackedNetwork, StackedObserver
from milodo.problems import Lasso, Problem, instance_seeds, optimum

FAMILY, GRAPH, INSTANCES = Lasso(10, 30, 4, 0.1), "ring(10)", 4
OBSERVER = StackedObserver()
LOOKS = (1_000, 10_000, 100_000)
FLOOR = {torch.float32: 1e-5, torch.float64: 1e-13}
"""Relative gap at which a precision ends."""


def methods(problem: Problem, net: StackedNetwork) -> dict[str, Algorithm]:
    """As auto takes them on ring(10): for bytes, and for links that fail."""
    return {"tree": Remembering(TreeAPG(), Bits(4)), "gossip": gossip(learn(problem, StackedNetwork(GRAPH)), net, FAMILY.d)}


@torch.no_grad()
def measure(name: str, dtype: torch.dtype, looks: list[int], kept: Kept) -> list[dict[str, Any]]:
    seeds = instance_seeds("test", INSTANCES)
    judge, problem = FAMILY.sample(seeds), FAMILY.sample(seeds, dtype=dtype)
    found = optimum(judge)
    assert bool(found.certified.all())
    net = StackedNetwork(GRAPH, dtype=dtype)
    rows = []
    for k, state in enumerate(iterate(methods(judge, net)[name], problem, net)):
        if k in looks:
            x = state.x.double()
            gap = (judge.objective(judged_point(x, judge, OBSERVER), OBSERVER) - found.value) / found.value.abs()
            row = {"k": k, "gap": float(gap.abs().max()), "consensus": float(consensus_error(x, OBSERVER).max()), "sum": None}
            y = getattr(state.inner, "y", None)  # sums over a tree have no duals
            if y is not None:
                row["sum"] = float(y.double().sum(-2).abs().max() / y.abs().max())
            rows.append(row)
            kept.say(f"{name}, {dtype}: {row}")
        if k == looks[-1]:
            break
    return rows


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chosen", nargs="*", help="tree, gossip, float32, float64")
    parser.add_argument("--iterations", type=int, default=LOOKS[-1])
    parser.add_argument("--out", type=Path, default=Path("runs/drift"))
    asked = parser.parse_args()
    kept, looks = (
        Kept(asked.out / "results.json", {"instances": INSTANCES}),
        [k for k in LOOKS if k < asked.iterations] + [asked.iterations],
    )
    labels = {"tree": "Tree-APG, 4 bits", "gossip": "Accelerated-ED, 5 levels"}
    print(
        "| method | precision | iterations | relative gap | consensus error | sum of duals | |\n|---|---|---:|---:|---:|---:|---|"
    )
    for name in (name for name in labels if name in asked.chosen or not set(labels) & set(asked.chosen)):
        precisions = {str(dtype).removeprefix("torch."): dtype for dtype in FLOOR}
        for said in (p for p in precisions if p in asked.chosen or not set(precisions) & set(asked.chosen)):
            dtype = precisions[said]
            rows = kept.get(f"{name}, {said}, {looks[-1]}", lambda name=name, dtype=dtype: measure(name, dtype, looks, kept))
            for last, row in zip([None, *rows], rows, strict=False):
                fine = row["gap"] <= FLOOR[dtype] or (last is not None and row["gap"] < last["gap"])
                duals = "none" if row["sum"] is None else f"{row['sum']:.1e}"
                mark = "" if last is None else verdict(fine)
                numbers = f"{row['k']:,} | {row['gap']:.1e} | {row['consensus']:.1e} | {duals}"
                print(f"| {labels[name]} | {said} | {numbers} | {mark} |", flush=True)
    print("\nok: still falling, or where its precision ends (relative gap of 1e-5 in fp32, 1e-13 in fp64)")


if __name__ == "__main__":
    main()
