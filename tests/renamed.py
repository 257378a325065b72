"""A problem and its graph with the nodes in another order."""

from __future__ import annotations

from typing import NamedTuple

from milodo.problems import Lasso, LeastSquares
from milodo.topology import Topology, topology


class Renamed(NamedTuple):
    graph: str
    problem: LeastSquares
    place: dict[int, int]
    """Of each node's old number, the new one."""
    other: Topology
    moved: LeastSquares
    """The same data at the nodes' new numbers."""
    order: list[int]
    """Of each new number, the old one."""


def relabelled() -> Renamed:
    graph, order = "erdos_renyi(6,0.5,seed=2)", [3, 0, 5, 1, 4, 2]
    top, problem = topology(graph), Lasso(6, 5, 8, 0.1).sample([0])
    assert isinstance(problem, LeastSquares)
    place = {old: new for new, old in enumerate(order)}
    other = Topology.from_edges([(min(place[i], place[j]), max(place[i], place[j])) for i, j in top.edges], "relabelled")
    moved = LeastSquares(problem.A[:, order].contiguous(), problem.b[:, order].contiguous(), problem.reg)
    return Renamed(graph, problem, place, other, moved, order)
