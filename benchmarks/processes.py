"""What real processes cost: a step over the arithmetic and messages it needs, and gossip in a torch loop against all-reduce.

    python benchmarks/processes.py step        four processes, a ring, LASSO
    MILODO_DATA=DIR python benchmarks/processes.py training [--steps 600] [--batch 32] [--out runs/gossip]
    MILODO_DATA=DIR python benchmarks/processes.py loop [--batch 32] [--out runs/gossip]

`step`: goal at d = 30,000, N = 200: a step of Prox-ED at most 1.25x (its bare gradient + a bare isend and irecv of the same
bytes with both neighbours), all measured in one run, in turn, each started together. At d = 300 the latency.

`training` and `loop`: ResNet on CIFAR-10, images dealt alike and unlike. For each split and arm: samples a second and test
accuracy after equal samples, DistributedDataParallel being the upper bound and training alone the lower. Then, arms taking
turns: the time of a step over DDP's, and bytes through the busiest link, as the kernel counts them for each connection (`ss`).
What is done is kept in --out; a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _harness import Kept, Part, run_part, verdict
from torch.nn.functional import cross_entropy

import milodo
from milodo.algorithms import ProxED
from milodo.network import DistributedNetwork, TreeObserver
from milodo.problems import Lasso, ResNetFamily
from milodo.problems.datasets import cifar10
from milodo.problems.models import ResNet
from milodo.problems.splits import split
from milodo.runtime.group import joined


def bare_exchange(d: int, rank: int) -> Callable[[], None]:
    """isend and irecv with the two neighbours, from and into memory made once: what nobody can do without."""
    neighbours = [(rank - 1) % NODES, (rank + 1) % NODES]
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
    net = DistributedNetwork(f"ring({NODES})")
    observer = TreeObserver(net.peers, NODES)
    problem = Lasso(NODES, d, N, 0.1).sample([0], nodes=net.nodes)
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


def step_of_one() -> None:
    with joined(120) as group:
        for d, N, repeats in ((300, 10, 60), (30_000, 200, 40)):
            mine = measure(d, N, repeats, group.rank)
            group.tell(f"measured/{d}/{group.rank}", mine)
            everybody = [group.hear(f"measured/{d}/{rank}") for rank in range(NODES)]
            if group.rank == 0:
                show(d, N, {name: statistics.mean(other[name] for other in everybody) for name in mine})
        group.meet("done")


def show(d: int, N: int, seconds: dict[str, float]) -> None:
    cores = len(os.sched_getaffinity(0))
    print(f"\nLASSO({NODES},{d},{N}), ring({NODES}), {NODES} processes on {cores} cores, fp64, one thread each")
    for name, value in seconds.items():
        print(f"  {name:24s} {value * 1e6:10,.0f} µs")
    apart, step = seconds["gradient"] + seconds["exchange"], seconds["step"]
    ratio = step / seconds["gradient, then exchange"]
    print(f"  step of Prox-ED over (gradient, then exchange): {ratio:.2f}x", end="")
    print(f" (goal: at most 1.25) {verdict(ratio <= 1.25)}" if d >= 30_000 else "")
    print(f"  over the two measured apart, which leaves out the wait for the slowest: {step / apart:.2f}x", flush=True)


NODES, LR, MOMENTUM = 4, 0.05, 0.9
SPLITS = ("uniform", "dirichlet(0.1)")
ARMS: dict[str, dict[str, Any] | None] = {
    "DDP (all-reduce)": None,
    "alone": {},
    "D-PSGD, ring": {"method": "d-psgd"},
    "DSGDm, ring": {"method": "dsgdm"},
    "QG-DSGDm, ring": {"method": "qg-dsgdm"},
    "QG-DSGDm, ring, 8 bits": {"method": "qg-dsgdm", "messages": "8-bit"},
    "QG-DSGDm, one-peer": {"method": "qg-dsgdm", "graph": "exponential", "schedule": "one-peer"},
    "DecentLaM, ring": {"method": "decentlam"},
    "D2, ring": {"method": "d2"},
    "Gradient-Tracking, ring": {"method": "gradient-tracking"},
}
WITHOUT, LR_WITHOUT = ("d2", "gradient-tracking"), 0.2
"""Have no momentum, and a longer step in its place. Nothing here is tuned."""
TURNS, WARM, TIMED = 5, 3, 12
"""Of the timing: how often each arm has its turn, steps before the clock runs, and steps on it."""


# What one process does


def batches(how: str, size: int, node: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Without end, from this node's own images, dealt anew in every epoch."""
    images, labels = cifar10("train")
    rows = split(how, labels, NODES, seed=0)[node]
    inputs, targets = ResNetFamily().prepared(images[rows]), torch.from_numpy(labels[rows])
    generator = torch.Generator().manual_seed(node)
    while True:
        for some in torch.randperm(len(rows), generator=generator).split(size):
            if len(some) == size:
                yield inputs[some].contiguous(memory_format=torch.channels_last), targets[some]  # a quarter less time


