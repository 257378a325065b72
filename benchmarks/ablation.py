"""What each part of the cheapest answer gives: momentum, the operator, bits, the choice and learning, each switched off
(learning: on) in turn.

    python benchmarks/ablation.py                        ring(10), grid(5x5) and tree(31) (half an hour of one core)
    python benchmarks/ablation.py "ring(10)" --instances 4

LASSO(n,300,10,0.1), fp64, 32 unseen instances, medians; what auto's nodes tell each other before they choose is counted in every
row. Writes docs/figures/ablation.png when all three graphs are run on all instances.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import torch
from _costs import Costs, Instances, gossip
from torch import Tensor

from milodo.algorithms import AcceleratedED, Algorithm, Remembering, TreeAPG
from milodo.algorithms.auto import choose, gossips, learn, made
from milodo.algorithms.tree_apg import Here, OverTree, Source
from milodo.learned.checkpoint import load_optimizer
from milodo.network import Coded, StackedNetwork
from milodo.problems import Lasso, Problem, instance_seeds
from milodo.report.figures import RC, new_figure, save_figure
from milodo.topology import topology
from milodo.words import amount

GRAPHS = ("ring(10)", "grid(5x5)", "tree(31)")
GAPS = (1e-3, 1e-5)
MOST = 6000


class Plain(Source):
    """No momentum."""

    each = False

    def start(self, x0: Tensor) -> None:
        return None

    def weights(self, memory: None, here: Here, problem: Problem) -> tuple[Tensor, Tensor, None]:
        return torch.ones_like(here.beta), torch.zeros_like(here.beta), None


class TreePG(OverTree):
    """Proximal gradient on sums over a tree: Tree-APG without its momentum."""

    label = "Tree-PG"

    @property
    def source(self) -> Source:
        return Plain()


def rows(graph: str, problem: Problem) -> dict[str, Callable[[], Algorithm]]:
    """What is switched off -> the method that is left."""
    net = StackedNetwork(graph)
    facts = learn(problem, net)
    fewest = choose("bytes", facts, net, problem.d).algorithm
    rounds = choose("rounds", facts, net, problem.d).algorithm
    assert isinstance(fewest, Remembering) and isinstance(fewest.form, Coded)
    plain = fewest.form.form
    local = gossip(facts, net, problem.d)
    ways = (made(way.parameters) for way in gossips("bytes", facts, net, problem.d, None) if way.name.startswith("Accelerated"))
    talks = next(way for way in ways if isinstance(way, Remembering))
    bare = talks.method
    assert isinstance(bare, AcceleratedED)

    def learned() -> Algorithm:
        optimizer, _ = load_optimizer("milodo-plus")
        return Remembering(optimizer.at(net.nodes), fewest.form)

    return {
        "auto for bytes": lambda: fewest,
        "with learning (milodo-plus)": learned,
        "without momentum": lambda: Remembering(TreePG(), fewest.form),
        "without the code": lambda: Remembering(TreeAPG(), plain),
        "without bits (64)": TreeAPG,
        "gossip, without sums over a tree": lambda: local,
        "gossip without local steps": lambda: talks,
        "gossip without momentum": lambda: replace(talks, method=replace(bare, momentum=0.0)),
        "gossip without bits": lambda: bare,
        "auto for rounds, which tells curvature": lambda: rounds,
    }


def cell(costs: Costs, axis: str, gap: int) -> str:
    value = costs.median(axis, gap)
    if not math.isfinite(value):
        return "never"
    return amount(round(value)) if axis == "bytes" else f"{value:,.0f}"


def draw(found: dict[str, dict[str, Costs]], path: Path) -> None:
    """Bytes to the last gap of every row over those of auto, a panel a graph."""
    with matplotlib.rc_context(RC):
        figure: Any = new_figure(11, 4.2)
        for number, (graph, each) in enumerate(found.items()):
            panel = figure.add_subplot(1, len(found), number + 1)
            names = list(each)
            whole = each["auto for bytes"].median("bytes", -1)
            ratios = [each[name].median("bytes", -1) / whole for name in names]
            known = [ratio if math.isfinite(ratio) else 0 for ratio in ratios]
            panel.barh(range(len(names)), known, color=["#0072b2" if name == "auto for bytes" else "#9cc3de" for name in names])
            for i, ratio in enumerate(ratios):
                said = f"{ratio:.3g}x" if math.isfinite(ratio) else f"never in {MOST:,}"
                panel.text(max(known[i], 1) * 1.08, i, said, va="center", fontsize=9)
            panel.set(xscale="log", xlim=(0.5, 4000), yticks=range(len(names)))
            panel.set_xticks([1, 10, 100, 1000], ["1x", "10x", "100x", "1000x"])
            panel.minorticks_off()
            panel.grid(visible=False, axis="y")
            panel.set_title(f"{graph}: bytes to {GAPS[-1]:g}")
            panel.set_yticklabels(names if number == 0 else [""] * len(names))
            panel.invert_yaxis()
        save_figure(figure, path)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*")
    parser.add_argument("--instances", type=int, default=32)
    asked = parser.parse_args()
    found: dict[str, dict[str, Costs]] = {}
    print("| graph | | method | " + " | ".join(f"iterations to {gap:g} | rounds | bytes" for gap in GAPS) + " |")
    print("|---|---|---|" + "---:|" * (3 * len(GAPS)))
    for graph in asked.graphs or GRAPHS:
        seeds = instance_seeds("test", asked.instances)
        problem = Lasso(topology(graph).n, 300, 10, 0.1).sample(seeds)
        instances = Instances(problem, seeds)
        found[graph] = {}
        for name, make in rows(graph, problem).items():
            algorithm = make()
            costs = found[graph][name] = instances.costs(algorithm, StackedNetwork(graph), GAPS, most=MOST, learns=True)
            cells = [cell(costs, axis, gap) for gap in range(len(GAPS)) for axis in ("k", "rounds", "bytes")]
            print(f"| {graph} | {name} | {algorithm.label} | " + " | ".join(cells) + " |", flush=True)
    if not asked.graphs and asked.instances == 32:
        draw(found, Path("docs/figures/ablation.png"))


if __name__ == "__main__":
    main()
