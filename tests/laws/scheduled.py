"""One process of four: methods on graphs that change, for real, beside the simulation.

python scheduled.py OUT, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; rank 0 writes what it found to OUT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from trajectories import last, methods

from milodo.algorithms import AcceleratedED
from milodo.network import Bits, DistributedNetwork, StackedNetwork, TreeObserver, degraded, replicas
from milodo.problems import Lasso
from milodo.runtime.group import joined
from milodo.topology import topology

CHANGING = {
    "one-peer": ("exponential(4)", "one-peer"),
    "matchings": ("complete(4)", "matchings"),
    "alternating": ("ring(4)", "alternating(2)"),
    "graphs": ("complete(4)", ["ring(4)", "star(4)", "path(4)"]),
    "shared": ("exponential(8)", "one-peer"),
}
"""In the last each process holds two nodes."""
REFUSE = {"dapg", "odapg", "tree-apg", "tree-newton", "flood-apg", "plus"}
"""Made for the spectrum of one graph, or for its tree."""
FEW = ("prox-ed", "milodo", "accelerated-ed", "gradient-tracking", "accelerated-ed in bits")


def chosen(graph: str, case: str) -> dict:
    every = {name: method for name, method in methods(graph).items() if name not in REFUSE}
    every["accelerated-ed in bits"] = AcceleratedED(gamma=0.03, K=1).compressed(Bits(5))
    return every if case == "one-peer" else {name: every[name] for name in FEW}


def main() -> None:
    torch.set_num_threads(1)
    replicas.OF_LINKS = 1  # so often that a few iterations are enough for several comparisons
    found = {}
    with joined(60) as group:
        for case, (graph, schedule) in CHANGING.items():
            n = topology(graph).n
            for name, method in chosen(graph, case).items():
                family = Lasso(n, 7, 8, 0.0 if name == "base-rules" else 0.1)
                real = DistributedNetwork(graph, timeout=60)
                observer = TreeObserver(real.peers, n)
                net = degraded(real, schedule=schedule, seed=5)
                x = last(method.at(net.nodes), family.sample([0, 1], nodes=net.nodes), net)
                simulation = degraded(StackedNetwork(graph), schedule=schedule, seed=5)
                told = torch.zeros(2, n, 7, dtype=torch.float64)
                if group.rank == 0:  # simulated once, for all
                    told = last(method, family.sample([0, 1]), simulation)
                expected = observer.total(told)[:, list(net.nodes)]
                sent = torch.tensor([float(net.traffic.bytes), float(net.traffic.messages)], dtype=torch.float64)
                found[f"{case} {name}"] = {
                    "worst": float(observer.total((x - expected).abs().max().reshape(1))),
                    "size": float(expected.abs().max()),
                    "sent": [net.traffic.rounds, *map(int, observer.total(sent).tolist())],
                    "simulated": [simulation.traffic.rounds, simulation.traffic.bytes, simulation.traffic.messages],
                }
        observer.barrier()
    if group.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
