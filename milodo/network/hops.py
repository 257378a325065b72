"""The rounds of a sum over a spanning tree, as one process sees them: who here sends to whom, who here hears from whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from milodo.topology.tree import SpanningTree


@dataclass(frozen=True)
class Hop:
    """One round, in which only some edges carry a message: arcs (i, j) of the tree, sorted, all known to everybody."""

    arcs: tuple[tuple[int, int], ...]
    sent: int
    """How many leave a node held here."""
    sources: Tensor
    """The row of i in a NodeTensor, for arcs from a node held here to a node held here."""
    targets: Tensor
    """The row of j, for all arcs that end here, in their order."""


def rounds(tree: SpanningTree) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
    """Arcs of each round: up from the deepest nodes to the root, and down again."""
    up = [[(node, tree.parent[node]) for node in tree.level(depth)] for depth in range(tree.height, 0, -1)]
    down = [sorted((j, i) for i, j in arcs) for arcs in reversed(up)]
    return [sorted(arcs) for arcs in up], down


def held(arcs: Sequence[tuple[int, int]], nodes: Sequence[int]) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]]]:
    """How many arcs leave a node held here, those that stay here, and those that end here."""
    here = set(nodes)
    return sum(i in here for i, _ in arcs), [(i, j) for i, j in arcs if {i, j} <= here], [(i, j) for i, j in arcs if j in here]
