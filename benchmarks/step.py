"""What a step costs: over its bare gradient, over Prox-ED's, for an edge, and in memory; and what choices made for speed give.

    python benchmarks/step.py methods    both shapes (the large one needs 3 GB)
    python benchmarks/step.py --small    only the small one
    python benchmarks/step.py --auto     only auto's methods
    python benchmarks/step.py edges      the cost of an edge, from ring(10) to ring(100000) and on graphs with uneven degrees
    python benchmarks/step.py memory     peak memory of building and solving LASSO(10,30000,1000) (needs 3 GB) over its data
    python benchmarks/step.py choices    each choice against what it replaced, in one run

Goals: one Prox-ED step at most 1.3x its gradient at LASSO(10,30000,1000), and at most 200 µs over it at (10,300,10); one step
of MiLoDo at most 1.1x Prox-ED's at the large shape and 2x at the small, as shipped: its networks run in each `every`-th
iteration; one step of Tree-APG in 4 bits and of Accelerated-ED in five levels, both coded, at most 1.1x Prox-ED's there.

`edges`: the cost of mixing per edge does not grow by more than 1.5x from ring(10) to ring(1000), nor that of a step of Prox-ED
from ring(1000) to ring(100000); a race of Prox-ED on ring(100000) takes less than 1 GB. Small graphs pay the fixed cost of
launching an operation, so it falls first; a padded table or a dense W would make it rise with n.

`memory`: at most 1.2x the data, less what the process used before there was a problem.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from _harness import Part, medians, peak_memory, run_part, verdict

from milodo.algorithms import (
    DAPG,
    ODAPG,
    AcceleratedED,
    Algorithm,
    PGExtra,
    PrimalDual,
    ProxATC,
    ProxDGD,
    ProxED,
    TreeAPG,
)
from milodo.algorithms.rule import WARM_UP
from milodo.bench.benchmark import Benchmark
from milodo.bench.records import read_records
from milodo.cli.process import keep_freed_memory
from milodo.config import Experiment
from milodo.learned import MiLoDo
from milodo.learned.checkpoint import load_optimizer
from milodo.learned.weights import COLUMNS
from milodo.loop import Stop, iterate, solve
from milodo.network import Bits, Coded, Levels, StackedNetwork
from milodo.problems import Lasso, Problem

METHODS: tuple[Algorithm, ...] = (
    ProxDGD(gamma=0.02),
    ProxATC(gamma=0.02),
    PGExtra(gamma=0.02),
    ProxED(gamma=0.02),
    DAPG(eta=0.02, alpha=0.02),
    ODAPG(eta=0.2, tau=0.02),
    PrimalDual(gamma=0.02),
)
AUTO: tuple[Algorithm, ...] = (
    ProxED(gamma=0.02),
    TreeAPG().compressed(Coded(Bits(4))),
    AcceleratedED(gamma=0.02, K=1).compressed(Coded(Levels(5))),
)
"""What auto takes for bytes on ring(10) where links hold and where they fail, behind what it is measured by."""
LEARNED_LIMIT = {300: 2.0, 30000: 1.1}
"""Times Prox-ED's step that MiLoDo's may take, by the number of unknowns."""
LIMIT = 1.1
"""Times Prox-ED's step that theirs may take where there is much data."""


@torch.no_grad()
def measure(methods: tuple[Algorithm, ...], d: int, N: int, repeats: int, inner: int) -> dict[str, float]:
    problem = Lasso(10, d, N, 0.1).sample([0])
    net = StackedNetwork("ring(10)")
    x = torch.randn_like(problem.zeros())
    states = {method.label: method.init(x, problem, net) for method in methods}
    tasks = {"gradient": lambda: problem.grad(x)}
    for method in methods:
        tasks[method.label] = lambda method=method: method.step(states[method.label], problem, net)
    return medians(tasks, repeats=repeats, inner=inner)


