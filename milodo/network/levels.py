"""Which neighbours a node listens to: those at its own level. What level each is at travels with every message."""

from __future__ import annotations

from milodo.types import NodeTensor


class Levels:
    """Of one iteration: `own` is each node's, a whole number [*batch, n, 1]; `highest` the highest it has heard of so far.

    A link between two levels carries what it carries, and both ends leave it out: x_i - x_j counts as 0 at i and at j, as over a
    link that is down. So laplacians sum to zero over the nodes of each level.
    """

    def __init__(self, own: NodeTensor) -> None:
        self.own, self.highest = own, own

    def hear(self, heard: NodeTensor) -> None:
        self.highest = self.highest.maximum(heard)
