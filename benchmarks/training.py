"""What training costs, and gradients of networks: against what a competent person writes, and in memory.

    python benchmarks/training.py iteration    one training iteration (two minutes on a quiet machine, and 7 GB)
    MILODO_FUSED=0 python benchmarks/training.py iteration     our networks in operations of torch
    python benchmarks/training.py gradient     the gradients of all nodes against one ordinary forward and backward pass
    python benchmarks/training.py step         a step of Prox-ED and of MiLoDo on networks (learned ones in each tenth iteration)
    python benchmarks/training.py memory       the peak of training MiLoDo over segments of 20 iterations (needs 12 GB)

`iteration`: K_T = 20 unrolled steps, their gradient, one Adam step. The rival loops over nodes, each with three nn.LSTM
modules, and batches instances and coordinates into every call. Both compute the same loss from the same weights, which is
checked. Goal: at least 4x faster at equal numbers of threads, 1 and 2, all interleaved; seconds of the processor for 1, by the
clock for 2. Batch 32, n = 10, d = 300, fp32; peak memory of each in a process of its own. Besides, the floor: the sigmoids of
an iteration and its matrix products, by torch and on operands that stay in the cache, the products in their own shapes or, at
best, as fast as those of large matrices. On a busy machine set OMP_WAIT_POLICY=PASSIVE: torch's threads otherwise wait for each
other in loops that take the cores.

The others: the gradients of ten MLPs take at most 2x, those of five ResNets at most 1.1x the time of one model on the same
samples; training stays within 12 GiB. Images are random, of the real sizes; mlp or resnet behind it restrict it. One thread; a
step is measured in seconds of the processor, which others on the machine do not lengthen.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np
import torch
from _harness import Part, disturbed, medians, peak_memory, run_part, verdict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from milodo.algorithms import Algorithm, ProxED
from milodo.config import load_experiment
from milodo.learned import MiLoDo, fused
from milodo.learned.milodo import special_initialisation
from milodo.learned.per_node import PerNodeLSTM
from milodo.loop import iterate
from milodo.metrics import mean_point
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import FAMILIES, L1, Lasso, Neural
from milodo.problems.linear import LinearModel
from milodo.training import Trainer
from milodo.training.loss import MetaLoss

INSTANCES, NODES, D, N, K_T, LAM = 32, 10, 300, 10, 20, 0.1
OBSERVER = StackedObserver()


class PlainNetwork(nn.Module):
    """One node's LSTM and two layers as torch ships them; instances and coordinates are its batch."""

    def __init__(self, network: PerNodeLSTM, node: int) -> None:
        super().__init__()
        inputs, hidden, outputs = network.w_x.shape[-1], network.hidden, network.w_2.shape[-2]
        self.lstm, self.first, self.second = nn.LSTM(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)
        with torch.no_grad():
            for ours, plain in (
                (network.w_x, self.lstm.weight_ih_l0),
                (network.w_h, self.lstm.weight_hh_l0),
                (network.b_x, self.lstm.bias_ih_l0),
                (network.b_h, self.lstm.bias_hh_l0),
                (network.w_1, self.first.weight),
                (network.b_1, self.first.bias),
                (network.w_2, self.second.weight),
                (network.b_2, self.second.bias),
            ):
                torch.as_tensor(plain).copy_(ours[node])

    def forward(self, v: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, state = self.lstm(v.reshape(1, INSTANCES * D, -1), state)  # [1, batch · d, hidden]
        return self.second(self.first(out).relu()).reshape(INSTANCES, D, -1), state


class Rival:
    """What a competent person writes: a loop over nodes, all instances and coordinates in the batch of each nn.LSTM call."""

    def __init__(self, optimizer: MiLoDo, problem: LinearModel, net: StackedNetwork) -> None:
        self.optimizer, self.problem = optimizer, problem
        self.networks = [
            [PlainNetwork(network, i) for i in range(NODES)] for network in (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u)
        ]
        self.around = [net.topology.neighbours(i) for i in range(NODES)]
        self.reg = L1(LAM)
        start = optimizer.init(problem.start(), problem, net).memory
        self.hidden = [  # [1, batch · d, hidden] for each network and node
            [tuple(part[:, i].mT.reshape(1, INSTANCES * D, -1) for part in pair) for i in range(NODES)]
            for pair in ((start.h_m, start.c_m), (start.h_s, start.c_s), (start.h_u, start.c_u))
        ]
        self.adam = torch.optim.Adam([p for row in self.networks for network in row for p in network.parameters()], lr=1e-4)

    def iteration(self, problem: LinearModel) -> float:
        self.adam.zero_grad()
        total = self.loss(problem.A, problem.b)
        total.backward()
        self.adam.step()
        return float(total.detach())

    def loss(self, A: Tensor, b: Tensor) -> Tensor:
        act = self.optimizer.settings().activations
        x, y = [torch.zeros(INSTANCES, D) for _ in range(NODES)], [torch.zeros(INSTANCES, D) for _ in range(NODES)]
        memory = [list(row) for row in self.hidden]
        total = torch.zeros(())
        for _ in range(K_T):
            z = []
            for i in range(NODES):
                g = gradient_of(A[:, i], b[:, i], x[i])
                o, memory[0][i] = self.networks[0][i](torch.stack((g, y[i]), dim=-1), memory[0][i])
                p = act.m(o.squeeze(-1))
                z.append(self.reg.prox(x[i] - p * (g + y[i]), p))
            p1, p2 = {}, {}
            for i in range(NODES):
                dz = torch.stack([z[i] - z[j] for j in self.around[i]], dim=-1)
                o_s, memory[1][i] = self.networks[1][i](dz, memory[1][i])
                o_u, memory[2][i] = self.networks[2][i](dz, memory[2][i])
                for slot, j in enumerate(self.around[i]):
                    p1[i, j], p2[i, j] = act.s(o_s[..., slot]), act.u(o_u[..., slot])
            for i in range(NODES):
                y[i] = y[i] + sum((p1[i, j] + p1[j, i]) / 2 * (z[i] - z[j]) for j in self.around[i])
                x[i] = z[i] - sum(p2[i, j] * (z[i] - z[j]) for j in self.around[i])
            x_mean = torch.stack(x).mean(0)  # [batch, d]
            value = sum(residual(A[:, i], b[:, i], x_mean).square().sum(-1) / (2 * N) for i in range(NODES)) / NODES
            total = total + (value + self.reg.value(x_mean)).mean() / K_T
        return total


def residual(A: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return (A @ x.unsqueeze(-1)).squeeze(-1) - b


def gradient_of(A: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return (residual(A, b, x).unsqueeze(-2) @ A).squeeze(-2) / N


class Ours:
    def __init__(self, optimizer: MiLoDo, net: StackedNetwork) -> None:
        self.optimizer, self.net, self.loss = optimizer, net, MetaLoss("objective")
        self.adam = torch.optim.Adam(optimizer.parameters(), lr=1e-4)

    def iteration(self, problem: LinearModel) -> float:
        self.adam.zero_grad()
        total = torch.zeros(())
        for _, state in zip(range(K_T), itertools.islice(iterate(self.optimizer, problem, self.net), 1, None), strict=False):
            total = total + self.loss(state.x, problem, None, OBSERVER) / K_T
        total.backward()
        self.adam.step()
        return float(total.detach())


class Floor:
    """The matrix products of an iteration, forwards once and backwards twice, and its sigmoids, and nothing else."""

    def __init__(self, optimizer: MiLoDo) -> None:
        self.products, self.sigmoids, self.square = [], [], torch.randn(1024, 1024)
        for network in (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u):
            inputs, hidden, outputs = network.w_x.shape[-1], network.hidden, network.w_2.shape[-2]
            for rows, inner in ((4 * hidden, inputs + hidden + 1), (hidden, hidden + 1), (outputs, hidden + 1)):
                w, x, y = torch.randn(NODES, rows, inner), torch.randn(NODES, inner, D), torch.randn(NODES, rows, D)
                self.products += [(w, x, y.clone()), (w.mT, y, x.clone()), (y, x.mT, w.clone())]
            self.sigmoids.append(torch.randn(NODES, 5 * hidden, D))

    def small_products(self) -> None:
        """In their own shapes, a node at a time, on operands that stay in the cache."""
        for _ in range(INSTANCES * K_T):
            for left, right, out in self.products:
                torch.bmm(left, right, out=out)

    def large_products(self) -> None:
        """As many operations at the speed of products of large matrices."""
        operations = INSTANCES * K_T * sum(left.shape.numel() * right.shape[-1] for left, right, _ in self.products)
        for _ in range(round(operations / len(self.square) ** 3)):
            torch.mm(self.square, self.square)

    def all_sigmoids(self) -> None:
        for _ in range(INSTANCES * K_T):
            for gates in self.sigmoids:
                torch.sigmoid(gates, out=gates)


def setting() -> tuple[MiLoDo, LinearModel, StackedNetwork]:
    torch.manual_seed(0)
    net = StackedNetwork("ring(10)", dtype=torch.float32)
    optimizer = disturbed(MiLoDo("ring(10)"), net, 0.03)
    problem = Lasso(NODES, D, N, LAM).sample(range(INSTANCES), dtype=torch.float32)
    assert float(mean_point(problem.start(), OBSERVER).abs().max()) == 0
    return optimizer, problem, net


def alone(*words: str) -> str:
    """What a process of its own prints."""
    return subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True).stdout


def print_peak(asked: argparse.Namespace) -> None:
    """MiB that one training iteration adds to the peak of this process."""
    optimizer, problem, net = setting()
    task = Rival(optimizer, problem, net) if asked.names == ["rival"] else Ours(optimizer, net)
    before = peak_memory()
    task.iteration(problem)
    print((peak_memory() - before) / 2**20)


def in_turn(tasks: Mapping[str, Callable[[], object]], rounds: int) -> dict[tuple[str, int], tuple[float, float]]:
    """Median seconds by the clock and of the processor, of each task at 1 and at 2 threads; all of them take turns."""
    seen = defaultdict(list)
    for _ in range(rounds):
        for threads, (name, task) in itertools.product((1, 2), tasks.items()):
            torch.set_num_threads(threads)
            start, work = time.perf_counter(), time.process_time()
            task()
            seen[name, threads].append((time.perf_counter() - start, time.process_time() - work))
    return {key: (median(a for a, _ in pairs), median(b for _, b in pairs)) for key, pairs in seen.items()}


def iteration(asked: argparse.Namespace) -> None:
    ours_alone, rival_alone = (float(alone("peak", which)) for which in ("ours", "rival"))
    print(f"\nOne training iteration, batch {INSTANCES}, n = {NODES}, d = {D}, K_T = {K_T}, fp32")
    print(f"  our networks are computed: {fused.provenance()['networks']}")
    print(f"  peak memory it adds: ours {ours_alone:,.0f} MiB, rival {rival_alone:,.0f} MiB")
    optimizer, problem, net = setting()
    rival, ours, floor = Rival(optimizer, problem, net), Ours(optimizer, net), Floor(optimizer)
    theirs = rival.iteration(problem)
    difference = abs(theirs - ours.iteration(problem)) / abs(theirs)
    print(f"  the two losses differ by {difference:.1e}, relatively {verdict(difference < 1e-5)}")
    tasks = {
        "rival": lambda: rival.iteration(problem),
        "ours": lambda: ours.iteration(problem),
        "its products": floor.small_products,
        "at best": floor.large_products,
        "its sigmoids": floor.all_sigmoids,
    }
    seconds = in_turn(tasks, rounds=2)
    for threads in (1, 2):
        for name in tasks:
            wall, work = seconds[name, threads]
            print(f"  {threads} thread{'s' * (threads > 1):1s}  {name:14s} {wall:7.2f} s   ({work:.2f} s of the processor)")
        # With one thread, the processor's own seconds: other programs on a busy machine do not lengthen them much.
        which = 1 if threads == 1 else 0
        own = seconds["ours", threads][which]
        ratio = seconds["rival", threads][which] / own
        print(f"  {ratio:.1f}x faster than the rival with {threads} (goal: at least 4) {verdict(ratio >= 4)}")
        for name in ("its products", "at best"):
            least = seconds[name, threads][which] + seconds["its sigmoids", threads][which]
            print(f"     {own / least:.2f}x its sigmoids and products{', at best' * (name == 'at best')}")


GOALS = {"mlp": 2.0, "resnet": 1.1}
LARGEST = 12 << 30
BATCH = 100
SIZES = {"mlp": (60_000, 28, 28), "resnet": (30_000, 3, 32, 32)}
EXPERIMENTS = {"mlp": "milodo-mlp-ring10", "resnet": "milodo-resnet-ring5"}


def images(kind: str) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
    """In place of a data set's loader: noise, of its size."""
    rng = np.random.default_rng(0)
    both = rng.integers(0, 256, SIZES[kind], dtype=np.uint8), rng.integers(0, 10, SIZES[kind][0])
    return lambda part: both


def problem_of(kind: str) -> Neural:
    family = FAMILIES[kind](N=500)
    with patch.object(type(family), "images", lambda self, part: images(kind)(part)):
        return family.sample([0])


def gradient(asked: argparse.Namespace) -> None:
    for kind in asked.names or GOALS:
        gradient_over_ordinary(kind)


def gradient_over_ordinary(kind: str) -> None:
    nodes = problem_of(kind)
    step, x = nodes.at_step(0), nodes.start()
    module = FAMILIES[kind]().module()
    inputs, targets = (
        part.flatten(0, 1) for part in (nodes.inputs[torch.stack(step.rows)], nodes.targets[torch.stack(step.rows)])
    )

    def ordinary() -> None:
        module.zero_grad()
        cross_entropy(module(inputs), targets).backward()

    with torch.no_grad():
        step.grad(x)  # gathers the minibatch
    took = medians({"ordinary": torch.enable_grad()(ordinary), "ours": lambda: step.grad(x)}, repeats=60 if kind == "mlp" else 9)
    ratio = took["ours"] / took["ordinary"]
    said = f"{1e3 * took['ours']:.2f} ms, one model on all of them {1e3 * took['ordinary']:.2f} ms: {ratio:.2f}x"
    goal = f"(goal: at most {GOALS[kind]}) {verdict(ratio <= GOALS[kind])}"
    print(f"{kind}: {nodes.n} nodes x {BATCH} samples: {said} {goal}")


def step(asked: argparse.Namespace) -> None:
    for kind in asked.names or GOALS:
        step_over_prox_ed(kind)


def step_over_prox_ed(kind: str) -> None:
    nodes = problem_of(kind)
    net = StackedNetwork(f"ring({nodes.n})", "third", dtype=torch.float32)
    learned = special_initialisation(MiLoDo(net.topology, every=10), net, 0.05)
    methods: dict[str, Algorithm] = {"prox-ed": ProxED(gamma=0.05), "milodo": learned.requires_grad_(False)}
    states = {name: iterate(method, nodes, net) for name, method in methods.items()}
    for each in states.values():
        for _ in range(30 if kind == "mlp" else 21):  # past the iterations in which the networks always run
            next(each)
    tasks = {name: lambda each=each: next(each) for name, each in states.items()}
    with torch.no_grad():
        took = medians(tasks, repeats=5 if kind == "mlp" else 1, inner=10, clock=time.process_time)
    said = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in took.items())
    print(f"{kind}: a step takes {said}: {took['milodo'] / took['prox-ed']:.2f}x")


def memory(asked: argparse.Namespace) -> None:
    """One segment of training, in a process of its own."""
    for kind in asked.names or GOALS:
        peak = float(alone("segment", kind).split()[-1])
        said = f"{kind}: training with K_T = 20 needs {peak / 2**30:.2f} GiB"
        print(f"{said} (goal: at most {LARGEST >> 30}) {verdict(peak <= LARGEST)}")


def segment(asked: argparse.Namespace) -> None:
    (kind,) = asked.names
    table = load_experiment(EXPERIMENTS[kind])
    assert table.training is not None
    stage = table.training.stages[0].model_copy(update={"K": 20, "K_T": 20, "epochs": 1})
    short = {"instances": stage.batch, "validation_instances": 1, "validation_iterations": 20, "stages": [stage]}
    training = table.training.model_copy(update=short)
    with tempfile.TemporaryDirectory() as folder, patch.object(FAMILIES[kind], "images", lambda self, part: images(kind)(part)):
        Trainer(table.model_copy(update={"training": training}), Path(folder) / "run").run()
    print(peak_memory())


PARTS: dict[str, Part] = {
    "iteration": iteration, "gradient": gradient, "step": step, "memory": memory, "peak": print_peak, "segment": segment,
}  # fmt: skip

if __name__ == "__main__":
    run_part(__doc__, PARTS)
