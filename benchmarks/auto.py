"""Whether auto's choice is the cheapest, and what each part of the cheapest answer gives.

    python benchmarks/auto.py choice [GRAPHS]      predicted against measured cost of every candidate (minutes of one core)
    python benchmarks/auto.py graphs [GRAPHS]      auto for bytes and for rounds, untouched, on twelve graphs (minutes)
    python benchmarks/auto.py rival [GRAPHS]       beside it DAPG, tuned with numbers of rounds up to 2/sqrt(gap) (hours)
    python benchmarks/auto.py ablation [GRAPHS]    momentum, the operator, bits, the choice off, learning on (half an hour)

`choice`: four instances of each problem, to a gap of 1e-4 of that at the start; a cost is the mean over them. Bytes are those
that were sent; seconds are those of links with 20 ms and 10 Mbit/s, computed from measured iterations. Every case is there
twice: as it is, and "gradients" without Tree-Newton, as where unknowns are more than a matrix of all pairs could hold, or
Hessians unknown.

The others: LASSO(n,300,10,0.1), fp64, --instances (32) unseen instances, medians; what auto's nodes tell each other before they
choose is counted. A race of `graphs` is an ordinary run in runs/graphs/KIND/GRAPH, and what is complete is not run again;
`ablation` draws docs/figures/ablation.png when all its graphs are run on all instances.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import torch
from _harness import TWELVE, Costs, Instances, Part, cell, folder_name, gossip, row, run_part, table, verdict, wanted
from torch import Tensor

from milodo.algorithms import AcceleratedED, Algorithm, TreeAPG
from milodo.algorithms.auto import PAYS, Candidate, Link, choose, gossips, learn, made
from milodo.algorithms.tree_apg import Here, Source, SumsAPG
from milodo.bench.benchmark import Benchmark
from milodo.bench.records import read_records
from milodo.bench.run_file import RunFile
from milodo.bench.speedup import speedup_table
from milodo.config.experiment import parse_experiment
from milodo.learned.checkpoint import load_optimizer
from milodo.loop import iterate
from milodo.metrics import judged_point
from milodo.network import Coded, StackedNetwork, StackedObserver
from milodo.network.exchange import AllGather, Polynomial, TreeAllReduce
from milodo.problems import Lasso, LeastSquares, Logistic, Problem, instance_seeds, optimum
from milodo.report.figures import RC, new_figure, save_figure
from milodo.topology import topology

CHOSEN_ON = (
    "ring(10)", "ring(30)", "path(10)", "grid(5x5)", "tree(31)", "star(20)", "complete(10)", "exponential(16)", "torus(4x5)",
    "hypercube(4)", "regular(20,3,seed=2)", "erdos_renyi(30,0.15,seed=2)",
)  # fmt: skip
OF_START, LONGEST, FEW = 1e-4, 3000, 4
LINK = Link(0.02, 1.25e6)
OBSERVER = StackedObserver()
NEAR, ENOUGH = 1.25, 0.9
"""Times the best cost that a choice may cost, and in what share of all cases."""


def problems(n: int) -> dict[str, Problem]:
    """Few samples and many, alike and unlike, even and uneven."""
    seeds = instance_seeds("test", FEW)
    few, plenty = Lasso(n, 60, 6, 0.05).sample(seeds), Lasso(n, 40, 30, 0.05).sample(seeds)
    spread = torch.logspace(-1, 0, n, dtype=torch.float64)[torch.randperm(n, generator=torch.Generator().manual_seed(0))]
    mixed = torch.eye(40, dtype=torch.float64) + 0.5
    return {
        "few samples": few,
        "L spread 100x": LeastSquares(few.A * spread.reshape(n, 1, 1), few.b * spread.reshape(n, 1), few.reg),
        "correlated": LeastSquares(plenty.A @ mixed, plenty.b, plenty.reg),
        "logistic": Logistic(n, 30, 20, 0.01).sample(seeds),
    }


class Took(NamedTuple):
    """To the gap, means over instances; inf if one of them does not get there."""

    iterations: float
    bytes: float

    def cost(self, candidate: Candidate, pay: str) -> float:
        """Rounds and seconds of an iteration are known."""
        return self.bytes if pay == "bytes" else self.iterations * getattr(candidate, pay)


@torch.no_grad()
def run_candidate(candidate: Candidate, problem: Problem, net: StackedNetwork, best: torch.Tensor, gap: torch.Tensor) -> Took:
    needed, sent, before = torch.full_like(best, torch.inf), torch.full_like(best, torch.inf), net.traffic.snapshot()
    for k, state in enumerate(islice(iterate(made(candidate.parameters), problem, net), LONGEST + 1)):
        below = problem.objective(judged_point(state.x, problem, OBSERVER), OBSERVER) - best <= gap
        now = below & needed.isinf()
        needed = torch.where(now, float(k), needed)
        sent = torch.where(now, (net.traffic - before).of(best.shape).to(sent), sent)
        if bool(needed.isfinite().all()):
            break
    return Took(float(needed.mean()), float(sent.mean()))


def plain(name: str) -> str:
    """A candidate whose messages are coded takes the iterations of the one whose messages are not."""
    return name.removesuffix(", coded")


def choice(asked: argparse.Namespace) -> None:
    ratios = []
    for graph in wanted(CHOSEN_ON, asked.names):
        net = StackedNetwork(graph)
        for name, problem in problems(net.topology.n).items():
            best = optimum(problem).value
            gap = OF_START * (problem.objective(problem.start()[..., 0, :], OBSERVER) - best)
            facts = learn(problem, net)
            took = dict[str, Took]()
            for pay in ("bytes", "seconds"):  # for bytes coded; more ways are open to seconds than to other prices
                every = choose(pay, facts, net, problem.d, LINK)
                for candidate in (every.best, *every.others):
                    if plain(candidate.name) not in took:
                        took[plain(candidate.name)] = run_candidate(candidate, problem, net, best, gap)
            for known, pay in product((facts, replace(facts, newton=None)), PAYS):
                chosen = choose(pay, known, net, problem.d, LINK)
                costs = {c.name: took[plain(c.name)].cost(c, pay) for c in (chosen.best, *chosen.others)}
                cheapest = min(costs, key=lambda key: costs[key])
                ratio = costs[chosen.best.name] / costs[cheapest]
                ratios.append(ratio)
                said = f"predicted {chosen.best.cost(pay):10,.0f} measured {costs[chosen.best.name]:10,.0f}"
                mark = "" if ratio <= NEAR else "<"
                told = "curvature" if known.newton else "gradients"
                case = f"{graph:28s} {name:14s} {told:9s} {pay:8s}"
                print(f"{case} {chosen.best.name:34s} {said}   best {cheapest:34s} {ratio:5.2f}x {mark}", flush=True)
    good = sum(ratio <= NEAR for ratio in ratios)
    print(f"within {NEAR}x of the best in {good} of {len(ratios)} (goal: nine tenths) {verdict(good >= ENOUGH * len(ratios))}")


AUTO: list[dict[str, Any]] = [{"name": "auto"}, {"name": "auto", "pay": "rounds"}]
KINDS: dict[str, dict[str, Any]] = {
    "graphs": {"methods": AUTO, "gaps": [1e-3, 1e-5], "iterations": 6000},
    "rival": {"methods": [*AUTO, {"name": "dapg"}], "gaps": [1e-3, 1e-5], "iterations": 6000},
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


def graphs(asked: argparse.Namespace) -> None:
    gaps = KINDS[asked.part]["gaps"]
    table(
        "graph",
        "method",
        *(head for gap in gaps for head in (f"rounds to {gap:g}", "bytes")),
        "reached",
        numbers=2 * len(gaps) + 1,
    )
    for graph in wanted(TWELVE, asked.names):
        folder = Path("runs/graphs") / asked.part / folder_name(graph)
        Benchmark(experiment(graph, asked.part, asked.instances), folder).run(resume=(folder / "run.json").exists())
        run, records = RunFile.read(folder), read_records(folder / "records.csv")
        medians = speedup_table(records, gaps, None)
        for key, facts in run.methods.items():
            cells = list[str]()
            for gap in gaps:
                found = {r.axis: r.median for r in medians if r.method == key and r.gap == gap}
                known = statistics.fmean(found.values()) < float("inf")
                cells += [cell(found[axis] if known else math.inf, axis) for axis in ("rounds", "bytes")]
            last = {r.instance: r.gap for r in records if r.method == key}
            reached = sum(gap <= gaps[-1] for gap in last.values())
            row(graph, facts.label, *cells, f"{reached} of {len(last)}")


ABLATED_ON = ("ring(10)", "grid(5x5)", "tree(31)")
GAPS = (1e-3, 1e-5)
MOST = 6000


class Plain(Source):
    """No momentum."""

    each = False

    def start(self, x0: Tensor) -> None:
        return None

    def weights(self, memory: None, here: Here, problem: Problem) -> tuple[Tensor, Tensor, None]:
        return torch.ones_like(here.beta), torch.zeros_like(here.beta), None


class TreePG(SumsAPG):
    """Proximal gradient on sums over a tree: Tree-APG without its momentum."""

    label = "Tree-PG"
    exchange: TreeAllReduce | AllGather = TreeAllReduce()

    @property
    def source(self) -> Source:
        return Plain()


def ways_of(graph: str, problem: Problem) -> dict[str, Callable[[], Algorithm]]:
    """What is switched off -> the method that is left."""
    net = StackedNetwork(graph)
    facts = learn(problem, net)
    fewest = choose("bytes", facts, net, problem.d).algorithm
    rounds = choose("rounds", facts, net, problem.d).algorithm
    code = fewest.compressor
    assert isinstance(code, Coded)
    plain = code.form
    local = gossip(facts, net, problem.d)
    ways = (made(way.parameters) for way in gossips("bytes", facts, net, problem.d, None) if way.name.startswith("Accelerated"))
    talks = next(way for way in ways if way.compressor is not None)
    assert isinstance(talks, AcceleratedED) and isinstance(talks.exchange, Polynomial)
    bare = replace(talks, exchange=replace(talks.exchange, compressor=None))

    def learned() -> Algorithm:
        optimizer, _ = load_optimizer("milodo-plus")
        return optimizer.at(net.nodes).compressed(code)

    return {
        "auto for bytes": lambda: fewest,
        "with learning (milodo-plus)": learned,
        "without momentum": lambda: TreePG().compressed(code),
        "without the code": lambda: TreeAPG().compressed(plain),
        "without bits (64)": TreeAPG,
        "gossip, without sums over a tree": lambda: local,
        "gossip without local steps": lambda: talks,
        "gossip without momentum": lambda: replace(talks, momentum=0.0),
        "gossip without bits": lambda: bare,
        "auto for rounds, which tells curvature": lambda: rounds,
    }


def draw_ablation(found: dict[str, dict[str, Costs]], path: Path) -> None:
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


def ablation(asked: argparse.Namespace) -> None:
    found: dict[str, dict[str, Costs]] = {}
    heads = (head for gap in GAPS for head in (f"iterations to {gap:g}", "rounds", "bytes"))
    table("graph", "", "method", *heads, numbers=3 * len(GAPS))
    for graph in wanted(ABLATED_ON, asked.names):
        instances = Instances.lasso(graph, asked.instances)
        found[graph] = {}
        for name, make in ways_of(graph, instances.problem).items():
            algorithm = make()
            costs = found[graph][name] = instances.costs(algorithm, StackedNetwork(graph), GAPS, most=MOST, learns=True)
            cells = [cell(costs.median(axis, gap), axis) for gap in range(len(GAPS)) for axis in ("k", "rounds", "bytes")]
            row(graph, name, algorithm.label, *cells)
    if not asked.names and asked.instances == 32:
        draw_ablation(found, Path("docs/figures/ablation.png"))


PARTS: dict[str, Part] = {"choice": choice, "graphs": graphs, "rival": graphs, "ablation": ablation}

if __name__ == "__main__":
    run_part(__doc__, PARTS)
