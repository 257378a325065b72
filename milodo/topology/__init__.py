"""Graphs and mixing weights."""

from milodo.topology.families import EXAMPLES, FAMILIES, topology
from milodo.topology.graph import Topology
from milodo.topology.tree import SpanningTree, spanning_tree
from milodo.topology.weights import WEIGHTS, contraction, dense, spectrum, weights

__all__ = [
    "EXAMPLES", "FAMILIES", "WEIGHTS", "SpanningTree", "Topology", "contraction", "dense", "spanning_tree", "spectrum",
    "topology", "weights",
]  # fmt: skip