@torch.no_grad()
def learned(d: int, N: int, dtype: torch.dtype, repeats: int, inner: int) -> None:
    """MiLoDo against Prox-ED: time, where it goes, and the memory its state adds to the data."""
    problem, net = Lasso(10, d, N, 0.1).sample([0], dtype=dtype), StackedNetwork("ring(10)", dtype=dtype)
    optimizer, _ = load_optimizer("milodo-lasso-ring10")
    assert isinstance(optimizer, MiLoDo)
    prox_ed, x = ProxED(gamma=0.02), torch.randn_like(problem.zeros())
    before, state = prox_ed.init(x, problem, net), optimizer.init(x, problem, net)
    every = optimizer.settings().every
    for _ in range(WARM_UP):  # neighbours agree upon weights on edges
        state = optimizer.step(state, problem, net)
    running = state._replace(memory=state.memory._replace(k=WARM_UP * every))
    keeping = state._replace(memory=state.memory._replace(k=WARM_UP * every + 1))
    network, v, hidden = optimizer.phi_m, torch.randn(1, 10, COLUMNS, d), state.memory.hidden
    weights, seen = torch.randn(10, 80, COLUMNS + 21), torch.randn(1, 10, COLUMNS + 21, d)
    gates = weights @ seen
    seconds = medians(
        {
            "gradient": lambda: problem.grad(x),
            "Prox-ED": lambda: prox_ed.step(before, problem, net),
            "running": lambda: optimizer.step(running, problem, net),
            "keeping": lambda: optimizer.step(keeping, problem, net),
            "phi_M": lambda: network(v, hidden.h_m, hidden.c_m),
            "its gates": lambda: weights @ seen,
            "its sigmoids": lambda: gates.sigmoid(),
        },
        repeats=repeats,
        inner=inner,
    )
    seconds["MiLoDo"] = (seconds["running"] + (every - 1) * seconds["keeping"]) / every
    print(f"\nMiLoDo at LASSO(10,{d},{N}), ring(10), iterates in {dtype}, networks in fp32, {torch.get_num_threads()} threads")
    for name, value in seconds.items():
        print(f"  {name:12s} {value * 1e6:12,.0f} µs   {value / seconds['Prox-ED']:5.2f}x Prox-ED")
    step = seconds["running"]
    rest = step - seconds["gradient"] - seconds["phi_M"]
    print(f"  of a step in which it runs: gradient {seconds['gradient'] / step:.0%}, phi_M {seconds['phi_M'] / step:.0%}, "
          f"the rule {rest / step:.0%}")  # fmt: skip
    data = problem.A.numel() * problem.A.element_size()
    kept = sum(part.numel() * part.element_size() for part in keeping if isinstance(part, torch.Tensor))
    print(f"  its state: {kept / 1e6:.1f} MB, {kept / data:.2f}x the data")
    ratio, goal = seconds["MiLoDo"] / seconds["Prox-ED"], LEARNED_LIMIT[d]
    print(f"  MiLoDo over Prox-ED, phi_M in each {every}th iteration: {ratio:.2f}x (goal: {goal}) {verdict(ratio <= goal)}")


def chosen(d: int, N: int, repeats: int, inner: int) -> None:
    """Auto's methods against Prox-ED."""
    seconds = measure(AUTO, d, N, repeats, inner)
    print(f"\nAuto's methods at LASSO(10,{d},{N}), ring(10), fp64, {torch.get_num_threads()} threads")
    for method in AUTO:
        ratio = seconds[method.label] / seconds[ProxED.label]
        goal = f" (goal: at most {LIMIT}) {verdict(ratio <= LIMIT)}" if d == 30000 and method.label != ProxED.label else ""
        print(f"  {method.label:22s} {seconds[method.label] * 1e6:12,.0f} µs   {ratio:5.2f}x Prox-ED{goal}")


