"""Graphs and mixing weights."""

from milodo.topology.families import EXAMPLES, FAMILIES, topology
from milodo.topology.graph import Topology
from milodo.topology.weights import WEIGHTS, contraction, dense, weights

__all__ = ["EXAMPLES", "FAMILIES", "WEIGHTS", "Topology", "contraction", "dense", "topology", "weights"]
