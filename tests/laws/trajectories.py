"""One process of several: runs every registered method for real on several graphs and compares with the simulation.

python trajectories.py OUT, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; rank 0 writes what it found to OUT.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from milodo.algorithms import METHODS
from milodo.learned import LEARNED, BaseRules, LPGExtra, MiLoDo, Plus, Shared
from milodo.loop import Stop, iterate, solve
from milodo.network import Bits, Coded, DistributedNetwork, Levels, StackedNetwork, TreeObserver, consensus, degraded, replicas
from milodo.problems import Lasso
from milodo.runtime.group import joined
from milodo.topology import topology

sys.path.insert(0, str(Path(__file__).parent.parent))
from disturb import awake, awakened, disturbed

GRAPHS = ("ring(4)", "star(4)", "grid(2x3)", "tree(4)", "erdos_renyi(4,0.6,seed=1)")
"""With four processes most have one node each; with three some hold two."""
SHARED, FEW = 3, ("prox-ed", "dapg", "milodo", "tree-apg", "flood-apg", "milodo-momentum")
"""Where processes share nodes, these methods are enough: one round, several, swap itself, a tree, all to all."""
KINDS = (("perfect", {}), ("lossy", {"outage": 0.3}), ("short", {"messages": "float16"}))
SHORT = [(GRAPHS[0], "prox-ed"), (GRAPHS[0], "milodo")]
LOSSY = [(GRAPHS[2], f"{name} in bits") for name in ("prox-ed", "milodo")] + [(GRAPHS[2], "prox-ed in code")]
LARGE = "ring(100)"
"""Only for Prox-ED: dozens of nodes on a process."""
STEPS, D = 20, 7
SMALL = {
    "gamma": 0.03, "eta": 0.03, "alpha": 0.05, "tau": 0.05, "K": 1, "c_s": 0.05, "c_u": 1.0,
    "theta": 0.5, "sigma": 0.5, "inner": 5, "bits": 2, "local_steps": 3, "lookahead": 0.5,
}  # fmt: skip
REMEMBERING = FEW
"""These, too, with messages of a few bits and a memory: by node, in several rounds, by arc, over a tree, all to all. On two
graphs in a code, too, in which messages vary in length."""
CODED = (GRAPHS[0], GRAPHS[2])
MORE = ("milodo-momentum",)
"""Registered methods as their default settings do not have them."""


def remembering(graph: str) -> dict:
    forms = {"bits": Bits(5)} | ({"code": Coded(Levels(5))} if graph in CODED else {})
    return {
        f"{name} in {word}": method.compressed(form)
        for name, method in methods(graph).items()
        for word, form in forms.items()
        if name in REMEMBERING
    }


def methods(graph: str) -> dict:
    """Every registered method, with parameters that do not diverge."""
    torch.manual_seed(0)
    made = {name: cls(**{key: SMALL[key] for key in cls.space}) for name, cls in METHODS.items()}
    optimizer = disturbed(MiLoDo(graph, every=3), 0.05)
    rules = BaseRules(graph, d=D, hidden=5)
    with torch.no_grad():
        for bank in (rules.m, rules.s, rules.u):
            bank.w_2.mul_(0.01), bank.b_2.mul_(0.01)
    learned = {"milodo": optimizer, "lpg-extra": LPGExtra(graph, layers=100, gamma=0.02), "base-rules": rules}
    learned["plus"] = awake(Plus(graph, hidden=4))
    learned["shared"] = awakened(Shared(graph, hidden=4, every=3))
    assert set(learned) == set(LEARNED)
    moving = MiLoDo(graph, hidden=5, every=3, inputs="relative", momentum=0.9)
    learned["milodo-momentum"] = disturbed(moving, 0.8, 0.3, c_s=0.2, c_u=1.4, alpha=0.2)
    return {**made, **{name: method.double() for name, method in learned.items()}}


@torch.no_grad()
def last(method, problem, net):
    for k, state in enumerate(iterate(method, problem, net)):
        if k == min(STEPS, method.longest or STEPS):
            return state.x
    raise AssertionError


def stopped_by_clocks(group, observer, net):
    """Iterations after which each process stopped, its own clock running as fast as its rank says."""
    own = time.perf_counter
    time.perf_counter = lambda: own() * (1 + 5 * group.rank)
    try:
        problem, stop = Lasso(net.topology.n, D, 8, 0.1).sample([0], nodes=net.nodes), Stop(steps=10**6, seconds=0.3, every=3)
        result = solve(METHODS["prox-ed"](gamma=0.001), problem, net, stop, observer=observer)
    finally:
        time.perf_counter = own
    counts = torch.zeros(group.world, dtype=torch.float64)
    counts[group.rank] = result.k
    return {"iterations": observer.total(counts).tolist(), "status": result.status.name}


def cases(world: int):
    """Graph, name, method, kind of links and their options, of all that so many processes run."""
    for graph in (*GRAPHS, LARGE):
        chosen = {"prox-ed": METHODS["prox-ed"](gamma=SMALL["gamma"])} if graph == LARGE else methods(graph) | remembering(graph)
        if world == SHARED:
            chosen = {name: method for name, method in chosen.items() if name.split()[0] in FEW}
        for name, method in chosen.items():
            for kind, options in KINDS[: 3 if (graph, name) in SHORT else 2 if (graph, name) in LOSSY else 1]:
                yield graph, name, method, kind, options


def family(graph: str, name: str) -> Lasso:
    return Lasso(topology(graph).n, D, 8, 0.0 if name == "base-rules" else 0.1)


class Counting(DistributedNetwork):
    """How many messages have a length of their own, whatever the method's messages are."""

    plain = 0

    def as_it_is(self, message, route, up=None):
        before = self.traffic.messages
        came = super().as_it_is(message, route, up)
        type(self).plain += self.traffic.messages - before
        return came


