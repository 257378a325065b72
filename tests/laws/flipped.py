"""One process of several: a bit of one message that rank 1 receives is flipped, and the run must end where it would have.

python flipped.py, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; rank 0 prints how far from the optimum any node ends.
"""

from __future__ import annotations

import itertools
import json
import sys

import torch

from milodo.algorithms import METHODS
from milodo.loop import iterate
from milodo.network import Bits, Coded, DistributedNetwork, Format, Levels, TreeObserver, replicas
from milodo.problems import Lasso, optimum
from milodo.runtime.group import joined

GRAPH, AT = "ring(3)", 7
CASES: dict[str, tuple[Format, int, int]] = {
    "tree-apg": (Coded(Bits(4)), 80, 8), "flood-apg": (Bits(4), 80, 8), "accelerated-ed": (Coded(Levels(5)), 200, 0),
}  # fmt: skip
"""Messages, iterations, and bytes of a message before its scale."""


class Flipped(DistributedNetwork):
    """The first thing that rank 1 hears in iteration AT has another scale than was sent."""

    head, bit = 0, 1 << 6

    def _carry(self, message, route, up=None, *, varies=False):
        came = super()._carry(message, route, up, varies=varies)
        places = [place for link in route.links for place in link.coming.tolist()]
        if self.peers.rank == 1 and self.k == AT and places and type(self).bit:
            came = came.clone()
            came[..., places[0], self.head + 1] ^= type(self).bit
            type(self).bit = 0
        return came


def main() -> None:
    torch.set_num_threads(1)
    replicas.OF_SUMS, replicas.OF_LINKS = 16, 4
    family, found = Lasso(3, 4, 20, 0.02), {}
    best = optimum(family.sample([1])).x.unsqueeze(-2)
    L = float(family.sample([1]).lipschitz().max())
    with joined(60) as group:
        for name, (form, steps, head) in CASES.items():
            Flipped.bit, Flipped.head = 1 << 6, head
            net = Flipped(GRAPH, timeout=60)
            observer, problem = TreeObserver(net.peers, 3), family.sample([1], nodes=net.nodes)
            method = METHODS[name].safe(L, net).compressed(form)
            with torch.no_grad():
                state = next(itertools.islice(iterate(method, problem, net), steps, None))
            off = torch.zeros(3, dtype=torch.float64)
            off[group.rank] = (state.x - best).abs().max()
            found[name] = observer.total(off).max().item()
        observer.barrier()
    if group.rank == 0:
        sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
