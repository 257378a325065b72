"""What a step costs over its bare gradient.

Goals: one Prox-ED step at most 1.3x its gradient at LASSO(10,30000,1000), and at most 200 µs over it at (10,300,10).

    python benchmarks/step.py            both shapes (the large one needs 3 GB)
    python benchmarks/step.py --small    only the small one
"""

from __future__ import annotations

import sys

import torch
from _measure import medians, verdict

from milodo.algorithms import DAPG, ODAPG, Algorithm, PGExtra, PrimalDual, ProxATC, ProxDGD, ProxED
from milodo.network import StackedNetwork
from milodo.problems import Lasso
from milodo.process import keep_freed_memory

METHODS: tuple[Algorithm, ...] = (
    ProxDGD(gamma=0.02),
    ProxATC(gamma=0.02),
    PGExtra(gamma=0.02),
    ProxED(gamma=0.02),
    DAPG(eta=0.02, alpha=0.02),
    ODAPG(eta=0.2, tau=0.02),
    PrimalDual(gamma=0.02),
)


@torch.no_grad()
def measure(d: int, N: int, repeats: int, inner: int) -> dict[str, float]:
    problem = Lasso(10, d, N, 0.1).sample([0])
    net = StackedNetwork("ring(10)")
    x = torch.randn_like(problem.zeros())
    states = {method.label: method.init(x, problem, net) for method in METHODS}
    tasks = {"gradient": lambda: problem.grad(x)}
    for method in METHODS:
        tasks[method.label] = lambda method=method: method.step(states[method.label], problem, net)
    return medians(tasks, repeats=repeats, inner=inner)


def main() -> None:
    keep_freed_memory()
    shapes = [(300, 10, 200, 20)] if "--small" in sys.argv else [(300, 10, 200, 20), (30000, 1000, 7, 1)]
    for d, N, repeats, inner in shapes:
        seconds = measure(d, N, repeats, inner)
        gradient = seconds["gradient"]
        print(f"\nLASSO(10,{d},{N}), ring(10), fp64, {torch.get_num_threads()} threads: gradient {gradient * 1e6:,.0f} µs")
        for name, value in seconds.items():
            print(f"  {name:12s} {value * 1e6:12,.0f} µs   {value / gradient:5.2f}x   {(value - gradient) * 1e6:+10,.0f} µs")
        ratio, over = seconds["Prox-ED"] / gradient, (seconds["Prox-ED"] - gradient) * 1e6
        if d == 300:
            print(f"  Prox-ED over its gradient: {over:.0f} µs (goal: at most 200) {verdict(over <= 200)}")
        else:
            print(f"  Prox-ED over its gradient: {ratio:.2f}x (goal: at most 1.3) {verdict(ratio <= 1.3)}")


if __name__ == "__main__":
    main()