def really(graph, name, method, options):
    """x at all nodes after a real run, what all sent, what all carried, who observes them, and by which network."""
    Counting.plain, real = 0, Counting(graph, timeout=60)
    observer, net = TreeObserver(real.peers, real.topology.n), degraded(real, **options)
    x = torch.zeros(2, real.topology.n, D, dtype=torch.float64)
    x[:, list(net.nodes)] = last(method.at(net.nodes), family(graph, name).sample([0, 1], nodes=net.nodes), net)
    counts = [int(net.traffic.of((2,)).sum()), net.traffic.messages, real.peers.carried, Counting.plain]
    *sent, carried, plain = map(int, observer.total(torch.tensor(counts, dtype=torch.float64)).tolist())
    return observer.total(x), [net.traffic.rounds, *sent], (carried, plain), observer, real


def simulated(graph, name, method, options):
    """x at all nodes in the simulation, and what all sent."""
    net = degraded(StackedNetwork(graph), **options)
    x = last(method, family(graph, name).sample([0, 1]), net)
    return x, [net.traffic.rounds, int(net.traffic.of((2,)).sum()), net.traffic.messages]


def main() -> None:
    torch.set_num_threads(1)
    replicas.OF_SUMS, replicas.OF_LINKS = 4, 1  # so often that STEPS are enough for several comparisons,
    consensus.PATIENCE = 0  # also where links fail
    found = {}
    with joined(60) as group:
        ran = []
        for graph, name, method, kind, options in cases(group.world):
            *facts, observer, real = really(graph, name, method, options)
            ran.append((graph, name, method, kind, options, *facts))
        compared = torch.zeros(len(ran), 5, dtype=torch.float64)
        for k in range(group.rank, len(ran), group.world):  # each process simulates its share, and tells the others
            graph, name, method, _, options, x, *_ = ran[k]
            expected, sent = simulated(graph, name, method, options)
            compared[k] = torch.tensor([(x - expected).abs().max(), expected.abs().max(), *sent], dtype=torch.float64)
        told = observer.total(compared).tolist()
        for (graph, name, _, kind, _, _, sent, carried), (worst, size, *counted) in zip(ran, told, strict=True):
            found[f"{graph} {name} {kind}"] = {
                "worst": worst,
                "size": size,
                "sent": sent,
                "simulated": [int(number) for number in counted],
                "carried": carried[0],
                "plain": carried[1],
                "alone": group.world == topology(graph).n,
            }
        found["clocks"] = stopped_by_clocks(group, observer, real)
        observer.barrier()
    if group.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
