"""Over a slow network for real: four processes in four network namespaces, a ring, 20 ms and 10 Mbit/s on each link.

    python benchmarks/slow_network.py                 LASSO(4,300,10,0.1), three instances, then LASSO(4,30000,1000,0.1), one
    python benchmarks/slow_network.py --sizes 300     one of them

Seconds to a gap of 1e-3, of auto with pay = "seconds", which measures its links first, against DAPG and Prox-ED tuned in the
simulation on other instances (numbers of rounds up to 2/sqrt(gap), for fewest rounds: as all rounds of a method carry the same
vector, these are fewest seconds, too), in full precision and in 4 bits. Seconds run from a method's first message to the first
iterate looked at whose gap is below; what auto learns and measures is part of them, looking is not. Large problems are tuned on
smaller ones of the same shape, for the same gap relative to the objective. Goal: auto takes at most 1/3 of the seconds of tuned
DAPG and 1/5 of those of tuned Prox-ED. Needs root, `ip` and netem or /dev/net/tun; says so where they are missing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from _harness import verdict
from _slow_link import Slow, SlowNetwork, enter, lacking

from milodo.algorithms import DAPG, Algorithm, ProxED
from milodo.algorithms.auto import Link, choose, learn
from milodo.bench import cache
from milodo.bench.recorder import Stopwatch, sample_times
from milodo.bench.tuning import Search, tune
from milodo.loop import iterate
from milodo.metrics import judged_point
from milodo.network import Bits, DistributedNetwork, StackedNetwork, StackedObserver, TreeObserver
from milodo.network.probe import probe, slowest
from milodo.problems import Lasso, Problem, instance_seeds, optimum
from milodo.runtime.group import joined
from milodo.secret import VARIABLE, new_secret

NODES, GRAPH, SLOW = 4, "ring(4)", Slow(0.02, 1.25e6)
EDGES = [(i, (i + 1) % NODES) for i in range(NODES)]
GAP, LAM, SHAPE = 1e-3, 0.1, 30
"""SHAPE is d/N."""
SMALL, TUNED_AT = 300, 3000
"""Unknowns for which everything is tuned on that size, and above which parameters come from problems of this size."""
MOST, SHARE = 5000, 200
"""Iterations at most; and of a method that would take too long, from which its seconds are computed."""
COARSE = 1e-9
"""How accurate the certified optimum of a large problem is, relative to its value: a thousandth of the gap that is asked for."""
LONG = 1.5e9
"""Multiplications of a node, about, in a simulation that counts iterations."""
GOALS = {"DAPG": 1 / 3, "Prox-ED": 1 / 5}
BITS = 4
SLACK = 0.1
"""Seconds after a look in which all processes hear when to go on."""
TIMEOUT = 120.0


def methods() -> dict[str, tuple[type[Algorithm], bool]]:
    return {
        "DAPG": (DAPG, False),
        f"DAPG, {BITS} bits": (DAPG, True),
        "Prox-ED": (ProxED, False),
        f"Prox-ED, {BITS} bits": (ProxED, True),
    }


def made(cls: type[Algorithm], short: bool, parameters: dict[str, Any]) -> Algorithm:
    method = cls(**parameters)
    return method.compressed(Bits(BITS)) if short else method


# --- before: tuning and optima, in one process ---


def tuned(name: str, d: int) -> dict[str, Any]:
    """On instances of their own; nothing is tuned twice. In 4 bits with what is best in full precision: at d = 300 searches of
    their own found the very same for both methods.

    Step sizes in units of 1/L, and K, of larger problems are those of d = 300: they depend on d/N alone. What depends on how
    accurate the answer is to be, DAPG's α, is searched again.
    """
    cls, _ = methods()[name]
    search = Search(
        instances=4, iterations=20_000 if cls is ProxED else 2000, target=GAP, cost="rounds", points_each=5, points=9,
        refinements=2, wide=True,
    )  # fmt: skip
    found = _searched(cls, SMALL, search, {})
    if d == SMALL or cls is ProxED:
        return found
    size = min(d, TUNED_AT)
    again = search.model_copy(update={"instances": 1, "iterations": 1000, "refinements": 1, "target": GAP * size / d})
    return _searched(cls, size, again, {key: found[key] for key in ("eta", "K")})


def _searched(cls: type[Algorithm], d: int, search: Search, fixed: dict[str, Any]) -> dict[str, Any]:
    family, seeds = Lasso(NODES, d, d // SHAPE, LAM), instance_seeds("tuning", search.instances)
    key = {"benchmark": "slow_network", "method": cls.label, "problem": family.name, "search": search.model_dump(mode="json")}
    key |= {"fixed": fixed} if fixed else {}
    if (kept := cache.load(key)) is not None:
        return kept["best"]
    problem = family.sample(seeds)
    found = tune(cls, problem, StackedNetwork(GRAPH), optimum(problem).value, search, fixed=fixed)
    cache.store(key, found.to_json())
    return found.best


def certified(family: Lasso, seed: int) -> float:
    """The optimum of an instance; nothing is solved twice."""
    key = {"benchmark": "slow_network", "optimum of": family.name, "seed": seed}
    if (kept := cache.load(key)) is None:
        found = optimum(family.sample([seed]), COARSE if family.d > TUNED_AT else 1e-14)
        assert bool(found.certified.all()), found.why
        kept = {"value": float(found.value)}
        cache.store(key, kept)
    return kept["value"]


@torch.no_grad()
def simulated_iterations(method: Algorithm, problem: Problem, best: float, gap: float, most: int) -> tuple[int, bool]:
    """To the gap, and whether it was reached: if not, it takes more than these."""
    net, observer = StackedNetwork(GRAPH), StackedObserver()
    states, k = iterate(method, problem, net), 0
    for due in sample_times(most, 100):
        *_, state = islice(states, due - k + (due == 0))
        k = due
        if float(problem.objective(judged_point(state.x, problem, observer), observer)) - best <= gap:
            return k, True
    return k, False


# --- in each of the namespaces ---


class Clock:
    """Of all processes, which are on one machine: they go on at the same instant."""

    def __init__(self, observer: TreeObserver, rank: int) -> None:
        self.observer, self.rank, self.watch = observer, rank, Stopwatch(torch.device("cpu"))

    def start(self) -> None:
        now = torch.tensor([time.monotonic() if self.rank == 0 else 0.0], dtype=torch.float64)
        begin = float(self.observer.total(now)) + SLACK + 4 * SLOW.delay
        time.sleep(max(0.0, begin - time.monotonic()))
        self.watch.start()

    def stop(self) -> float:
        """Seconds so far, the mean over all processes."""
        self.watch.stop()
        return float(self.observer.agreed(torch.tensor([self.watch.seconds], dtype=torch.float64)))


@torch.no_grad()
def run(asked: dict[str, Any], problem: Problem, best: float, net: DistributedNetwork, rank: int) -> dict[str, Any]:
    """One method, to the gap or as long as asked for."""
    observer = TreeObserver(net.peers, NODES)
    clock, said, before = Clock(observer, rank), {}, net.traffic.snapshot()
    clock.start()
    if asked["name"] == "auto":
        link = Link(*probe(net))
        pace = slowest(net, lambda: problem.grad(problem.start()))
        chosen = choose("seconds", replace(learn(problem, net), gradient=pace), net, problem.d, link)
        method, rivals = chosen.algorithm, (chosen.best, *chosen.others)
        said = {
            "link": [link.latency, link.bandwidth, pace], "why": chosen.why,
            "candidates": {c.name: c.cost("seconds") for c in rivals},
        }  # fmt: skip
        clock.watch.stop()
        said["setup"] = clock.watch.seconds
        clock.watch.start()
    else:
        cls, short = methods()[asked["name"]]
        method = made(cls, short, asked["parameters"])
    states, k, seconds, gap = iterate(method, problem, net), 0, 0.0, math.inf
    state = next(states)
    for due in [asked["share"]] if asked["share"] else sample_times(MOST, asked["looks"])[1:]:
        while k < due:
            state, k = next(states), k + 1
        seconds = clock.stop()
        loss = float(problem.objective(judged_point(state.x, problem, observer), observer))
        gap = loss - best
        if gap <= GAP or not math.isfinite(loss):
            break
        clock.start()
    sent = net.traffic - before
    total = float(observer.total(torch.tensor([float(sent.bytes)], dtype=torch.float64)))
    return {**asked, **said, "k": k, "seconds": seconds, "gap": gap, "rounds": sent.rounds, "bytes": total, "label": method.label}


def worker() -> None:
    torch.set_num_threads(1)
    plan = json.loads(Path(os.environ["PLAN"]).read_text())
    enter(os.environ["NAMESPACE"])
    with joined(TIMEOUT) as group:
        net = DistributedNetwork(GRAPH, timeout=TIMEOUT)
        for d, seed, best, runs in plan:
            problem = Lasso(NODES, d, d // SHAPE, LAM).sample([seed], nodes=net.nodes)
            problem.lipschitz()  # known before the start, like the data
            group.meet(f"{d}/{seed}")
            net.pull(torch.zeros(net.n, 1, dtype=net.dtype))  # connections are made by the first message
            for number, asked in enumerate(runs):
                found = run(asked, problem, best, net, group.rank)
                if group.rank == 0:
                    print(json.dumps({**found, "d": d, "seed": seed}), flush=True)
                group.meet(f"{d}/{seed}/{number}")


# --- around them ---


def prove(names: list[str]) -> None:
    """That a link is what it claims, by plain TCP between nodes 0 and 1."""
    server = subprocess.Popen([sys.executable, __file__, "serve", names[0]], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    server.stdout.readline()
    subprocess.run([sys.executable, __file__, "call", names[1]], check=True)
    server.wait()


def talk(what: str, namespace: str) -> None:
    """Ten bytes there and back, one by one, and then a million; the other end answers."""
    enter(namespace)
    million, address = 10**6, ("10.77.0.1", 5000)
    if what == "serve":
        with socket.create_server(address) as door:
            print("up", flush=True)
            line, _ = door.accept()
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(10):
                line.sendall(line.recv(1))
            for _ in range(2):
                left = million
                while left:
                    left -= len(line.recv(1 << 16))
                line.sendall(b"!")
            return
    with socket.create_connection(address) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def seconds(count: int) -> float:
            start = time.perf_counter()
            line.sendall(bytes(count))
            line.recv(1)
            return time.perf_counter() - start

        there_and_back = statistics.median(seconds(1) for _ in range(10))
        seconds(million)  # TCP finds out how much it may send
        print(
            f"  a byte there and back: {there_and_back * 1e3:.1f} ms (twice 20 ms); 1 MB and its answer: "
            f"{seconds(million):.3f} s (10 Mbit/s: {million / SLOW.bandwidth:.2f} s and the way)",
            flush=True,
        )


def measured(names: list[str], plan: list[Any]) -> list[dict[str, Any]]:
    """What four processes found; none is left behind."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(plan))
        environment = {
            **os.environ, "WORLD_SIZE": str(NODES), "MASTER_ADDR": "10.78.0.1", "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "node", "PLAN": str(file), "TORCH_CPP_LOG_LEVEL": "FATAL",
            VARIABLE: new_secret(),
        }  # fmt: skip
        processes = [
            subprocess.Popen(
                [sys.executable, __file__], env={**environment, "RANK": str(rank), "NAMESPACE": name},
                stdout=subprocess.PIPE, text=True,
            )
            for rank, name in enumerate(names)
        ]  # fmt: skip
        try:
            assert processes[0].stdout is not None
            found = []
            for line in processes[0].stdout:
                found.append(json.loads(line))
                show(found[-1])
            if any(process.wait() for process in processes):
                sys.exit("a process failed; its own message says why")
            return found
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()


