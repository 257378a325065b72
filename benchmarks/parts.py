"""Tables of docs/plus.md about single parts of the cheapest answer: LASSO(n,300,10,0.1) unless said, 32 unseen instances.

    python benchmarks/parts.py bits         iterations with messages of 64, 8, 6, 4 and 3 bits
    python benchmarks/parts.py curvature    rounds and bytes of Tree-Newton with curvatures of 64, 16 and 8 bits
    python benchmarks/parts.py code         bytes of messages in a code and without it, and the time it takes
    python benchmarks/parts.py uneven       rounds with one step for all, and with steps of each node's own
    python benchmarks/parts.py local        rounds and bytes of gossip with local steps, kept in docs/records/local.json

--instances N takes fewer. A few minutes of one core each.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from _costs import Costs, Instances, gossip
from _kept import Kept
from _measure import medians

from milodo.algorithms import DAPG, LEPDO, AcceleratedED, Algorithm, Remembering, TreeAPG, TreeNewton
from milodo.algorithms.auto import choose, gossips, learn, made
from milodo.algorithms.uneven import LONGER, priced
from milodo.network import Bits, Coded, Format, StackedNetwork
from milodo.network.formats import message_format
from milodo.problems import Lasso, LeastSquares, Problem, instance_seeds
from milodo.topology import topology
from milodo.words import amount

GAPS = (1e-3, 1e-5)


def lasso(graph: str, count: int) -> Instances:
    seeds = instance_seeds("test", count)
    return Instances(Lasso(topology(graph).n, 300, 10, 0.1).sample(seeds), seeds)


def said(costs: Costs, axis: str, gaps: int = len(GAPS)) -> str:
    """Medians for all gaps, the last without the first digit that nobody needs."""
    values = [costs.median(axis, gap) for gap in range(gaps)]
    words = [(amount(round(v)) if axis == "bytes" else f"{v:,.0f}") if math.isfinite(v) else "never" for v in values]
    return "never" if set(words) == {"never"} else " / ".join(words)


def table(*heads: str) -> None:
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))


def row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def own(problem: Problem, net: StackedNetwork) -> AcceleratedED:
    """Constants that Accelerated-ED takes by itself, for the worst of the instances."""
    L = problem.lipschitz()
    return AcceleratedED.safe(float(L.max()), net, float(L.mean(-1).max()))


def bits(count: int) -> None:
    table("method", "graph", "64 bits", "8", "6", "4", "3")
    tuned = {"DAPG, K = 3": DAPG(eta=0.0908, alpha=0.0126, K=3),
             "LEPDO, four constants": LEPDO(gamma=0.0495, alpha=0.0326, c_s=0.0642, c_u=1.89)}  # fmt: skip
    for graph in ("ring(10)", "tree(31)", "grid(5x5)"):
        instances = lasso(graph, count)
        methods: dict[str, Algorithm] = {"Tree-APG": TreeAPG(), "Accelerated-ED": own(instances.problem, StackedNetwork(graph))}
        for name, method in (methods | (tuned if graph == "ring(10)" else {})).items():
            forms = [method, *(Remembering(method, Bits(b)) for b in (8, 6, 4, 3))]
            row(name, graph, *(said(instances.costs(each, StackedNetwork(graph), GAPS, most=2000), "k") for each in forms))


def curvature(count: int) -> None:
    table("graph", "curvature in", "rounds to 1e-3 / 1e-5 / 1e-7", "bytes")
    gaps = (*GAPS, 1e-7)
    for graph in ("ring(10)", "grid(5x5)"):
        instances = lasso(graph, count)
        for name in ("full", "float32", "float16", "10-bit"):
            form = message_format(name)
            method = TreeNewton() if form is None else Remembering(TreeNewton(), form)
            costs = instances.costs(method, StackedNetwork(graph), gaps, most=40)
            row(graph, name, said(costs, "rounds", 3), said(costs, "bytes", 3))


def spoken(forms: dict[str, Format], d: int) -> list[float]:
    """Seconds of a processor to write and to read a message in which most numbers lie far below the largest."""
    x = torch.randn(1, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3
    tasks = {name: lambda form=form: form.decode(form.encode(x), d, x.dtype) for name, form in forms.items()}
    return list(medians(tasks, repeats=30, inner=10, clock=time.process_time).values())


def code(count: int) -> None:
    """Of messages that are sent on the way to 1e-3: their bytes, and what writing and reading one takes beside packing it."""
    table("method", "graph", "d", "bytes, plain", "coded", "to write and read one: plain", "coded")
    for graph, d in (("ring(10)", 300), ("ring(10)", 3000), ("tree(31)", 300)):
        family, seeds = Lasso(topology(graph).n, d, d // 30, 0.1), instance_seeds("test", min(count, 2 if d > 300 else 8))
        instances = Instances(family.sample(seeds), seeds)
        facts = learn(instances.problem, StackedNetwork(graph))
        for method in (choose("bytes", facts, StackedNetwork(graph), d).algorithm, gossip(facts, StackedNetwork(graph), d)):
            assert isinstance(method, Remembering) and isinstance(method.form, Coded)
            net = StackedNetwork(graph)
            costs, coded, plain = instances.costs(method, net, [d / 3e5], most=2000), method.form, method.form.form
            each = costs.median("bytes", 0) / (net.traffic.messages / net.traffic.rounds * costs.median("rounds", 0))
            exact = 8 if isinstance(method.method, TreeAPG) else 0
            times = (f"{1e6 * seconds:.0f} µs" for seconds in spoken({"plain": plain, "coded": coded}, d))
            row(method.method.label, graph, f"{d:,}", str(exact + plain.size(d, torch.float64)), f"{each:.0f}", *times)


def curved(n: int, curvatures: Sequence[float], count: int) -> Instances:
    """LASSO(n,100,10,0.1) whose sites count for so much, relative to each other."""
    seeds = instance_seeds("test", count)
    even = Lasso(n, 100, 10, 0.1).sample(seeds)
    c = torch.tensor(curvatures, dtype=torch.float64)
    c = (c / c.mean()).sqrt()
    return Instances(LeastSquares(even.A * c.reshape(-1, 1, 1), even.b * c.reshape(-1, 1), even.reg), seeds)


def uneven(count: int) -> None:
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
        instances = curved(n, ladder if site is None else [times if i == site else 1.0 for i in range(n)], count)
        net, gaps = StackedNetwork(graph), instances.gaps_of_start(fractions)
        L = instances.problem.lipschitz().max(0).values.tolist()
        found = [way for way in (priced(L, net, longer) for longer in LONGER[1:]) if way is not None]
        ways = [own(instances.problem, net), *([min(found, key=lambda way: way.rounds).method] if found else [])]
        row(graph, words, *(said(instances.costs(m, StackedNetwork(graph), gaps, most=3000), "rounds") for m in ways))


def local(count: int) -> None:
    """Gossip as auto takes it for bytes and, in 64 bits, with constants for such messages; and Accelerated-ED likewise."""
    table("graph", "method", "local steps", "rounds in 64 bits, to 1e-1 / 1e-3", "rounds in few levels", "bytes")
    kept = Kept(Path("docs/records/local.json"), {"instances": count, "gaps": [1e-1, 1e-3]})
    for graph in ("ring(10)", "grid(5x5)", "tree(31)"):
        instances, net = lasso(graph, count), StackedNetwork(graph)
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
            row(graph, label, steps, said(exact, "rounds"), said(few, "rounds"), said(few, "bytes"))


PARTS = {"bits": bits, "curvature": curvature, "code": code, "uneven": uneven, "local": local}


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--instances", type=int, default=32)
    asked = parser.parse_args()
    for name in asked.parts or PARTS:
        print(f"\n{name}\n")
        PARTS[name](asked.instances)


if __name__ == "__main__":
    main()
