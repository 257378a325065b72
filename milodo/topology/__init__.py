"""Graphs and mixing weights."""

from milodo.topology.families import EXAMPLES, GRAPHS, topology
from milodo.topology.graph import Topology
from milodo.topology.mixing import Mixing, dense
from milodo.topology.schedule import Schedule, schedule
from milodo.topology.tree import EXACT, SpanningTree, spanning_tree
from milodo.topology.weights import WEIGHTS, weights

__all__ = [
    "EXACT", "EXAMPLES", "GRAPHS", "WEIGHTS", "Mixing", "Schedule", "SpanningTree", "Topology", "dense", "schedule",
    "spanning_tree", "topology", "weights",
]  # fmt: skip
