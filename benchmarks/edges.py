"""What an edge costs, from ring(10) to ring(100000) and on graphs with uneven degrees.

Goals: the cost of mixing per edge does not grow by more than 1.5x from ring(10) to ring(1000), nor that of a step of Prox-ED from
ring(1000) to ring(100000); a race of Prox-ED on ring(100000) takes less than 1 GB. Small graphs pay the fixed cost of launching
an operation, so it falls first; a padded table or a dense W would make it rise with n.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from _measure import medians, verdict

from milodo.algorithms import ProxED
from milodo.bench.benchmark import Benchmark
from milodo.bench.records import read_records
from milodo.cli.process import keep_freed_memory
from milodo.config import Experiment
from milodo.loop import iterate
from milodo.network import StackedNetwork
from milodo.problems import Lasso, Problem

GRAPHS = ("ring(10)", "ring(30)", "ring(100)", "ring(300)", "ring(1000)", "star(1000)", "erdos_renyi(1000,0.01,seed=1)")
LARGE, D, SAMPLES = 100_000, 10, 5


def race() -> None:
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
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
        compare(f"mix(x) at d = {d}", medians(tasks, repeats=60, inner=3), edges, "ring(10)", "ring(1000)")


def run(method: ProxED, problem: Problem, net: StackedNetwork, count: int) -> None:
    for _ in islice(iterate(method, problem, net), 1 + count):
        pass


@torch.no_grad()
def steps() -> None:
    tasks, edges = {}, {}
    for n in (1000, LARGE):
        net, problem = StackedNetwork(f"ring({n})"), Lasso(n, D, SAMPLES, 0.1).sample([0])
        method = ProxED.safe(float(problem.lipschitz().max()), net)
        edges[f"ring({n})"] = LARGE // n * len(net.arcs)
        tasks[f"ring({n})"] = partial(run, method, problem, net, LARGE // n)
    # So many steps of the small ring that both work on as many edges a turn. One thread's own time: whatever else runs on the
    # machine interrupts a long step more than a short one.
    torch.set_num_threads(1)
    seconds = medians(tasks, repeats=40, clock=time.process_time)
    compare(f"steps of Prox-ED at d = {D}", seconds, edges, "ring(1000)", f"ring({LARGE})")


def compare(what: str, seconds: dict[str, float], edges: dict[str, int], small: str, large: str) -> None:
    print(f"\n{what}, fp64, {torch.get_num_threads()} threads")
    for name, value in seconds.items():
        print(f"  {name:32s} {edges[name]:6d} directed edges {value * 1e6:10,.0f} µs {value / edges[name] * 1e9:8,.0f} ns/edge")
    growth = (seconds[large] / edges[large]) / (seconds[small] / edges[small])
    print(f"  growth of the cost per edge, {small} to {large}: {growth:.2f}x (goal: at most 1.5) {verdict(growth <= 1.5)}")


def main() -> None:
    if sys.argv[1:] == ["race"]:
        return race()
    # First, in a process of its own: Linux counts what the parent held when it forked as the child's peak.
    subprocess.run([sys.executable, __file__, "race"], check=True)
    keep_freed_memory()
    mixing()
    steps()


if __name__ == "__main__":
    main()
