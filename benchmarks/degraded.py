"""What links that fail and short messages cost: accuracy, iterations, bytes. Simulated; the real runtime is the same to rounding.

python benchmarks/degraded.py        two minutes; LASSO(10,30,50,0.1) on a ring of ten nodes, 32 unseen instances, fp64
"""

from __future__ import annotations

import torch
from _learned import disturbed

from milodo.algorithms import Algorithm, ProxED
from milodo.cli.process import keep_freed_memory
from milodo.learned import MiLoDo
from milodo.loop import iterate
from milodo.metrics import consensus_error, mean_point
from milodo.network import StackedNetwork, StackedObserver, degraded
from milodo.problems import Lasso, instance_seeds, optimum

GRAPH, GAMMA, ITERATIONS, TARGET = "ring(10)", 0.15, 4000, 1e-10
KINDS = (
    ("perfect", {}),
    ("down 30 %", {"outage": 0.3}),
    ("down 60 %", {"outage": 0.6}),
    ("float32", {"messages": "float32"}),
    ("float16", {"messages": "float16"}),
    ("bfloat16", {"messages": "bfloat16"}),
    ("top-50%", {"messages": "top-50%"}),
    ("top-10%", {"messages": "top-10%"}),
)


def milodo_rule() -> MiLoDo:
    """MiLoDo's rule with networks that do look at their inputs."""
    torch.manual_seed(0)
    return disturbed(MiLoDo(GRAPH, every=10), StackedNetwork(GRAPH), GAMMA)


@torch.no_grad()
def measure(method: Algorithm, options: dict) -> str:
    problem, observer = Lasso(10, 30, 50, 0.1).sample(instance_seeds("test", 32)), StackedObserver()
    best, net = optimum(problem), degraded(StackedNetwork(GRAPH), **options)
    reached, gap, spread = torch.full((32,), torch.inf), torch.empty(0), torch.empty(0)
    for k, state in enumerate(iterate(method, problem, net)):
        if k % 20 == 0:
            gap = (problem.objective(mean_point(state.x, observer), observer) - best.value).abs()
            spread = consensus_error(state.x, observer)
            reached = torch.where((gap < TARGET) & reached.isinf(), float(k), reached)
        if k == ITERATIONS:
            break
    needed = "never" if float(reached.median()) == float("inf") else f"{float(reached.median()):.0f}"
    sent = net.traffic.bytes / net.traffic.rounds / len(net.arcs)
    return (
        f"gap {float(gap.median()):8.1e} (largest {float(gap.max()):8.1e})   consensus error {float(spread.median()):8.1e}   "
        f"iterations to {TARGET:g}: {needed:>6s}   bytes a round and edge {sent:4.0f}"
    )


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    for method in (ProxED(gamma=GAMMA), milodo_rule()):
        print(f"\n{method.label}, after {ITERATIONS} iterations: medians of 32 instances")
        for name, options in KINDS:
            print(f"  {name:10s} {measure(method, options)}", flush=True)


if __name__ == "__main__":
    main()