def compared(asked: argparse.Namespace) -> None:
    shapes = [(300, 10, 200, 20)] if asked.small else [(300, 10, 200, 20), (30000, 1000, 7, 1)]
    for shape in shapes:
        chosen(*shape)
    if asked.auto:
        return
    for d, N, repeats, inner in shapes:
        seconds = measure(METHODS, d, N, repeats, inner)
        gradient = seconds["gradient"]
        print(f"\nLASSO(10,{d},{N}), ring(10), fp64, {torch.get_num_threads()} threads: gradient {gradient * 1e6:,.0f} µs")
        for name, value in seconds.items():
            print(f"  {name:12s} {value * 1e6:12,.0f} µs   {value / gradient:5.2f}x   {(value - gradient) * 1e6:+10,.0f} µs")
        ratio, over = seconds["Prox-ED"] / gradient, (seconds["Prox-ED"] - gradient) * 1e6
        if d == 300:
            print(f"  Prox-ED over its gradient: {over:.0f} µs (goal: at most 200) {verdict(over <= 200)}")
        else:
            print(f"  Prox-ED over its gradient: {ratio:.2f}x (goal: at most 1.3) {verdict(ratio <= 1.3)}")
    for d, N, repeats, inner in shapes:
        for dtype in (torch.float64, torch.float32):
            learned(d, N, dtype, repeats, inner)


GRAPHS = ("ring(10)", "ring(30)", "ring(100)", "ring(300)", "ring(1000)", "star(1000)", "erdos_renyi(1000,0.01,seed=1)")
LARGE, D, SAMPLES = 100_000, 10, 5


