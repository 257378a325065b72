"""Gossip alone on twelve graphs whose links are down 30 % of the time, against Prox-ED tuned under the same outages.

    python benchmarks/lossy.py                      twelve graphs (an hour of one core)
    python benchmarks/lossy.py "ring(10)" --instances 4

LASSO(n,300,10,0.1), fp64, 32 unseen instances, medians, to a gap of 1e-3: what auto takes there, with what its nodes tell each
other before they choose, and what gossip takes on links that hold. Prox-ED is tuned on 4 other instances under outages, and given
up where it has sent 100x the bytes of auto: "> 100x". Goals: at most 1/40 of Prox-ED's bytes, and at most 1.3x the bytes that it
sends itself on links that hold (a link that is down carries none).

Results are kept in docs/records/lossy.json: what is there is not run again.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from _costs import Costs, Instances, gossip
from _kept import Kept
from _measure import verdict
from graphs import GRAPHS

from milodo.algorithms import Algorithm, ProxED
from milodo.algorithms.auto import learn
from milodo.bench.tuning import Search, tune
from milodo.network import StackedNetwork, degraded
from milodo.problems import Lasso, instance_seeds, optimum
from milodo.topology import topology
from milodo.words import amount

OUTAGE, GAP = 0.3, 1e-3
MOST = 6000
"""Iterations of gossip."""
TUNED_ON, HOPELESS = 4, 100
FEWER, OWN = 40, 1.3
"""The goals."""


def links(graph: str, outage: float) -> Any:
    return degraded(StackedNetwork(graph), outage=outage)


def compare(graph: str, count: int, kept: Kept) -> dict[str, Any]:
    """What gossip needs under outages and on links that hold, and what Prox-ED needs."""
    family, seeds = Lasso(topology(graph).n, 300, 10, 0.1), instance_seeds("test", count)
    instances = Instances(family.sample(seeds), seeds)

    def costs(method: Algorithm, outage: float, most: int, *, learns: bool = True) -> Costs:
        return instances.costs(method, links(graph, outage), [GAP], most=most, learns=learns)

    failing, holding = (
        gossip(learn(instances.problem, links(graph, outage)), links(graph, outage), family.d) for outage in (OUTAGE, 0.0)
    )
    ours = costs(failing, OUTAGE, MOST)
    found = {"label": failing.label, "ours": ours.needed, "trusting": costs(holding, 0.0, MOST).needed, "trusts": holding.label}

    def rival() -> dict[str, Any]:
        """For no longer than it takes to be hopeless."""
        known = family.sample(instance_seeds("tuning", TUNED_ON))
        each = (
            (1 - OUTAGE) * 2 * len(topology(graph).edges) * family.d * instances.best.itemsize
        )  # a vector on every arc that works
        most = math.ceil(HOPELESS * ours.median("bytes", 0) / each)
        search = Search(instances=TUNED_ON, iterations=most, target=GAP, points=9, refinements=2)
        best = tune(ProxED, known, links(graph, OUTAGE), optimum(known).value, search).best
        return {"rival": costs(ProxED(**best), OUTAGE, most, learns=False).needed, "tuned": best, "most": most * each}

    return {**found, **kept.get(f"{graph}, Prox-ED", rival)}


def row(graph: str, found: dict[str, Any]) -> tuple[bool, bool]:
    """Printed; whether it meets the two goals."""
    ours, trusting, rival = (Costs(found[name]) for name in ("ours", "trusting", "rival"))
    sent, theirs = ours.median("bytes", 0), rival.median("bytes", 0)
    fewer = (theirs if math.isfinite(theirs) else found["most"]) / sent
    own = sent / trusting.median("bytes", 0)
    reached = [sum(map(math.isfinite, each.needed["k"][0])) for each in (ours, rival)]
    cells = [
        f"{ours.median('rounds', 0):,.0f}", f"{trusting.median('rounds', 0):,.0f}", amount(round(sent)), f"{own:.2f}",
        amount(round(theirs)) if math.isfinite(theirs) else f"> {amount(round(found['most']))}",
        f"{'' if math.isfinite(theirs) else '> '}{fewer:.0f}x", " / ".join(map(str, reached)),
    ]  # fmt: skip
    print(f"| {graph} | " + " | ".join(cells) + " |", flush=True)
    return fewer >= FEWER, own <= OWN


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*")
    parser.add_argument("--instances", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("docs/records/lossy.json"))
    asked = parser.parse_args()
    kept = Kept(asked.out, {"instances": asked.instances, "outage": OUTAGE, "gap": GAP, "tuned on": TUNED_ON})
    heads = [
        "graph",
        "rounds, 30 % down",
        "rounds, links hold",
        "bytes, 30 % down",
        "over bytes, links hold",
        "Prox-ED, tuned",
        "times as many",
    ]
    print("| " + " | ".join([*heads, f"of {asked.instances} reached 1e-3, auto / Prox-ED"]) + " |")
    print("|---|" + "---:|" * len(heads))
    graphs = asked.graphs or GRAPHS
    met = [row(graph, kept.get(graph, lambda graph=graph: compare(graph, asked.instances, kept))) for graph in graphs]
    for goal, good in zip((f"1/{FEWER} of Prox-ED's", f"{OWN}x its own on links that hold"), zip(*met, strict=True), strict=True):
        print(f"bytes: at most {goal} on {sum(good)} of {len(good)} graphs (goal: all) {verdict(all(good))}")


if __name__ == "__main__":
    main()
