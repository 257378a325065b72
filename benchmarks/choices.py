"""Choices the code makes for speed, each measured against what it replaced, in one run on one thread.

python benchmarks/choices.py
"""

from __future__ import annotations

import torch
from _measure import medians

from milodo.algorithms import DAPG, ProxED
from milodo.cli.process import keep_freed_memory
from milodo.network import StackedNetwork
from milodo.problems import Lasso


def say(what: str, seconds: dict[str, float]) -> None:
    (slow, before), (fast, after) = seconds.items()
    print(f"{what}\n  {slow} {before * 1e6:,.0f} µs, {fast} {after * 1e6:,.0f} µs: {before / after:.1f}x")


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    main()
