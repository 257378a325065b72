"""What shipped optimizers must hold beyond their races (`milodo bench milodo-lasso-ring10`).

    python benchmarks/learned.py long        100,000 iterations in fp32 and fp64: no divergence, the gap falls or is at the floor
    python benchmarks/learned.py far         512 instances to a gap of 1e-8 within 5,000 iterations
    python benchmarks/learned.py transfer    without retraining to LASSO(10,3000,100,0.1) and to Logistic(10,50,100,0.1)
    python benchmarks/learned.py shapes      iterations to 1e-2 on LASSO(10,500,N,0.1), against Prox-ED tuned for that N
    python benchmarks/learned.py plus        milodo-plus on worlds that it was trained on, and on others (a quarter of an hour)

Names of optimizers, and float32, float64, lasso or logistic behind it restrict it. Gaps are computed in fp64 against a
certified optimum, on instances no optimizer was trained, validated or tuned on.

`plus`: iterations to 1e-3, 1e-5 and 1e-7 of the gap at the start over those of Tree-APG, the same method without learning,
median and quartiles. Pooled problems at one node, as it was trained: on exact sums every node holds the same, whatever the
graph. Names of worlds behind it restrict it. Goal: at most 0.7x to 1e-5 on worlds of the training, at most 1.0x on others.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from _harness import Costs, Instances, Part, row, run_part, table, verdict

from milodo.algorithms import Algorithm, ProxED, TreeAPG
from milodo.bench.tuning import Search, tune
from milodo.learned import Learned
from milodo.learned.checkpoint import load_optimizer, shipped
from milodo.loop import iterate
from milodo.metrics import consensus_error, judged_point
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import ElasticNet, Family, Lasso, Logistic, Problem, instance_seeds, optimum

OBSERVER = StackedObserver()
LONG = (10, 100, 1_000, 10_000, 30_000, 100_000)
FLOOR = {torch.float32: 1e-5, torch.float64: 1e-13}
"""Gap relative to f* at which a precision ends: in fp32 duals that are summed for 1e5 steps carry their rounding."""


@torch.no_grad()
def gaps(
    optimizer: Learned, family: Family, instances: int, dtype: torch.dtype, at: Sequence[int]
) -> Iterator[tuple[int, torch.Tensor, float]]:
    """(k, gaps of all instances relative to f*, mean consensus error) at the iterations asked for."""
    seeds = instance_seeds("test", instances)
    judge = family.sample(seeds)
    found = optimum(judge)
    assert bool(found.certified.all())
    best = found.value
    problem = judge if dtype == torch.float64 else family.sample(seeds, dtype=dtype)
    net = StackedNetwork(optimizer.topology, "third", dtype=dtype)
    for k, state in enumerate(iterate(optimizer, problem, net)):
        if k in at:
            x = state.x.double()
            gap = (judge.objective(judged_point(x, judge, OBSERVER), OBSERVER) - best) / best.abs()
            yield k, gap, float(consensus_error(x, OBSERVER).mean())
        if k == max(at):
            return


INSTANCES = 32
MANY, TOGETHER, MOST = 512, 64, 5_000
"""Instances of `far`, side by side, and iterations."""
OURS = ("milodo-lasso-ring10", "milodo-meta-ring10")
SHAPES = {5: 12_000, 25: 4_000, 50: 1_000, 100: 400}
"""N -> iterations that Prox-ED may need."""
LIMIT = 1.1
"""Times tuned Prox-ED's iterations that the meta optimizer may need."""


def show(k: int, gap: torch.Tensor, consensus: float, since: float) -> None:
    low, middle, high = (float(q) for q in torch.quantile(gap, torch.tensor([0.25, 0.5, 0.75], dtype=gap.dtype)))
    print(f"  k = {k:7,d}   relative gap {middle:9.2e} ({low:.1e} to {high:.1e}), largest {float(gap.max()):9.2e}   "
          f"consensus error {consensus:.1e}   {time.perf_counter() - since:5.0f} s", flush=True)  # fmt: skip


def long(names: Sequence[str], dtypes: Sequence[torch.dtype]) -> None:
    for name in names:
        optimizer, _ = load_optimizer(name)
        for dtype in dtypes:
            instances = INSTANCES
            print(f"\n{name}, LASSO(10,300,10,0.1), {instances} unseen instances, {dtype}", flush=True)
            since, seen = time.perf_counter(), []
            for k, gap, consensus in gaps(optimizer, Lasso(10, 300, 10, 0.1), instances, dtype, LONG):
                show(k, gap, consensus, since)
                seen.append(float(gap.abs().max()))
            fine = seen[-1] < seen[-2] or seen[-1] < FLOOR[dtype]
            print(f"  still falling, or below {FLOOR[dtype]:g} {verdict(fine)}", flush=True)


def far(name: str = "milodo-lasso-ring10", gap: float = 1e-8) -> None:
    optimizer, _ = load_optimizer(name)
    seeds, found = instance_seeds("test", MANY), torch.empty(0, dtype=torch.float64)
    for start in range(0, MANY, TOGETHER):
        problem = Lasso(10, 300, 10, 0.1).sample(seeds[start : start + TOGETHER])
        found = torch.cat((found, iterations_to(optimizer, problem, optimum(problem).value, gap, MOST)))
        print(
            f"  {len(found)} unseen instances, iterations to {gap:g}: {_quartiles(found)}, at most {float(found.max()):,.0f}",
            flush=True,
        )
    held = int((found <= MOST).sum())
    print(f"  {held} of {MANY} within {MOST:,} iterations {verdict(held == MANY)}")