def race(asked: argparse.Namespace) -> None:
    """Prox-ED on a large ring, with all that a race needs: instances, their certified optimum, records."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment.model_validate(
            {
                "name": "large",
                "problem": {"family": "lasso", "n": LARGE, "d": D, "N": SAMPLES, "lam": 0.1},
                "network": {"topology": f"ring({LARGE})"},
                "run": {"iterations": 100, "instances": 1},
                "methods": [{"name": "prox-ed", "use": "safe"}],
            }
        )
        rows = read_records(Benchmark(experiment, Path(folder)).run() / "records.csv")
    peak = peak_memory()
    first, last = rows[0], rows[-1]
    print(f"\na race of Prox-ED on ring({LARGE}), d = {D}, {SAMPLES} samples a node, fp64")
    print(f"  gap {first.gap:.2g} at k = 0, {last.gap:.2g} at k = {last.k} ({last.seconds / last.k * 1e3:.1f} ms an iteration)")
    print(f"  peak memory {peak / 1e9:.2f} GB (goal: below 1) {verdict(peak < 1e9)}")


@torch.no_grad()
def mixing() -> None:
    for d in (300, 3000):
        tasks, edges = {}, {}
        for name in GRAPHS:
            net = StackedNetwork(name)
            x = torch.randn(net.n, d, dtype=torch.float64)
            edges[name] = len(net.arcs)
            tasks[name] = lambda net=net, x=x: net.mix(x)
        growth(f"mix(x) at d = {d}", medians(tasks, repeats=60, inner=3), edges, "ring(10)", "ring(1000)")


def steps_of(method: ProxED, problem: Problem, net: StackedNetwork, count: int) -> None:
    for _ in islice(iterate(method, problem, net), 1 + count):
        pass


@torch.no_grad()
def large_steps() -> None:
    tasks, edges = {}, {}
    for n in (1000, LARGE):
        net, problem = StackedNetwork(f"ring({n})"), Lasso(n, D, SAMPLES, 0.1).sample([0])
        method = ProxED.safe(float(problem.lipschitz().max()), net)
        edges[f"ring({n})"] = LARGE // n * len(net.arcs)
        tasks[f"ring({n})"] = partial(steps_of, method, problem, net, LARGE // n)
    # So many steps of the small ring that both work on as many edges a turn. The thread's own time: whatever else runs on the
    # machine interrupts a long step more than a short one.
    seconds = medians(tasks, repeats=40, clock=time.process_time)
    growth(f"steps of Prox-ED at d = {D}", seconds, edges, "ring(1000)", f"ring({LARGE})")


def growth(what: str, seconds: dict[str, float], edges: dict[str, int], small: str, large: str) -> None:
    print(f"\n{what}, fp64, {torch.get_num_threads()} threads")
    for name, value in seconds.items():
        print(f"  {name:32s} {edges[name]:6d} directed edges {value * 1e6:10,.0f} µs {value / edges[name] * 1e9:8,.0f} ns/edge")
    ratio = (seconds[large] / edges[large]) / (seconds[small] / edges[small])
    print(f"  growth of the cost per edge, {small} to {large}: {ratio:.2f}x (goal: at most 1.5) {verdict(ratio <= 1.5)}")


def edges(asked: argparse.Namespace) -> None:
    # First, in a process of its own: Linux counts what the parent held when it forked as the child's peak.
    subprocess.run([sys.executable, __file__, "race"], check=True)
    mixing()
    large_steps()


def memory(asked: argparse.Namespace) -> None:
    solve(ProxED(gamma=0.02), Lasso(10, 30, 10, 0.1).sample([0]), StackedNetwork("ring(10)"), Stop(steps=3))  # warm up torch
    before = peak_memory()
    problem = Lasso(10, 30000, 1000, 0.1).sample([0])
    built = peak_memory()
    solve(ProxED(gamma=0.02), problem, StackedNetwork("ring(10)"), Stop(steps=20))
    solved = peak_memory()
    data = problem.A.numel() * problem.A.element_size() + problem.b.numel() * problem.b.element_size()
    ratio = (solved - before) / data
    print(f"\nLASSO(10,30000,1000), fp64: data {data / 1e9:.2f} GB, {torch.get_num_threads()} threads")
    print(f"  peak while building {(built - before) / data:.3f}x the data")
    print(f"  peak after 20 steps of Prox-ED {ratio:.3f}x the data (goal: at most 1.2) {verdict(ratio <= 1.2)}")


def say(what: str, seconds: dict[str, float]) -> None:
    (slow, before), (fast, after) = seconds.items()
    print(f"{what}\n  {slow} {before * 1e6:,.0f} µs, {fast} {after * 1e6:,.0f} µs: {before / after:.1f}x")


@torch.no_grad()
def choices(asked: argparse.Namespace) -> None:
    problem, net = Lasso(10, 300, 10, 0.1).sample(range(32)), StackedNetwork("ring(10)")
    x, A = torch.randn_like(problem.zeros()), problem.A

    task = {"mix": lambda: net.mix(x)}
    fresh = medians(task, repeats=20, inner=10)["mix"]
    keep_freed_memory()
    say("mix of 32 instances (process.py)", {"fresh pages": fresh, "kept memory": medians(task, repeats=20, inner=10)["mix"]})

    columns = medians(
        {
            "matrix times column": lambda: (A @ x.unsqueeze(-1)).squeeze(-1),
            "row times matrix": lambda: (x.unsqueeze(-2) @ A.mT).squeeze(-2),
        },
        repeats=20,
        inner=5,
    )
    say("A x of 32 instances (problems/linear.py)", columns)

    few, size = Lasso(10, 300, 10, 0.1).sample(range(4)), 24
    gammas = torch.full((size, 1, 1, 1), 0.02, dtype=torch.float64)
    laid_out = few.zeros().expand(size, -1, -1, -1).contiguous()
    strided = laid_out.movedim(0, -1).contiguous().movedim(-1, 0)
    method = ProxED(gamma=gammas)
    states = {"candidates innermost": strided, "laid out as usual": laid_out}
    tasks = {name: lambda v=v: net.lap(method.gamma * v + laid_out) for name, v in states.items()}
    say("mixing 24 candidates x 4 instances (problems/linear.py)", medians(tasks, repeats=20, inner=3))

    def step(count: int) -> float:
        many = DAPG(eta=torch.full((count, 1, 1, 1), 0.02).double(), alpha=torch.full((count, 1, 1, 1), 0.02).double(), K=3)
        state = many.init(few.zeros().expand(count, -1, -1, -1), few, net)
        return medians({"step": lambda: many.step(state, few, net)}, repeats=10, inner=2)["step"] / count

    say("a DAPG step, per candidate (bench/tuning.py)", {"36 at once": step(36), "groups of 9": step(9)})


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--auto", action="store_true")


PARTS: dict[str, Part] = {"methods": compared, "edges": edges, "race": race, "memory": memory, "choices": choices}

if __name__ == "__main__":
    run_part(__doc__, PARTS, options, fresh=("race", "choices"))
