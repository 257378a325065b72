"""Predicted against measured cost of every candidate of `auto`, and how far its choice is from the best in hindsight.

    python benchmarks/auto.py            all graphs and problems (minutes of one core)
    python benchmarks/auto.py ring       graphs whose name begins so

Four instances of each problem, to a gap of 1e-4 of that at the start; a cost is the mean over them. Bytes are those that were
sent; seconds are those of links with 20 ms and 10 Mbit/s, computed from measured iterations. Every case is there twice: as it is,
and "gradients" without Tree-Newton, as it is where unknowns are more than a matrix of all pairs could hold, or Hessians unknown.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import islice, product
from typing import NamedTuple

import torch
from _measure import verdict

from milodo.algorithms.auto import PAYS, Candidate, Link, choose, learn, made
from milodo.loop import iterate
from milodo.metrics import judged_point
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import Lasso, LeastSquares, Logistic, Problem, instance_seeds, optimum

GRAPHS = (
    "ring(10)", "ring(30)", "path(10)", "grid(5x5)", "tree(31)", "star(20)", "complete(10)", "exponential(16)", "torus(4x5)",
    "hypercube(4)", "regular(20,3,seed=2)", "erdos_renyi(30,0.15,seed=2)",
)  # fmt: skip
GAP, MOST, INSTANCES = 1e-4, 3000, 4
LINK = Link(0.02, 1.25e6)
OBSERVER = StackedObserver()
NEAR, ENOUGH = 1.25, 0.9
"""Times the best cost that a choice may cost, and in what share of all cases."""


def problems(n: int) -> dict[str, Problem]:
    """Few samples and many, alike and unlike, even and uneven."""
    seeds = instance_seeds("test", INSTANCES)
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
def run(candidate: Candidate, problem: Problem, net: StackedNetwork, best: torch.Tensor, gap: torch.Tensor) -> Took:
    needed, sent, before = torch.full_like(best, torch.inf), torch.full_like(best, torch.inf), net.traffic.snapshot()
    for k, state in enumerate(islice(iterate(made(candidate.parameters), problem, net), MOST + 1)):
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


def main() -> None:
    torch.set_num_threads(1)
    begins = sys.argv[1] if len(sys.argv) > 1 else ""
    ratios = []
    for graph in (name for name in GRAPHS if name.startswith(begins)):
        net = StackedNetwork(graph)
        for name, problem in problems(net.topology.n).items():
            best = optimum(problem).value
            gap = GAP * (problem.objective(problem.start()[..., 0, :], OBSERVER) - best)
            facts = learn(problem, net)
            took = dict[str, Took]()
            for pay in ("bytes", "seconds"):  # for bytes coded; more ways are open to seconds than to other prices
                every = choose(pay, facts, net, problem.d, LINK)
                for candidate in (every.best, *every.others):
                    if plain(candidate.name) not in took:
                        took[plain(candidate.name)] = run(candidate, problem, net, best, gap)
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


if __name__ == "__main__":
    main()
