"""Who may talk to whom: a connected, undirected graph on the nodes 0 .. n-1."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import networkx as nx
import numpy as np

from milodo.errors import InvalidInput, quoted, shortened
from milodo.files import is_file
from milodo.topology.flood import Flood, flood
from milodo.topology.tree import EXACT, SpanningTree, spanning_tree

DIGITS = re.compile("[0-9]{1,18}")


@dataclass(frozen=True)
class Topology:
    """A connected undirected graph (Definition 1 of the paper). Two topologies are equal if their edges are."""

    n: int
    edges: tuple[tuple[int, int], ...]
    """Undirected edges (i, j) with i < j, sorted."""
    name: str = field(compare=False)

    @classmethod
    def from_graph(cls, graph: nx.Graph, name: str = "graph") -> Topology:
        """From any networkx graph; its nodes become 0 .. n-1 in sorted order (in the order given if they cannot be sorted)."""
        if graph.is_directed():
            raise InvalidInput(
                f"{name}: the graph is directed, but neighbours must be able to answer each other. "
                "Pass graph.to_undirected() if every link works both ways."
            )
        if graph.number_of_nodes() == 0:
            raise InvalidInput(f"{name}: the graph has no nodes. Give it at least one.")
        loops = sorted({str(i) for i, j in graph.edges() if i == j})
        if loops:
            raise InvalidInput(
                f"{name}: node {shortened(loops[0])} has an edge to itself. Remove self-loops; a node keeps its own weight."
            )
        parts = list(nx.connected_components(graph))
        if len(parts) > 1:
            alone = sorted(shortened(i, 20) for i in min(parts, key=len))
            raise InvalidInput(
                f"{name}: the graph is disconnected ({len(parts)} parts; one of them is {{{', '.join(alone[:5])}"
                f"{', ...' if len(alone) > 5 else ''}}}), so its nodes can never agree. Add edges that join the parts."
            )
        try:
            order = sorted(graph.nodes())
        except TypeError:
            order = list(graph.nodes())
        index = {node: i for i, node in enumerate(order)}
        pairs = {(min(index[a], index[b]), max(index[a], index[b])) for a, b in graph.edges()}
        return cls(len(order), tuple(sorted(pairs)), name)

    @classmethod
    def from_edges(cls, edges: Iterable[tuple[int, int]], name: str = "edges") -> Topology:
        """From pairs of nodes, each edge once or in both directions."""
        try:
            pairs = [(a, b) for a, b in edges]
            graph = nx.Graph(pairs)
        except (TypeError, ValueError, nx.NetworkXError) as error:  # not a list, not pairs, None or a list in the place of a node
            raise InvalidInput(
                f"{name}: {quoted(edges)} is not a list of edges. Give pairs of nodes, such as [(0, 1), (1, 2)]."
            ) from error
        return cls.from_graph(graph, name)

    @classmethod
    def from_file(cls, path: str | Path) -> Topology:
        """From GraphML (*.graphml) or an edge list: one edge a line, two names separated by blanks or a comma, # for comments."""
        path = Path(path)
        return cls.from_graph(numbered(read_graph(path)), path.name)

    @cached_property
    def graph(self) -> nx.Graph:
        graph = nx.Graph()
        graph.add_nodes_from(range(self.n))
        graph.add_edges_from(self.edges)
        return graph

    @cached_property
    def ends(self) -> np.ndarray:
        """The edges as an array [2, number of edges]."""
        return np.array(self.edges, dtype=np.int64).reshape(-1, 2).T

    @cached_property
    def arcs(self) -> tuple[tuple[int, int], ...]:
        """Directed edges (i, j), both ways, sorted: the rows of an EdgeTensor."""
        return tuple(sorted([*self.edges, *((j, i) for i, j in self.edges)]))

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        return tuple(np.bincount(self.ends.ravel(), minlength=self.n).tolist())

    @cached_property
    def diameter(self) -> int:
        """By a search from every node."""
        return nx.diameter(self.graph)

    @property
    def reach(self) -> int:
        """Rounds after which everybody has heard of everybody: the diameter, and in a large graph at most twice that."""
        return self.diameter if self.n <= EXACT else 2 * self.tree.height

    @cached_property
    def tree(self) -> SpanningTree:
        """Along which sums over all nodes go."""
        return spanning_tree(self.graph)

    @cached_property
    def flood(self) -> Flood:
        """By which everybody hears from everybody; takes a search from every node."""
        return flood(self.graph)

    @cached_property
    def fingerprint(self) -> str:
        """The same for two topologies exactly if they have the same nodes and edges."""
        return hashlib.sha256(repr((self.n, self.edges)).encode()).hexdigest()[:16]

    def neighbours(self, i: int) -> tuple[int, ...]:
        return tuple(sorted(self.graph.neighbors(i)))

    def __str__(self) -> str:
        return self.name


def read_graph(path: str | Path) -> nx.Graph:
    """What a file says, connected or not, its nodes called as it calls them."""
    path = Path(path)
    if not is_file(path):
        raise InvalidInput(
            f"no graph file {quoted(str(path))}. Give an edge list or a .graphml file, or a name such as 'ring(10)'."
        )
    if path.suffix == ".graphml":
        try:
            return nx.read_graphml(path)
        except (nx.NetworkXException, SyntaxError, LookupError, ValueError) as error:
            raise InvalidInput(f"{path}: not a readable GraphML file ({shortened(error)}).") from error
    graph = nx.Graph()
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark, which is no part of a name
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: not a text file. Give an edge list or a .graphml file.") from error
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2:
            raise InvalidInput(f"{path}, line {number}: expected two node names, found {quoted(line.strip())}.")
        graph.add_edge(*words)
    return graph


def numbered(graph: nx.Graph) -> nx.Graph:
    """Names that are all numbers become numbers: as strings '10' would come before '2'. '1' and '01' stay two names."""
    numbers = {node: int(node) for node in graph if DIGITS.fullmatch(str(node))}
    return nx.relabel_nodes(graph, numbers) if len(set(numbers.values())) == len(graph) else graph
