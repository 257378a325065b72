"""What a step costs with real processes, over the arithmetic and the messages it cannot do without.

Four processes, a ring, LASSO. Goal at d = 30,000, N = 200: a step of Prox-ED at most 1.25x (its bare gradient + a bare isend and
irecv of the same bytes with both neighbours), all measured in one run, in turn, each started together. At d = 300 the latency.

    python benchmarks/runtime.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from _measure import verdict

from milodo.algorithms import ProxED
from milodo.cli.process import keep_freed_memory
from milodo.network import DistributedNetwork, TreeObserver
from milodo.problems import Lasso
from milodo.runtime.group import joined

PROCESSES = 4


def bare_exchange(d: int, rank: int) -> Callable[[], None]:
    """isend and irecv with the two neighbours, from and into memory made once: what nobody can do without."""
    neighbours = [(rank - 1) % PROCESSES, (rank + 1) % PROCESSES]
    leaving = torch.randn(d, dtype=torch.float64)
    arriving = [torch.empty(d, dtype=torch.float64) for _ in neighbours]

    def exchange() -> None:
        works = [dist.irecv(buffer, other) for buffer, other in zip(arriving, neighbours, strict=True)]
        works += [dist.isend(leaving, other) for other in neighbours]
        for work in works:
            assert work is not None
            work.wait(timedelta(seconds=60))

    return exchange


@torch.no_grad()
def measure(d: int, N: int, repeats: int, rank: int) -> dict[str, float]:
    """Median seconds of this process; the tasks take turns, so that a busy moment hits all alike."""
    net = DistributedNetwork(f"ring({PROCESSES})")
    observer = TreeObserver(net.peers, PROCESSES)
    problem = Lasso(PROCESSES, d, N, 0.1).sample([0], nodes=net.nodes)
    method = ProxED(gamma=0.001)
    states = [method.init(problem.start(), problem, net)]
    x = torch.randn_like(problem.zeros())

    def step() -> None:
        states[0] = method.step(states[0], problem, net)

    exchange = bare_exchange(d, rank)

    def both() -> None:
        problem.grad(x)
        exchange()

    tasks = {"gradient": lambda: problem.grad(x), "exchange": exchange, "gradient, then exchange": both, "step": step}
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(repeats + 2):
        for name, task in tasks.items():
            observer.barrier()
            start = time.perf_counter()
            for _ in range(max(1, 3000 // d)):
                task()
            if turn >= 2:
                seconds[name].append((time.perf_counter() - start) / max(1, 3000 // d))
    return {name: statistics.median(values) for name, values in seconds.items()}


def worker() -> None:
    keep_freed_memory()
    torch.set_num_threads(1)
    with joined(120) as group:
        for d, N, repeats in ((300, 10, 60), (30_000, 200, 40)):
            mine = measure(d, N, repeats, group.rank)
            group.tell(f"measured/{d}/{group.rank}", mine)
            everybody = [group.hear(f"measured/{d}/{rank}") for rank in range(PROCESSES)]
            if group.rank == 0:
                show(d, N, {name: statistics.mean(other[name] for other in everybody) for name in mine})
        group.meet("done")


def show(d: int, N: int, seconds: dict[str, float]) -> None:
    cores = len(os.sched_getaffinity(0))
    print(f"\nLASSO({PROCESSES},{d},{N}), ring({PROCESSES}), {PROCESSES} processes on {cores} cores, fp64, one thread each")
    for name, value in seconds.items():
        print(f"  {name:24s} {value * 1e6:10,.0f} µs")
    apart, step = seconds["gradient"] + seconds["exchange"], seconds["step"]
    ratio = step / seconds["gradient, then exchange"]
    print(f"  step of Prox-ED over (gradient, then exchange): {ratio:.2f}x", end="")
    print(f" (goal: at most 1.25) {verdict(ratio <= 1.25)}" if d >= 30_000 else "")
    print(f"  over the two measured apart, which leaves out the wait for the slowest: {step / apart:.2f}x", flush=True)


def main() -> None:
    if "RANK" in os.environ:
        worker()
        return
    environment = {**os.environ, "WORLD_SIZE": str(PROCESSES), "MASTER_PORT": "29577", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, __file__], env={**environment, "RANK": str(rank)}) for rank in range(PROCESSES)
    ]
    sys.exit(max(process.wait() for process in processes))


if __name__ == "__main__":
    main()
