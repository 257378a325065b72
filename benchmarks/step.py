"""What a step costs over its bare gradient, what a step of auto's methods and a learned one cost over Prox-ED's, and why.

Goals: one Prox-ED step at most 1.3x its gradient at LASSO(10,30000,1000), and at most 200 µs over it at (10,300,10); one step of
MiLoDo at most 1.1x Prox-ED's at the large shape and 2x at the small, as shipped: its networks run in each `every`-th iteration;
one step of Tree-APG in 4 bits and of Accelerated-ED in five levels, both coded, at most 1.1x Prox-ED's there.

    python benchmarks/step.py            both shapes (the large one needs 3 GB)
    python benchmarks/step.py --small    only the small one
    python benchmarks/step.py --auto     only auto's methods
"""

from __future__ import annotations

import sys

import torch
from _measure import medians, verdict

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
    Remembering,
    TreeAPG,
)  # fmt: skip
from milodo.algorithms.rule import WARM_UP
from milodo.cli.process import keep_freed_memory
from milodo.learned import MiLoDo
from milodo.learned.checkpoint import load_optimizer
from milodo.learned.momentum import COLUMNS
from milodo.network import Bits, Coded, Levels, StackedNetwork
from milodo.problems import Lasso

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
    Remembering(TreeAPG(), Coded(Bits(4))),
    Remembering(AcceleratedED(gamma=0.02, K=1), Coded(Levels(5))),
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
    every = optimizer.every
    for _ in range(WARM_UP):  # neighbours agree upon weights on edges
        state = optimizer.step(state, problem, net)
    running = state._replace(memory=state.memory._replace(k=WARM_UP * every))
    keeping = state._replace(memory=state.memory._replace(k=WARM_UP * every + 1))
    bank, v, hidden = optimizer.phi_m, torch.randn(1, 10, COLUMNS, d), state.memory.hidden
    weights, seen = torch.randn(10, 80, COLUMNS + 21), torch.randn(1, 10, COLUMNS + 21, d)
    gates = weights @ seen
    seconds = medians(
        {
            "gradient": lambda: problem.grad(x),
            "Prox-ED": lambda: prox_ed.step(before, problem, net),
            "running": lambda: optimizer.step(running, problem, net),
            "keeping": lambda: optimizer.step(keeping, problem, net),
            "phi_M": lambda: bank(v, hidden.h_m, hidden.c_m),
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


def main() -> None:
    keep_freed_memory()
    shapes = [(300, 10, 200, 20)] if "--small" in sys.argv else [(300, 10, 200, 20), (30000, 1000, 7, 1)]
    for shape in shapes:
        chosen(*shape)
    if "--auto" in sys.argv:
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


if __name__ == "__main__":
    main()
