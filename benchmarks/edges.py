"""What mixing costs per edge, from ring(10) to ring(1000) and on graphs with uneven degrees.

Goal: the cost per edge does not grow by more than 1.5x from ring(10) to ring(1000). Small graphs pay the fixed cost of
launching an operation, so it falls first; a padded table or a dense W would make it rise with n.
"""

from __future__ import annotations

import torch
from _measure import medians, verdict

from milodo.cli.process import keep_freed_memory
from milodo.network import StackedNetwork

GRAPHS = ("ring(10)", "ring(30)", "ring(100)", "ring(300)", "ring(1000)", "star(1000)", "erdos_renyi(1000,0.01,seed=1)")


@torch.no_grad()
def main() -> None:
    keep_freed_memory()
    for d in (300, 3000):
        tasks, edges = {}, {}
        for name in GRAPHS:
            net = StackedNetwork(name)
            x = torch.randn(net.n, d, dtype=torch.float64)
            edges[name] = len(net.arcs)
            tasks[name] = lambda net=net, x=x: net.mix(x)
        seconds = medians(tasks, repeats=60, inner=3)
        print(f"\nmix(x) at d = {d}, fp64, {torch.get_num_threads()} threads")
        for name, value in seconds.items():
            print(
                f"  {name:32s} {edges[name]:6d} directed edges {value * 1e6:10,.0f} µs {value / edges[name] * 1e9:8,.0f} ns/edge"
            )
        growth = (seconds["ring(1000)"] / edges["ring(1000)"]) / (seconds["ring(10)"] / edges["ring(10)"])
        print(
            f"  growth of the cost per edge, ring(10) to ring(1000): {growth:.2f}x (goal: at most 1.5) {verdict(growth <= 1.5)}"
        )


if __name__ == "__main__":
    main()
