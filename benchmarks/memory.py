"""Peak memory of building and solving LASSO(10,30000,1000) (needs 3 GB), as a multiple of its data.

Goal: at most 1.2x the data. Measured in a process of its own, less what it used before there was a problem.
"""

from __future__ import annotations

import resource
import sys

import torch
from _measure import verdict

from milodo.algorithms import ProxED
from milodo.loop import Stop, solve
from milodo.network import StackedNetwork
from milodo.problems import Lasso


def peak() -> int:
    """Largest resident size so far, in bytes (Linux counts in kilobytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    solve(ProxED(gamma=0.02), Lasso(10, 30, 10, 0.1).sample([0]), StackedNetwork("ring(10)"), Stop(steps=3))  # warm up torch
    before = peak()
    problem = Lasso(10, 30000, 1000, 0.1).sample([0])
    built = peak()
    solve(ProxED(gamma=0.02), problem, StackedNetwork("ring(10)"), Stop(steps=20))
    solved = peak()
    data = problem.A.numel() * problem.A.element_size() + problem.b.numel() * problem.b.element_size()
    ratio = (solved - before) / data
    print(f"\nLASSO(10,30000,1000), fp64: data {data / 1e9:.2f} GB, {torch.get_num_threads()} threads")
    print(f"  peak while building {(built - before) / data:.3f}x the data")
    print(f"  peak after 20 steps of Prox-ED {ratio:.3f}x the data (goal: at most 1.2) {verdict(ratio <= 1.2)}")


if __name__ == "__main__":
    main()
