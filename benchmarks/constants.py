"""What MiLoDo's rules can do with constant weights p_i = γ, p_ij,1 = c_s w/(2γ), p_ij,2 = c_u w/2.

(0.03, 1, 1) is Exact Diffusion's choice at the paper's step size. Iterations until the mean gap of 4 tuning instances of
LASSO(10,300,10,0.1) on a ring falls below 1e-1 and 1e-2, for a whole grid at once: where a learned optimizer can go, and how wide
its bounds must be. Two minutes.
"""

from __future__ import annotations

import itertools

import torch

from milodo.cli.process import keep_freed_memory
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import Lasso, instance_seeds, optimum

GRID = [(0.03, 1.0, 1.0), *itertools.product((0.048, 0.07, 0.085, 0.1, 0.12, 0.14), (0.1, 0.3, 1.0), (1.0, 1.5, 2.0))]
TARGETS, ITERATIONS, EVERY = (1e-1, 1e-2), 5000, 20


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    net, observer = StackedNetwork("ring(10)", "third"), StackedObserver()
    problem = Lasso(10, 300, 10, 0.1).sample(instance_seeds("tuning", 4))
    best = optimum(problem).value
    gamma, c_s, c_u = (torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1, 1) for values in zip(*GRID, strict=True))
    x = problem.start().expand(len(GRID), *problem.start().shape)
    y = torch.zeros_like(x)
    reached = torch.full((len(TARGETS), len(GRID)), torch.inf)
    gap = torch.empty(0)
    for k in range(1, ITERATIONS + 1):
        z = problem.prox(x - gamma * (problem.grad(x) + y), gamma)  # (LEPDO-1)
        lap = net.lap(z)
        y, x = y + c_s / (2 * gamma) * lap, z - c_u / 2 * lap  # (LEPDO-2), (LEPDO-3)
        if k % EVERY == 0:
            gap = (problem.objective(x.mean(-2), observer) - best).mean(-1)
            for row, target in zip(reached, TARGETS, strict=True):
                row.masked_fill_((gap < target) & row.isinf(), k)
    print("   gamma    c_s    c_u   iterations to 1e-1     to 1e-2")
    for i in sorted(range(len(GRID)), key=lambda i: (float(reached[1, i]), float(reached[0, i]))):
        if torch.isfinite(reached[0, i]) and (torch.isfinite(gap[i]) or i == 0):
            print("  {:6g} {:6g} {:6g}   {:18.0f}  {:10.0f}".format(*GRID[i], *reached[:, i].tolist()))
    print(f"  {sum(not bool(torch.isfinite(g)) or float(g) > 1e3 for g in gap)} of {len(GRID)} choices diverged")


if __name__ == "__main__":
    main()
