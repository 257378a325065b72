"""A spanning tree of a graph: over its edges sums go up to a root, and totals come down."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import networkx as nx

EXACT = 1000
"""Nodes up to which the centre is found exactly, by a search from every node."""
SWEEPS = 20
"""Searches at most in a larger graph."""


@dataclass(frozen=True)
class SpanningTree:
    """Breadth first from the centre of the graph, the node whose furthest node is nearest: no tree of shortest paths is lower."""

    root: int
    parent: tuple[int, ...]
    """Of every node; the root is its own."""
    depth: tuple[int, ...]
    """Of every node: edges to the root."""

    @property
    def height(self) -> int:
        return max(self.depth)

    def children(self, node: int) -> list[int]:
        return self._children[node]

    @cached_property
    def _children(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.parent]
        for child, parent in enumerate(self.parent):
            if child != parent:
                found[parent].append(child)
        return found

    @cached_property
    def carried(self) -> float:
        """√(Σ_e s_e / n) over all edges e with s_e nodes below them: how large rounding on every edge is in a total of
        independent terms. About 1 for a star, √n/2 for a path."""
        below = [1] * len(self.parent)
        for node in sorted(range(len(self.parent)), key=lambda node: -self.depth[node]):
            if node != self.root:
                below[self.parent[node]] += below[node]
        return ((sum(below) - below[self.root]) / len(below)) ** 0.5

    def level(self, depth: int) -> list[int]:
        """Nodes this far from the root, in order."""
        return [node for node, found in enumerate(self.depth) if found == depth]


def spanning_tree(graph: nx.Graph) -> SpanningTree:
    """Of a connected graph on 0 .. n-1. Everybody who knows the graph finds the same tree."""
    root = centre(graph)
    parent, depth = [root] * graph.number_of_nodes(), [0] * graph.number_of_nodes()
    for above, node in nx.bfs_edges(graph, root, sort_neighbors=sorted):
        parent[node], depth[node] = above, depth[above] + 1
    return SpanningTree(root, tuple(parent), tuple(depth))


def centre(graph: nx.Graph) -> int:
    """A node whose furthest node is as near as can be; in a large graph, nearly so."""
    if graph.number_of_nodes() <= EXACT:
        return min(nx.center(graph))
    # Nodes far out are collected until the node nearest to all of them has no other further away.
    furthest = dict.fromkeys(graph, 0)
    middle = min(graph)
    for _ in range(SWEEPS):
        distance = nx.single_source_shortest_path_length(graph, middle)
        far = max(graph, key=lambda node: (distance[node], -node))
        if distance[far] <= furthest[middle]:
            break
        from_far = nx.single_source_shortest_path_length(graph, far)
        furthest = {node: max(known, from_far[node]) for node, known in furthest.items()}
        middle = min(graph, key=lambda node: (furthest[node], node))
    return middle
