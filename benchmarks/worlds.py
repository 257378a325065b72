"""What learning adds on worlds that milodo-plus was trained on, and on worlds it never saw: iterations to a gap, over those of
Tree-APG, the same method without it.

    python benchmarks/worlds.py                     all of them (a quarter of an hour of one core)
    python benchmarks/worlds.py logistic --instances 4

Pooled problems at one node, as it was trained: on exact sums every node holds the same, whatever the graph. Unseen instances,
median and quartiles of the iterations to 1e-3, 1e-5 and 1e-7 of the gap at the start. Goal: at most 0.7x to 1e-5 on worlds of the
training, at most 1.0x on others.
"""

from __future__ import annotations

import argparse
import math

import torch
from _costs import Costs, Instances

from milodo.algorithms import TreeAPG
from milodo.cli.process import keep_freed_memory
from milodo.learned.checkpoint import load_optimizer
from milodo.network import StackedNetwork
from milodo.problems import ElasticNet, Family, Lasso, Logistic, instance_seeds

SEEN: dict[str, Family] = {
    "LASSO(300,100,0.1)": Lasso(1, 300, 100, 0.1),
    "LASSO(200,120,0.05)": Lasso(1, 200, 120, 0.05),
    "LASSO(100,50,0.1)": Lasso(1, 100, 50, 0.1),
    "LASSO(150,250,0.1)": Lasso(1, 150, 250, 0.1),
    "elastic net(120,60,0.1,0.01)": Lasso(1, 120, 60, reg=ElasticNet(0.1, 0.01)),
    "logistic(50,200,0.01)": Logistic(1, 50, 200, 0.01),
    "LASSO(300,100,0.03)": Lasso(1, 300, 100, 0.03),
    "LASSO(300,200,0.1)": Lasso(1, 300, 200, 0.1),
}
UNSEEN: dict[str, Family] = {
    "LASSO(300,100,0.02)": Lasso(1, 300, 100, 0.02),
    "LASSO(300,100,0.5)": Lasso(1, 300, 100, 0.5),
    "LASSO(3000,1000,0.1)": Lasso(1, 3000, 1000, 0.1),
    "linear regression(300,600)": Lasso(1, 300, 600, 0.0),
    "elastic net(300,100,0.1,0.1)": Lasso(1, 300, 100, reg=ElasticNet(0.1, 0.1)),
    "logistic(200,1000,0.01)": Logistic(1, 200, 1000, 0.01),
    "logistic(50,1000,0.1)": Logistic(1, 50, 1000, 0.1),
    "logistic(500,1000,0.001)": Logistic(1, 500, 1000, 0.001),
}
FRACTIONS = (1e-3, 1e-5, 1e-7)
MOST = 3000


def ratio(ours: Costs, bare: Costs) -> list[str]:
    """Median (quartiles) over the instances of iterations with over iterations without."""
    cells = []
    for gap in range(len(FRACTIONS)):
        each = [a / b for a, b in zip(ours.needed["k"][gap], bare.needed["k"][gap], strict=True) if math.isfinite(b) and b > 0]
        quarters = torch.tensor(each, dtype=torch.float64).quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
        cells.append("{1:.2f} ({0:.2f} to {2:.2f})".format(*quarters.tolist()) if each else "none got there")
    return cells


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="*", help="how their names begin")
    parser.add_argument("--instances", type=int, default=32)
    asked = parser.parse_args()
    optimizer, _ = load_optimizer("milodo-plus")
    print("| world | trained on it | " + " | ".join(f"Tree-APG to {f:g} | with / without" for f in FRACTIONS) + " |")
    print("|---|---|" + "---:|" * (2 * len(FRACTIONS)))
    for seen, worlds in ((True, SEEN), (False, UNSEEN)):
        for name, family in worlds.items():
            if asked.worlds and not any(name.startswith(begin) for begin in asked.worlds):
                continue
            count = min(asked.instances, 8 if family.d > 1000 else asked.instances)
            seeds = instance_seeds("test", count)
            instances = Instances(family.sample(seeds), seeds)
            gaps = instances.gaps_of_start(FRACTIONS)
            bare = instances.costs(TreeAPG(), StackedNetwork("ring(1)"), gaps, most=MOST)
            ours = instances.costs(optimizer.at([0]), StackedNetwork("ring(1)"), gaps, most=MOST)
            cells = [cell for gap, r in enumerate(ratio(ours, bare)) for cell in (f"{bare.median('k', gap):,.0f}", r)]
            print(f"| {name} | {'yes' if seen else 'no'} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
