"""One training iteration (K_T = 20 unrolled steps, their gradient, one Adam step) against a plain implementation.

Goal: at least 5x faster than loops over instances and over nodes, each node with three nn.LSTM modules. Both compute the same
loss from the same weights, which is checked. Batch 32, n = 10, d = 300, fp32; peak memory of each in a process of its own.

    python benchmarks/training.py              (the plain one takes half a minute an iteration, and 10 GB)
    python benchmarks/training.py --compile    also with torch.compile on the networks
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
from copy import deepcopy

import torch
from _learned import disturbed
from _measure import medians, verdict
from torch import Tensor, nn

from milodo.cli.process import keep_freed_memory
from milodo.learned import Bank, MiLoDo
from milodo.loop import iterate
from milodo.metrics import mean_point
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import L1, Lasso
from milodo.problems.linear import LinearModel
from milodo.training.loss import MetaLoss

BATCH, NODES, D, N, K_T, LAM = 32, 10, 300, 10, 20, 0.1
OBSERVER = StackedObserver()


class PlainNetwork(nn.Module):
    """One node's LSTM and two layers as torch ships them; coordinates are its batch."""

    def __init__(self, bank: Bank, node: int) -> None:
        super().__init__()
        inputs, hidden, outputs = bank.w_x.shape[-1], bank.hidden, bank.w_2.shape[-2]
        self.lstm, self.first, self.second = nn.LSTM(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)
        with torch.no_grad():
            for ours, plain in (
                (bank.w_x, self.lstm.weight_ih_l0),
                (bank.w_h, self.lstm.weight_hh_l0),
                (bank.b_x, self.lstm.bias_ih_l0),
                (bank.b_h, self.lstm.bias_hh_l0),
                (bank.w_1, self.first.weight),
                (bank.b_1, self.first.bias),
                (bank.w_2, self.second.weight),
                (bank.b_2, self.second.bias),
            ):
                torch.as_tensor(plain).copy_(ours[node])

    def forward(self, v: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, state = self.lstm(v.unsqueeze(0), state)  # [1, d, hidden]
        return self.second(self.first(out.squeeze(0)).relu()), state


class Plain:
    """The rules of MiLoDo on a ring, written straight down: for every instance, for every node."""

    def __init__(self, optimizer: MiLoDo, problem: LinearModel, net: StackedNetwork) -> None:
        self.optimizer, self.problem = optimizer, problem
        self.networks = [
            [PlainNetwork(bank, i) for i in range(NODES)] for bank in (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u)
        ]
        self.around = [net.topology.neighbours(i) for i in range(NODES)]
        self.reg = L1(LAM)
        start = optimizer.init(problem.start(), problem, net).memory
        self.hidden = [(start.h_m, start.c_m), (start.h_s, start.c_s), (start.h_u, start.c_u)]
        self.adam = torch.optim.Adam([p for row in self.networks for network in row for p in network.parameters()], lr=1e-4)

    def iteration(self, problem: LinearModel) -> float:
        self.adam.zero_grad()
        total = torch.zeros(())
        for b in range(BATCH):
            total = total + self.instance(problem.A[b], problem.b[b], b) / BATCH
        total.backward()
        self.adam.step()
        return float(total.detach())

    def instance(self, A: Tensor, b: Tensor, number: int) -> Tensor:
        act = self.optimizer.activations
        x, y = [torch.zeros(D) for _ in range(NODES)], [torch.zeros(D) for _ in range(NODES)]
        memory = [
            [(h[number, i].mT.unsqueeze(0).contiguous(), c[number, i].mT.unsqueeze(0).contiguous()) for i in range(NODES)]
            for h, c in self.hidden
        ]
        loss = torch.zeros(())
        for _ in range(K_T):
            z = []
            for i in range(NODES):
                g = A[i].mT @ (A[i] @ x[i] - b[i]) / N
                o, memory[0][i] = self.networks[0][i](torch.stack((g, y[i]), dim=-1), memory[0][i])
                p = act.m(o.squeeze(-1))
                z.append(self.reg.prox(x[i] - p * (g + y[i]), p))
            p1, p2 = {}, {}
            for i in range(NODES):
                dz = torch.stack([z[i] - z[j] for j in self.around[i]], dim=-1)
                o_s, memory[1][i] = self.networks[1][i](dz, memory[1][i])
                o_u, memory[2][i] = self.networks[2][i](dz, memory[2][i])
                for slot, j in enumerate(self.around[i]):
                    p1[i, j], p2[i, j] = act.s(o_s[:, slot]), act.u(o_u[:, slot])
            for i in range(NODES):
                y[i] = y[i] + sum((p1[i, j] + p1[j, i]) / 2 * (z[i] - z[j]) for j in self.around[i])
                x[i] = z[i] - sum(p2[i, j] * (z[i] - z[j]) for j in self.around[i])
            x_mean = torch.stack(x).mean(0)
            value = sum((A[i] @ x_mean - b[i]).square().sum() / (2 * N) for i in range(NODES)) / NODES
            loss = loss + (value + self.reg.value(x_mean)) / K_T
        return loss


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


def setting() -> tuple[MiLoDo, LinearModel, StackedNetwork]:
    torch.manual_seed(0)
    net = StackedNetwork("ring(10)", dtype=torch.float32)
    optimizer = disturbed(MiLoDo("ring(10)"), net, 0.03)
    problem = Lasso(NODES, D, N, LAM).sample(range(BATCH), dtype=torch.float32)
    assert float(mean_point(problem.start(), OBSERVER).abs().max()) == 0
    return optimizer, problem, net


def peak_of(which: str) -> float:
    """MiB that one training iteration adds to the peak of a process of its own."""
    return float(subprocess.run([sys.executable, __file__, "--peak", which], capture_output=True, text=True, check=True).stdout)


def print_peak(which: str) -> None:
    optimizer, problem, net = setting()
    task = Ours(optimizer, net) if which == "ours" else Plain(optimizer, problem, net)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    task.iteration(problem)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def main() -> None:
    torch.set_num_threads(1)
    if "--peak" in sys.argv:
        return print_peak(sys.argv[-1])
    print(f"\nOne training iteration, batch {BATCH}, n = {NODES}, d = {D}, K_T = {K_T}, fp32, 1 thread")
    print(f"  peak memory it adds: ours {peak_of('ours'):,.0f} MiB, plain {peak_of('plain'):,.0f} MiB")
    keep_freed_memory()
    optimizer, problem, net = setting()
    plain, ours = Plain(optimizer, problem, net), Ours(optimizer, net)
    theirs = plain.iteration(problem)
    difference = abs(theirs - ours.iteration(problem)) / abs(theirs)
    print(f"  the two losses differ by {difference:.1e}, relatively {verdict(difference < 1e-5)}")
    tasks = {"plain": lambda: plain.iteration(problem), "ours": lambda: ours.iteration(problem)}
    if "--compile" in sys.argv:
        other = deepcopy(optimizer)
        for bank in (other.phi_m, other.phi_s, other.phi_u):
            bank.compile(dynamic=False)
        compiled = Ours(other, net)
        tasks["ours, compiled"] = lambda: compiled.iteration(problem)
    seconds = medians(tasks, repeats=3)
    for name, value in seconds.items():
        print(f"  {name:16s} {value:8.2f} s   {seconds['plain'] / value:6.1f}x faster than plain")
    ratio = seconds["plain"] / seconds["ours"]
    print(f"  ours over plain: {ratio:.1f}x (goal: at least 5) {verdict(ratio >= 5)}")


if __name__ == "__main__":
    main()