class Arm:
    """A loop in one of the ways; `run` makes steps, `accuracy` is of the model that all would use."""

    def __init__(self, name: str) -> None:
        self.options, self.gossip = ARMS[name], None
        torch.manual_seed(0)
        self.model = ResNet("group")
        plain = bool(self.options) and self.options["method"] in WITHOUT
        lr, momentum = (LR_WITHOUT, 0.0) if plain else (LR, MOMENTUM)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=momentum, weight_decay=1e-4)
        self.forward: torch.nn.Module = self.model

    @contextmanager
    def open(self) -> Iterator[Arm]:
        if self.options is None:
            self.forward = torch.nn.parallel.DistributedDataParallel(self.model)
            yield self
        elif not self.options:
            yield self
        else:
            with milodo.gossip(self.model, self.optimizer, timeout=600, **self.options) as self.gossip:
                yield self

    def run(self, samples: Iterator[tuple[torch.Tensor, torch.Tensor]], steps: int) -> float:
        """Seconds that this process needs, from when all are ready."""
        dist.barrier()
        start = time.perf_counter()
        for _, (inputs, targets) in zip(range(steps), samples, strict=False):
            cross_entropy(self.forward(inputs), targets).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return time.perf_counter() - start

    @torch.no_grad()
    def accuracy(self, node: int) -> float:
        """On the test images, a quarter by each process; of training alone the mean of the nodes' own models'."""
        images, labels = cifar10("test")
        rows = slice(node, None, NODES)
        inputs, targets = ResNetFamily().prepared(images[rows]), torch.tensor(labels[rows])
        if self.gossip is None:
            return self._right(inputs, targets)
        with self.gossip.average():
            return self._right(inputs, targets)

    def _right(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        parts = zip(inputs.split(250), targets.split(250), strict=True)
        right = sum(int((self.model(part).argmax(1) == of).sum()) for part, of in parts)
        counts = torch.tensor([float(right), float(len(targets))])
        dist.all_reduce(counts)
        return float(counts[0] / counts[1])


def trained(job: dict[str, Any], node: int) -> dict[str, float]:
    with Arm(job["arm"]).open() as arm:
        seconds = arm.run(batches(job["split"], job["batch"], node), job["steps"])
        found = {"samples a second": NODES * job["batch"] * job["steps"] / seconds, "accuracy": arm.accuracy(node)}
        if arm.gossip is not None:
            found["consensus error"] = arm.gossip.consensus_error()
    return found


def timed(job: dict[str, Any], node: int) -> dict[str, dict[str, Any]]:
    """Seconds of a step, and bytes that each connection of this process sent in a step, by its two ends."""
    samples, seconds, sent = batches("uniform", job["batch"], node), {name: [] for name in ARMS}, {}
    for _ in range(job["turns"]):
        for name in ARMS:
            with Arm(name).open() as arm:
                arm.run(samples, WARM)
                dist.barrier()
                before = sockets()
                seconds[name].append(arm.run(samples, TIMED) / TIMED)
                dist.barrier()
                time.sleep(0.1)  # what the kernel has still to send
                sent[name] = {ends: (count - before.get(ends, 0)) / TIMED for ends, count in sockets().items()}
    return {name: {"seconds": statistics.median(seconds[name]), "sent": sent[name]} for name in ARMS}


def sockets() -> dict[str, int]:
    """Bytes that each TCP connection of this process has sent so far, by 'here there'."""
    lines = subprocess.run(["ss", "-tinpH"], capture_output=True, text=True, check=True, encoding="utf-8").stdout
    found = {}
    for ends, pid, facts in re.findall(r"^\S+ +\d+ +\d+ +(\S+ +\S+) +users:\S*?pid=(\d+),\S*\s*\n\s+(.*)$", lines, re.M):
        if int(pid) == os.getpid():
            count = re.search(r"\bbytes_sent:(\d+)", facts)
            found[" ".join(ends.split())] = int(count[1]) if count else 0
    return found


def busiest(processes: list[dict[str, dict[str, Any]]], name: str) -> float:
    """Bytes a step that the connection between two processes carries, both ways."""
    total: dict[frozenset[str], float] = {}
    for process in processes:
        for ends, count in process[name]["sent"].items():
            pair = frozenset(ends.split())
            total[pair] = total.get(pair, 0.0) + count
    return max(total.values(), default=0.0)


# What starts them, and what they say


def together(job: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of the four processes found."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "worker", "--job", json.dumps(job), "--out", folder]
        place = {"WORLD_SIZE": str(NODES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        env = {**os.environ, **place, "OMP_NUM_THREADS": "1"}
        started = [subprocess.Popen(words, env={**env, "RANK": str(rank)}) for rank in range(NODES)]
        if any([process.wait() for process in started]):
            sys.exit(f"a process of {job['arm']} failed")
        return [json.loads((Path(folder) / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(NODES)]


def work(asked: argparse.Namespace) -> None:
    """One of the four."""
    job, node = asked.job, int(os.environ["RANK"])
    if job["arm"] == "Prox-ED":
        found = step_of_one()
    else:
        dist.init_process_group("gloo")
        found = (timed if job["arm"] == "all" else trained)(job, node)
        dist.destroy_process_group()
    (asked.out / f"{node}.json").write_text(json.dumps(found), encoding="utf-8")


def step_alone(asked: argparse.Namespace) -> None:
    together({"arm": "Prox-ED"})


def asked_for(asked: argparse.Namespace) -> tuple[dict[str, int], Kept]:
    size = {"batch": asked.batch, "steps": asked.steps, "turns": asked.turns}
    return size, Kept((asked.out or Path("runs/gossip")) / "gossip.json", size)


def training(asked: argparse.Namespace) -> None:
    size, kept = asked_for(asked)
    for how in SPLITS:
        print(f"\n{how}: {NODES} nodes, {asked.steps} steps of {asked.batch} images each")
        for name in ARMS:
            found = kept.get(f"{how}, {name}", lambda name=name, how=how: together({**size, "arm": name, "split": how})[0])
            apart = f"   consensus error {found['consensus error']:.2g}" if "consensus error" in found else ""
            speed = f"{found['samples a second']:7.0f} samples/s"
            print(f"  {name:26s} {speed}   accuracy {found['accuracy']:.3f}{apart}", flush=True)


def loop(asked: argparse.Namespace) -> None:
    size, kept = asked_for(asked)
    everybody = kept.get("steps", lambda: together({**size, "arm": "all"}))
    first = statistics.median(process["DDP (all-reduce)"]["seconds"] for process in everybody)
    print("\na step, arms taking turns; its time over DDP's, and bytes a step through the busiest connection, both ways")
    for name in ARMS:
        seconds = statistics.median(process[name]["seconds"] for process in everybody)
        carried = f"{busiest(everybody, name):12,.0f} bytes"
        print(f"  {name:26s} {1e3 * seconds:7.1f} ms   {seconds / first:5.2f}x DDP   {carried}", flush=True)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)


PARTS: dict[str, Part] = {"step": step_alone, "training": training, "loop": loop, "worker": work}

if __name__ == "__main__":
    run_part(__doc__, PARTS, options)