def show(row: dict[str, Any]) -> None:
    if "link" in row:
        latency, bandwidth, pace = row["link"]
        said = f"{latency * 1e3:.1f} ms and {8e-6 * bandwidth:.2f} Mbit/s a link, {pace * 1e3:.1f} ms a gradient"
        print(f"  auto measured {said}; {row['why']}")
        print(f"    predicted: {', '.join(f'{name} {cost:.3g} s' for name, cost in row['candidates'].items())}")
        print(f"    of its seconds {row['setup']:.2f} went into measuring and learning")
    print(
        f"  d = {row['d']:,}, seed {row['seed']}: {row['name']:16s} {row['label']:24s} k = {row['k']:5d}  gap {row['gap']:.1e}  "
        f"{row['seconds']:8.2f} s, {row['seconds'] / row['k'] * 1e3:6.1f} ms an iteration, {row['rounds']:6,d} rounds, "
        f"{row['bytes'] / 1e6:8.3f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[300, 30_000], help="d; N is d/30")
    parser.add_argument("--instances", type=int, default=3, help="of d = 300; of other sizes one")
    parser.add_argument("--looks", type=int, default=40, help="times a decade of iterations at which the gap is computed")
    asked = parser.parse_args()
    if why := lacking():
        print(f"Nothing was measured: {why}")
        return
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are removed
    plan, long = [], {}
    for d in asked.sizes:
        family, parameters = Lasso(NODES, d, d // SHAPE, LAM), {name: tuned(name, d) for name in methods()}
        for name, chosen in parameters.items():
            print(f"{family.name}: {name} tuned to {chosen}", flush=True)
        for seed in instance_seeds("test", asked.instances if d == SMALL else 1):
            best, size = certified(family, seed), min(d, TUNED_AT)
            # A slow method's iterations are counted on a problem of the same shape that is small enough.
            like = family if d == size else Lasso(NODES, size, size // SHAPE, LAM)
            twin = seed if d == size else instance_seeds("test", 1)[0]
            slow, most = ProxED(**parameters["Prox-ED"]), round(LONG / (size * (size // SHAPE)))
            long[d, seed] = simulated_iterations(slow, like.sample([twin]), certified(like, twin), GAP * size / d, most)
            runs = [{"name": "auto", "parameters": {}, "share": None, "looks": asked.looks}]
            runs += [
                {"name": name, "parameters": chosen, "share": SHARE if "ED" in name else None, "looks": asked.looks}
                for name, chosen in parameters.items()
            ]
            plan.append((d, seed, best, runs))
    try:
        with SlowNetwork(NODES, EDGES, SLOW) as network:
            control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
            print(f"{GRAPH}, {SLOW.delay * 1e3:g} ms and {8e-6 * SLOW.bandwidth:g} Mbit/s a link: {network.how}; TCP {control}")
            prove(network.names)
            rows = measured(network.names, plan)
    except subprocess.CalledProcessError as error:
        print(
            f"Nothing was measured: this machine does not allow such networks ({' '.join(map(str, error.cmd))}: {error.stderr})."
        )
        return
    for d in asked.sizes:
        for name in methods():
            compare(d, name, [row for row in rows if row["d"] == d], long)


def compare(d: int, name: str, rows: list[dict[str, Any]], long: dict[tuple[int, int], tuple[int, bool]]) -> None:
    """Auto's seconds over a rival's, the median over instances."""
    pairs, how = [], ""
    for seed in sorted({row["seed"] for row in rows}):
        here = {row["name"]: row for row in rows if row["seed"] == seed}
        auto, own = here["auto"], here[name]
        theirs = own["seconds"] if own["gap"] <= GAP else math.inf
        if own["share"]:
            needed, reached = long[d, seed]
            theirs = own["seconds"] / own["k"] * needed
            how = f" ({SHARE} iterations measured, {'' if reached else 'at least '}{needed:,} needed in simulation)"
        pairs.append((auto["seconds"] if auto["gap"] <= GAP else math.inf, theirs))
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    goal = f" (goal: {GOALS[name]:.2f}) {verdict(ratio <= GOALS[name])}" if name in GOALS else ""
    print(f"d = {d:,}: auto {ours:.2f} s, {name} {theirs:.2f} s{how}: {ratio:.3f}{goal}")


if __name__ == "__main__":
    if "NAMESPACE" in os.environ:
        worker()
    elif sys.argv[1:2] in (["serve"], ["call"]):
        talk(*sys.argv[1:3])
    else:
        main()
