"""One process of several: runs every registered method for real on several graphs and compares with the simulation.

python trajectories.py OUT, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; rank 0 writes what it found to OUT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from milodo.algorithms import METHODS
from milodo.learned import LEARNED, BaseRules, LPGExtra, MiLoDo, special_initialisation
from milodo.network import DistributedNetwork, StackedNetwork, TreeObserver, degraded
from milodo.problems import Lasso
from milodo.runtime.group import joined
from milodo.solve import iterate
from milodo.topology import topology

GRAPHS = ("ring(4)", "star(4)", "grid(2x3)", "tree(4)", "erdos_renyi(4,0.6,seed=1)")
"""With four processes most have one node each; with three some hold two."""
SHARED, FEW = 3, ("prox-ed", "dapg", "milodo")
"""Where processes share nodes, these methods are enough: one round, several, and swap itself."""
LARGE = "ring(100)"
"""Only for Prox-ED: dozens of nodes on a process."""
STEPS, D = 30, 7
SMALL = {"gamma": 0.03, "eta": 0.03, "alpha": 0.05, "tau": 0.05, "K": 1}


def methods(graph: str) -> dict:
    """Every registered method, with parameters that do not diverge."""
    torch.manual_seed(0)
    made = {name: cls(**{key: SMALL[key] for key in cls.space}) for name, cls in METHODS.items()}
    optimizer = special_initialisation(MiLoDo(graph, every=3), StackedNetwork(graph), 0.05)
    with torch.no_grad():
        for bank in (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u):
            bank.w_2.add_(0.05 * torch.randn_like(bank.w_2))  # so that the networks look at their inputs
    rules = BaseRules(graph, d=D, hidden=5)
    with torch.no_grad():
        for bank in (rules.m, rules.s, rules.u):
            bank.w_2.mul_(0.01), bank.b_2.mul_(0.01)
    learned = {"milodo": optimizer, "lpg-extra": LPGExtra(graph, layers=100, gamma=0.02), "base-rules": rules}
    assert set(learned) == set(LEARNED)
    return {**made, **{name: method.double() for name, method in learned.items()}}


@torch.no_grad()
def last(method, problem, net):
    for k, state in enumerate(iterate(method, problem, net)):
        if k == min(STEPS, method.longest or STEPS):
            return state.x
    raise AssertionError


def main() -> None:
    torch.set_num_threads(1)
    found = {}
    with joined(60) as group:
        for graph in (*GRAPHS, LARGE):
            n = topology(graph).n
            chosen = {"prox-ed": METHODS["prox-ed"](gamma=SMALL["gamma"])} if graph == LARGE else methods(graph)
            if group.world == SHARED:
                chosen = {name: method for name, method in chosen.items() if name in FEW}
            for name, method in chosen.items():
                for kind, options in (("perfect", {}), ("lossy", {"outage": 0.3}), ("short", {"messages": "float16"}))[
                    : 3 if name in ("prox-ed", "milodo") and graph in GRAPHS[:1] else 1
                ]:
                    family = Lasso(n, D, 8, 0.0 if name == "base-rules" else 0.1)
                    real = DistributedNetwork(graph, timeout=60)
                    observer = TreeObserver(real.peers, n)
                    net = degraded(real, **options)
                    x = last(method.at(net.nodes), family.sample([0, 1], nodes=net.nodes), net)
                    simulation = degraded(StackedNetwork(graph), **options)
                    expected = last(method, family.sample([0, 1]), simulation)[:, list(net.nodes)]
                    worst = observer.total(torch.tensor([float((x - expected).abs().max())], dtype=torch.float64))
                    sent = observer.total(torch.tensor([float(net.traffic.bytes), float(net.traffic.messages)]).double()).tolist()
                    found[f"{graph} {name} {kind}"] = {
                        "worst": float(worst),
                        "size": float(expected.abs().max()),
                        "sent": [net.traffic.rounds, *map(int, sent)],
                        "simulated": [simulation.traffic.rounds, simulation.traffic.bytes, simulation.traffic.messages],
                    }
        observer.barrier()
    if group.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
