"""What a graph that changes with the iteration costs: iterations and bytes of Accelerated-ED to a gap, nothing tuned. Simulated.

python benchmarks/schedules.py [INSTANCES]      four minutes with 8; LASSO(16,300,10,0.1) on graphs of sixteen nodes, fp64
"""

from __future__ import annotations

import sys

import torch

from milodo.algorithms import AcceleratedED, Algorithm, ProxED, Remembering, accelerated_ed
from milodo.cli.process import keep_freed_memory
from milodo.loop import iterate
from milodo.metrics import mean_point
from milodo.network import Bits, Network, StackedNetwork, StackedObserver, degraded
from milodo.problems import Lasso, Problem, Reference, instance_seeds, optimum

N, GAP, LIMIT, EVERY = 16, 1e-3, 2000, 10
WHOLE, HALF = "Accelerated-ED, whole averages", accelerated_ed.CHANGING
"""As on a fixed graph, where v is all of z - A z: what most changing ones do not forgive."""
CASES = (
    ("ring(16)", None),
    ("ring(16)", "alternating(2)"),
    ("ring(16)", "matchings"),
    ("exponential(16)", None),
    ("exponential(16)", "one-peer"),
    ("exponential(16)", "matchings"),
    ("complete(16)", None),
    ("complete(16)", "matchings"),
    ("complete(16)", ["ring(16)", "star(16)", "tree(16)"]),
)


def methods(problem: Problem, net: Network) -> dict[str, Algorithm]:
    L = problem.lipschitz()
    own = AcceleratedED.safe(float(L.max()), net, float(L.mean(-1).max()))
    return {
        f"{own.label}, K = {own.K}": own,
        f"{own.label}, K = {own.K}, 6 bits": Remembering(own, Bits(6)),
        WHOLE: own,
        "Prox-ED, 1/L": ProxED(gamma=1 / float(L.max())),
    }


@torch.no_grad()
def measured(method: Algorithm, problem: Problem, net: Network, best: Reference) -> tuple[str, str]:
    """Median iterations to the gap, and bytes of all nodes until then, of the largest number of instances that arrive."""
    observer, instances = StackedObserver(), problem.batch[0]
    reached, sent = torch.full((instances,), torch.inf), torch.zeros(instances, dtype=torch.float64)
    before = net.traffic.bytes
    for k, state in enumerate(iterate(method, problem, net)):
        if k % EVERY == 0:
            gap = problem.objective(mean_point(state.x, observer), observer) - best.value
            if not bool(gap.isfinite().all()) or float(gap.max()) > 1e6:
                return "diverged", ""
            new = (gap < GAP) & reached.isinf()
            reached[new], sent[new] = float(k), float(net.traffic.bytes - before)
        if k == LIMIT or bool(reached.isfinite().all()):
            break
    median = reached.median()
    return (f"> {LIMIT}", "") if median.isinf() else (f"{int(median)}", f"{float(sent[reached <= median].max()) / 1e6:.1f} MB")


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    instances = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    problem = Lasso(N, 300, 10, 0.1).sample(instance_seeds("test", instances))
    best = optimum(problem)
    print(f"iterations to {GAP:g}, and bytes that all nodes send until then; medians of {instances} instances")
    for graph, said in CASES:
        net = degraded(StackedNetwork(graph), schedule=said)
        for name, method in methods(problem, net).items():
            if name == WHOLE and said is None:
                continue
            accelerated_ed.CHANGING = 1.0 if name == WHOLE else HALF
            steps, sent = measured(method, problem, net, best)
            print(f"{graph:16s} {net.schedule or 'fixed'!s:34s} {name:34s} {steps:>9s} {sent:>9s}", flush=True)


if __name__ == "__main__":
    main()