def transfer(names: Sequence[str], chosen: Sequence[str]) -> None:
    for family, instances, at, goal in (
        (Logistic(10, 50, 100, 0.1), INSTANCES, (100, 1_000, 3_000), 1e-9),
        (Lasso(10, 3000, 100, 0.1), INSTANCES, (100, 300, 1_000, 3_000), 1e-3),
    ):
        if {"lasso", "logistic"} & set(chosen) and type(family).__name__.lower() not in chosen:
            continue
        for name in names:
            optimizer, _ = load_optimizer(name)
            print(f"\n{name}, never trained on {family.name}: {instances} unseen instances, fp64", flush=True)
            since, gap = time.perf_counter(), torch.empty(0)
            for k, gap, consensus in gaps(optimizer, family, instances, torch.float64, at):
                show(k, gap, consensus, since)
            print(f"  every instance within {goal:g} of the certified optimum {verdict(bool((gap < goal).all()))}")


@torch.no_grad()
def iterations_to(algorithm: Algorithm, problem: Problem, best: torch.Tensor, gap: float, most: int) -> torch.Tensor:
    """Of each instance; inf where `most` were not enough."""
    net, needed = StackedNetwork("ring(10)", "third"), torch.full_like(best, torch.inf)
    for k, state in enumerate(islice(iterate(algorithm, problem, net), most + 1)):
        below = problem.objective(judged_point(state.x, problem, OBSERVER), OBSERVER) - best <= gap
        needed = torch.where(below & needed.isinf(), float(k), needed)
        if bool(needed.isfinite().all()):
            break
    return needed


def shapes(name: str, gap: float = 1e-2) -> None:
    optimizer, _ = load_optimizer(name)
    for N, most in SHAPES.items():
        family = Lasso(10, 500, N, 0.1)
        known, unseen = (family.sample(instance_seeds(use, count)) for use, count in (("tuning", 8), ("test", INSTANCES)))
        search = Search(instances=8, iterations=most, target=gap, points=9, refinements=3)
        tuned = tune(ProxED, known, StackedNetwork("ring(10)", "third"), optimum(known).value, search)
        best = optimum(unseen).value
        theirs = iterations_to(ProxED(gamma=tuned.best["gamma"]), unseen, best, gap, 2 * most)
        ours = iterations_to(optimizer, unseen, best, gap, 2 * most)
        ratio = float(ours.median() / theirs.median())
        print(f"  N = {N:3d}, iterations to {gap:g}: Prox-ED (gamma = {tuned.best['gamma']:.4g}) {_quartiles(theirs)}, {name} "
              f"{_quartiles(ours)}: {ratio:.2f}x (goal: at most {LIMIT}) {verdict(ratio <= LIMIT)}", flush=True)  # fmt: skip


def _quartiles(needed: torch.Tensor) -> str:
    at = torch.tensor([0.25, 0.5, 0.75], dtype=needed.dtype)
    low, middle, high = (float(q) for q in torch.quantile(needed, at, interpolation="nearest"))  # inf must not become nan
    return f"{middle:,.0f} ({low:,.0f} - {high:,.0f})"


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
MOST_STEPS = 3000


def with_over_without(ours: Costs, bare: Costs) -> list[str]:
    """Median (quartiles) over the instances of iterations with over iterations without."""
    cells = []
    for gap in range(len(FRACTIONS)):
        each = [a / b for a, b in zip(ours.needed["k"][gap], bare.needed["k"][gap], strict=True) if math.isfinite(b) and b > 0]
        quarters = torch.tensor(each, dtype=torch.float64).quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
        cells.append("{1:.2f} ({0:.2f} to {2:.2f})".format(*quarters.tolist()) if each else "none got there")
    return cells


def plus(asked: argparse.Namespace) -> None:
    optimizer, _ = load_optimizer("milodo-plus")
    heads = (head for f in FRACTIONS for head in (f"Tree-APG to {f:g}", "with / without"))
    table("world", "trained on it", *heads, numbers=2 * len(FRACTIONS))
    for seen, worlds in ((True, SEEN), (False, UNSEEN)):
        for name in (name for name in worlds if not asked.names or name.startswith(tuple(asked.names))):
            family = worlds[name]
            count = min(asked.instances, 8 if family.d > 1000 else asked.instances)
            seeds = instance_seeds("test", count)
            instances = Instances(family.sample(seeds), seeds)
            gaps = instances.gaps_of_start(FRACTIONS)
            bare = instances.costs(TreeAPG(), StackedNetwork("ring(1)"), gaps, most=MOST_STEPS)
            ours = instances.costs(optimizer.at([0]), StackedNetwork("ring(1)"), gaps, most=MOST_STEPS)
            cells = [cell for gap, r in enumerate(with_over_without(ours, bare)) for cell in (f"{bare.median('k', gap):,.0f}", r)]
            row(name, "yes" if seen else "no", *cells)


def chosen_names(asked: argparse.Namespace) -> list[str]:
    return [name for name in shipped() if name in asked.names] or list(OURS)


def chosen_dtypes(asked: argparse.Namespace) -> list[torch.dtype]:
    return [dtype for dtype in FLOOR if str(dtype).removeprefix("torch.") in asked.names] or list(FLOOR)


PARTS: dict[str, Part] = {
    "long": lambda asked: long(chosen_names(asked), chosen_dtypes(asked)),
    "far": lambda asked: far(),
    "transfer": lambda asked: transfer(chosen_names(asked), asked.names),
    "shapes": lambda asked: shapes((asked.names or ["milodo-meta-ring10"])[0]),
    "plus": plus,
}

if __name__ == "__main__":
    run_part(__doc__, PARTS)
