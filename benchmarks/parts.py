"""What single parts of the cheapest answer give (docs/plus.md): LASSO(n,300,10,0.1) unless said, unseen instances.

    python benchmarks/parts.py bits         iterations with messages of 64, 8, 6, 4 and 3 bits
    python benchmarks/parts.py curvature    rounds and bytes of Tree-Newton with curvatures of 64, 16 and 8 bits
    python benchmarks/parts.py code         bytes of messages in a code and without it, and the time it takes
    python benchmarks/parts.py uneven       rounds with one step for all, and with steps of each node's own
    python benchmarks/parts.py local        rounds and bytes of gossip with local steps, kept in docs/records/local.json
    python benchmarks/parts.py drift [float32] [tree]    auto's two methods over 100,000 iterations (an hour of a busy core)

A few minutes of one core each. `drift`, in fp32 and fp64, over --iterations: nothing drifts, in the iterates, between nodes or
in the duals. LASSO(10,30,4,0.1) on ring(10), 4 instances, the largest of each number. The gap is relative to f*, in fp64
against the certified optimum; |sum y| is relative to the largest |y|. Kept in runs/drift/results.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _harness import Costs, Instances, Kept, Part, gossip, medians, row, run_part, table, verdict

from milodo.algorithms import DAPG, LEPDO, AcceleratedED, Algorithm, TreeAPG, TreeNewton
from milodo.algorithms.auto import choose, gossips, learn, made
from milodo.algorithms.uneven import LONGER, priced
from milodo.loop import iterate
from milodo.metrics import consensus_error, judged_point
from milodo.network import Bits, Coded, Format, StackedNetwork, StackedObserver
from milodo.network.formats import message_format
from milodo.problems import Lasso, LeastSquares, Problem, instance_seeds, optimum
from milodo.topology import topology

GAPS = (1e-3, 1e-5)


def own(problem: Problem, net: StackedNetwork) -> AcceleratedED:
    """Constants that Accelerated-ED takes by itself, for the worst of the instances."""
    L = problem.lipschitz()
    return AcceleratedED.safe(float(L.max()), net, float(L.mean(-1).max()))


def bits(asked: argparse.Namespace) -> None:
    table("method", "graph", "64 bits", "8", "6", "4", "3")
    tuned = {"DAPG, K = 3": DAPG(eta=0.0908, alpha=0.0126, K=3),
             "LEPDO, four constants": LEPDO(gamma=0.0495, alpha=0.0326, c_s=0.0642, c_u=1.89)}  # fmt: skip
    for graph in ("ring(10)", "tree(31)", "grid(5x5)"):
        instances = Instances.lasso(graph, asked.instances)
        methods: dict[str, Algorithm] = {"Tree-APG": TreeAPG(), "Accelerated-ED": own(instances.problem, StackedNetwork(graph))}
        for name, method in (methods | (tuned if graph == "ring(10)" else {})).items():
            forms = [method, *(method.compressed(Bits(b)) for b in (8, 6, 4, 3))]
            row(name, graph, *(instances.costs(each, StackedNetwork(graph), GAPS, most=2000).cells("k") for each in forms))


def curvature(asked: argparse.Namespace) -> None:
    table("graph", "curvature in", "rounds to 1e-3 / 1e-5 / 1e-7", "bytes")
    gaps = (*GAPS, 1e-7)
    for graph in ("ring(10)", "grid(5x5)"):
        instances = Instances.lasso(graph, asked.instances)
        for name in ("full", "float32", "float16", "10-bit"):
            form = message_format(name)
            method = TreeNewton() if form is None else TreeNewton().compressed(form)
            costs = instances.costs(method, StackedNetwork(graph), gaps, most=40)
            row(graph, name, costs.cells("rounds"), costs.cells("bytes"))


def spoken(forms: dict[str, Format], d: int) -> list[float]:
    """Seconds of a processor to write and to read a message in which most numbers lie far below the largest."""
    x = torch.randn(1, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3
    tasks = {name: lambda form=form: form.decode(form.encode(x), d, x.dtype) for name, form in forms.items()}
    return list(medians(tasks, repeats=30, inner=10, clock=time.process_time).values())


def code(asked: argparse.Namespace) -> None:
    """Of messages that are sent on the way to 1e-3: their bytes, and what writing and reading one takes beside packing it."""
    table("method", "graph", "d", "bytes, plain", "coded", "to write and read one: plain", "coded")
    for graph, d in (("ring(10)", 300), ("ring(10)", 3000), ("tree(31)", 300)):
        family, seeds = (
            Lasso(topology(graph).n, d, d // 30, 0.1),
            instance_seeds("test", min(asked.instances, 2 if d > 300 else 8)),
        )
        instances = Instances(family.sample(seeds), seeds)
        facts = learn(instances.problem, StackedNetwork(graph))
        for method in (choose("bytes", facts, StackedNetwork(graph), d).algorithm, gossip(facts, StackedNetwork(graph), d)):
            assert isinstance(method.compressor, Coded)
            net = StackedNetwork(graph)
            costs, coded, plain = instances.costs(method, net, [d / 3e5], most=2000), method.compressor, method.compressor.form
            each = costs.median("bytes", 0) / (net.traffic.messages / net.traffic.rounds * costs.median("rounds", 0))
            exact = 8 if isinstance(method, TreeAPG) else 0
            times = (f"{1e6 * seconds:.0f} µs" for seconds in spoken({"plain": plain, "coded": coded}, d))
            row(type(method).label, graph, f"{d:,}", str(exact + plain.size(d, torch.float64)), f"{each:.0f}", *times)


def curved(n: int, curvatures: Sequence[float], count: int) -> Instances:
    """LASSO(n,100,10,0.1) whose sites count for so much, relative to each other."""
    seeds = instance_seeds("test", count)
    even = Lasso(n, 100, 10, 0.1).sample(seeds)
    c = torch.tensor(curvatures, dtype=torch.float64)
    c = (c / c.mean()).sqrt()
    return Instances(LeastSquares(even.A * c.reshape(-1, 1, 1), even.b * c.reshape(-1, 1), even.reg), seeds)


def uneven(asked: argparse.Namespace) -> None:
    fractions = (1e-3, 1e-5)
    cases = [
        ("grid(5x5)", "one site 100 times as curved", 7, 100.0), ("grid(5x5)", "one site 1000 times", 7, 1000.0),
        ("ring(10)", "one site 1000 times", 3, 1000.0), ("star(20)", "the hub 100 times", 0, 100.0),
        ("star(20)", "one leaf 1000 times", 5, 1000.0), ("grid(5x5)", "spread evenly over 100 times", None, 100.0),
    ]  # fmt: skip
    table("graph", "curvatures", "one step for all: rounds to 1e-3 / 1e-5 of the first gap", "steps of their own")
    for graph, words, site, times in cases:
        n = topology(graph).n
        ladder = [times ** (((7 * i) % n) / (n - 1)) for i in range(n)]
        instances = curved(n, ladder if site is None else [times if i == site else 1.0 for i in range(n)], asked.instances)
        net, gaps = StackedNetwork(graph), instances.gaps_of_start(fractions)
        L = instances.problem.lipschitz().max(0).values.tolist()
        found = [way for way in (priced(L, net, longer) for longer in LONGER[1:]) if way is not None]
        ways = [own(instances.problem, net), *([min(found, key=lambda way: way.rounds).method] if found else [])]
        row(graph, words, *(instances.costs(m, StackedNetwork(graph), gaps, most=3000).cells("rounds") for m in ways))


def local(asked: argparse.Namespace) -> None:
    """Gossip as auto takes it for bytes and, in 64 bits, with constants for such messages; and Accelerated-ED likewise."""
    table("graph", "method", "local steps", "rounds in 64 bits, to 1e-1 / 1e-3", "rounds in few levels", "bytes")
    kept = Kept(Path("docs/records/local.json"), {"instances": asked.instances, "gaps": [1e-1, 1e-3]})
    for graph in ("ring(10)", "grid(5x5)", "tree(31)"):
        instances, net = Instances.lasso(graph, asked.instances), StackedNetwork(graph)
        facts = learn(instances.problem, net)
        bold = LEPDO.local(facts.L, net, facts.mean, facts.sums)
        for full, label in ((bold, "LEPDO"), (own(instances.problem, net), "Accelerated-ED")):
            ways = gossips("bytes", facts, net, instances.problem.d, None)
            short = made(next(way for way in ways if way.name.startswith(label)).parameters)

            def needed(
                instances: Instances = instances, graph: str = graph, methods: tuple[Algorithm, ...] = (full, short)
            ) -> list[dict[str, list[list[float]]]]:
                nets = [StackedNetwork(graph) for _ in methods]
                runs = zip(methods, nets, (False, True), strict=True)
                return [instances.costs(m, net, (1e-1, 1e-3), most=1500, learns=learns).needed for m, net, learns in runs]

            exact, few = (Costs(each) for each in kept.get(f"{graph}, {label}", needed))
            steps = f"{full.gradients} / {short.gradients}"
            row(graph, label, steps, exact.cells("rounds"), few.cells("rounds"), few.cells("bytes"))


FAMILY, GRAPH, FEW = Lasso(10, 30, 4, 0.1), "ring(10)", 4
OBSERVER = StackedObserver()
LOOKS = (1_000, 10_000, 100_000)
FLOOR = {torch.float32: 1e-5, torch.float64: 1e-13}
"""Relative gap at which a precision ends."""


def both_of_auto(problem: Problem, net: StackedNetwork) -> dict[str, Algorithm]:
    """As auto takes them on ring(10): for bytes, and for links that fail."""
    return {"tree": TreeAPG().compressed(Bits(4)), "gossip": gossip(learn(problem, StackedNetwork(GRAPH)), net, FAMILY.d)}


@torch.no_grad()
def drifted(name: str, dtype: torch.dtype, looks: list[int], kept: Kept) -> list[dict[str, Any]]:
    seeds = instance_seeds("test", FEW)
    judge, problem = FAMILY.sample(seeds), FAMILY.sample(seeds, dtype=dtype)
    found = optimum(judge)
    assert bool(found.certified.all())
    net = StackedNetwork(GRAPH, dtype=dtype)
    rows = []
    for k, state in enumerate(iterate(both_of_auto(judge, net)[name], problem, net)):
        if k in looks:
            x = state.x.double()
            gap = (judge.objective(judged_point(x, judge, OBSERVER), OBSERVER) - found.value) / found.value.abs()
            seen = {"k": k, "gap": float(gap.abs().max()), "consensus": float(consensus_error(x, OBSERVER).max()), "sum": None}
            y = getattr(state.inner, "y", None)  # sums over a tree have no duals
            if y is not None:
                seen["sum"] = float(y.double().sum(-2).abs().max() / y.abs().max())
            rows.append(seen)
            kept.say(f"{name}, {dtype}: {seen}")
        if k == looks[-1]:
            break
    return rows


def drift(asked: argparse.Namespace) -> None:
    kept = Kept((asked.out or Path("runs/drift")) / "results.json", {"instances": FEW})
    looks = [k for k in LOOKS if k < asked.iterations] + [asked.iterations]
    labels = {"tree": "Tree-APG, 4 bits", "gossip": "Accelerated-ED, 5 levels"}
    table("method", "precision", "iterations", "relative gap", "consensus error", "sum of duals", "")
    for name in (name for name in labels if name in asked.names or not set(labels) & set(asked.names)):
        precisions = {str(dtype).removeprefix("torch."): dtype for dtype in FLOOR}
        for said in (p for p in precisions if p in asked.names or not set(precisions) & set(asked.names)):
            dtype = precisions[said]
            rows = kept.get(f"{name}, {said}, {looks[-1]}", lambda name=name, dtype=dtype: drifted(name, dtype, looks, kept))
            for last, seen in zip([None, *rows], rows, strict=False):
                fine = seen["gap"] <= FLOOR[dtype] or (last is not None and seen["gap"] < last["gap"])
                duals = "none" if seen["sum"] is None else f"{seen['sum']:.1e}"
                mark = "" if last is None else verdict(fine)
                numbers = f"{seen['k']:,} | {seen['gap']:.1e} | {seen['consensus']:.1e} | {duals}"
                print(f"| {labels[name]} | {said} | {numbers} | {mark} |", flush=True)
    print("\nok: still falling, or where its precision ends (relative gap of 1e-5 in fp32, 1e-13 in fp64)")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--iterations", type=int, default=LOOKS[-1], help="of `drift`")


PARTS: dict[str, Part] = {"bits": bits, "curvature": curvature, "code": code, "uneven": uneven, "local": local, "drift": drift}

if __name__ == "__main__":
    run_part(__doc__, PARTS, options)
