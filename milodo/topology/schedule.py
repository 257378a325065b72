"""Graphs that change with the iteration: which links of the network each iteration uses, known to all nodes without talking."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import networkx as nx
import numpy as np

from milodo.errors import InvalidInput, quoted, shortened, unknown, whole
from milodo.files import is_file
from milodo.topology.families import topology as named
from milodo.topology.graph import Topology, numbered, read_graph
from milodo.topology.mixing import Mixing
from milodo.topology.weights import weights

KINDS = ("one-peer", "matchings", "alternating(2)")
"""Names, by example; a list of graphs is one more."""
BY_DEGREE = ("metropolis", "max_degree", "lazy")
"""Weights that every graph has, also one that is not connected."""
DRAWN = 1 << 37
"""Stands in a stream's key for: the matching of an iteration."""


@dataclass(frozen=True)
class Schedule(ABC):
    """The graph of each iteration, a part of one topology, which says who may ever talk to whom. Iterations count from 1.

    All rounds of an iteration have one graph: a method that agrees in one round upon what it uses in the next does so with the
    same neighbours.
    """

    topology: Topology
    """All links there are."""
    pairs: ClassVar[bool] = False
    """Whether every node talks to one other at most."""

    def __post_init__(self) -> None:
        if not self.topology.edges:
            raise InvalidInput(f"{self.topology} has no links, so there is nothing that could change. Remove the schedule.")

    @property
    @abstractmethod
    def period(self) -> int | None:
        """Iterations after which it begins again; None if it never does."""

    @abstractmethod
    def links(self, k: int) -> np.ndarray:
        """Which of topology.edges iteration k uses [edges], as bools: at least one, and the same in every process."""

    def mixing(self, k: int, rule: str | np.ndarray) -> Mixing:
        """W of iteration k, by a rule for the graph it has then; 0 over links that it does not use."""
        if not isinstance(rule, str) or rule not in BY_DEGREE:
            said = quoted(rule) if isinstance(rule, str) else "a matrix"
            raise InvalidInput(
                f"weights = {said} are those of one fixed graph, and {self} changes it. Use one of {', '.join(BY_DEGREE)}."
            )
        up = self.links(k)
        edges = tuple(edge for edge, used in zip(self.topology.edges, up, strict=True) if used)
        w = np.zeros(len(up))
        w[up] = weights(Topology(self.topology.n, edges, str(self)), rule)
        return Pairs(self.topology, w) if self.pairs else Mixing(self.topology, w)

    @property
    def fingerprint(self) -> str:
        """The same for two schedules exactly if their links are; of those that never repeat a hundred iterations count."""
        used = b"".join(np.packbits(self.links(k)).tobytes() for k in range(1, 1 + (self.period or 100)))
        return hashlib.sha256(f"{self.topology.fingerprint} {self.period} ".encode() + used).hexdigest()[:16]

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class OnePeer(Schedule):
    """The one-peer exponential graph (Ying et al. 2021), with links that work both ways: in iteration k node i exchanges with
    i xor 2^t alone, t = k - 1 mod ⌈log₂ n⌉; where there is no such node it rests. With n = 2^τ nodes, τ iterations of W make the
    exact mean. (Theirs is directed: i sends to i + 2^t and hears i - 2^t.)"""

    pairs = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for t in range(self.period):
            for i, j in self._pairs(t):
                if (i, j) not in self._known:
                    n = self.topology.n
                    raise InvalidInput(
                        f"'one-peer' needs the link {i} - {j}, which {self.topology} does not have. Use the topology "
                        f"'exponential({n})', which has all of them."
                    )

    @property
    def period(self) -> int:
        return (self.topology.n - 1).bit_length()

    @cached_property
    def _known(self) -> dict[tuple[int, int], int]:
        return {edge: place for place, edge in enumerate(self.topology.edges)}

    def _pairs(self, t: int) -> list[tuple[int, int]]:
        n = self.topology.n
        return [(i, i | 1 << t) for i in range(n) if not i & 1 << t and i | 1 << t < n]

    def links(self, k: int) -> np.ndarray:
        used = np.zeros(len(self.topology.edges), dtype=bool)
        used[[self._known[pair] for pair in self._pairs((k - 1) % self.period)]] = True
        return used

    def __str__(self) -> str:
        return "one-peer"


@dataclass(frozen=True)
class Matchings(Schedule):
    """In every iteration a random maximal matching: a node talks to at most one neighbour, and no link that is left out joins two
    nodes that talk to nobody. Seed and iteration decide, so that all nodes draw the same."""

    seed: int = 0
    pairs = True

    @property
    def period(self) -> None:
        return None

    def links(self, k: int) -> np.ndarray:
        edges, taken = self.topology.edges, set[int]()
        used = np.zeros(len(edges), dtype=bool)
        for place in np.random.default_rng([self.seed, DRAWN, k]).permutation(len(edges)):
            i, j = edges[place]
            if i not in taken and j not in taken:
                used[place] = True
                taken |= {i, j}
        return used

    def __str__(self) -> str:
        return "matchings"


@dataclass(frozen=True)
class Alternating(Schedule):
    """So many subgraphs in turn, which share no link and leave none out; each node's links are spread over them evenly."""

    parts: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if whole("alternating", self.parts, least=1) > max(self.part) + 1:
            raise InvalidInput(
                f"'alternating({self.parts})': the links of {self.topology} fill no more than {max(self.part) + 1} subgraphs. "
                "Ask for fewer."
            )

    @property
    def period(self) -> int:
        return self.parts

    @cached_property
    def part(self) -> np.ndarray:
        """Of each edge: the one in which its ends have the fewest links so far, and then all nodes have."""
        counts = np.zeros((self.topology.n, self.parts), dtype=int)
        found = np.zeros(len(self.topology.edges), dtype=int)
        for place, (i, j) in enumerate(self.topology.edges):
            found[place] = np.lexsort((counts.sum(0), counts[i] + counts[j]))[0]
            counts[[i, j], found[place]] += 1
        return found

    def links(self, k: int) -> np.ndarray:
        return self.part == (k - 1) % self.parts

    def __str__(self) -> str:
        return f"alternating({self.parts})"


@dataclass(frozen=True)
class Graphs(Schedule):
    """These graphs in turn, each a part of the topology; together they join all nodes."""

    graphs: tuple[tuple[tuple[int, int], ...], ...]
    """Edges (i, j), i < j, of each."""
    names: tuple[str, ...] = field(compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        known = set(self.topology.edges)
        for edges, name in zip(self.graphs, self.names, strict=True):
            if not edges:
                raise InvalidInput(f"schedule: {name} has no links. Leave it out.")
            if others := sorted(set(edges) - known):
                i, j = others[0]
                raise InvalidInput(
                    f"schedule: {name} has a link {i} - {j}, which {self.topology} has not. The topology must have every link "
                    "that is ever used."
                )
        union = nx.Graph([edge for edges in self.graphs for edge in edges])
        if len(union) < self.topology.n or not nx.is_connected(union):
            raise InvalidInput("schedule: all its graphs together do not join the nodes, so they can never agree. Add links.")

    @property
    def period(self) -> int:
        return len(self.graphs)

    def links(self, k: int) -> np.ndarray:
        used = set(self.graphs[(k - 1) % self.period])
        return np.array([edge in used for edge in self.topology.edges])

    def __str__(self) -> str:
        return shortened(" then ".join(self.names))


@dataclass(frozen=True, eq=False)
class Pairs(Mixing):
    """W where every node talks to one other at most: I - W has the eigenvalue 2w for each pair, and 0 for all else."""

    @cached_property
    def _extremes(self) -> tuple[float, float]:
        high = 2 * float(self.w.max())
        return (high if self.topology.n == 2 else 0.0), high


@dataclass(frozen=True, eq=False)
class Changing(Mixing):
    """What stands for W where there is no one W: whoever asks for its eigenvalues is told so."""

    schedule: Schedule

    @cached_property
    def eigenvalues(self) -> np.ndarray:
        raise InvalidInput(
            f"the graph changes with the iteration ({self.schedule}), so there is no one W whose eigenvalues could be known, and "
            "this needs them. Give the parameters, or use a method that does without, e.g. accelerated-ed."
        )

    @cached_property
    def _extremes(self) -> tuple[float, float]:
        values = self.eigenvalues
        return float(values[0]), float(values[-1])


def schedule(said: str | Sequence[str] | Schedule, graph: Topology, seed: int = 0) -> Schedule:
    """'one-peer', 'matchings', 'alternating(2)', or a list of graphs by name or file.

    >>> schedule("one-peer", named("exponential(8)")).period
    3
    """
    if isinstance(said, Schedule):
        if said.topology != graph:
            raise InvalidInput(f"a schedule of {said.topology} does not suit {graph}. Make one of this graph.")
        return said
    if isinstance(said, str):
        if said == "one-peer":
            return OnePeer(graph)
        if said == "matchings":
            return Matchings(graph, seed)
        if parts := re.fullmatch(r"alternating\((\d{1,9})\)", said):
            return Alternating(graph, int(parts[1]))
        raise unknown("schedule", said, KINDS)
    if not isinstance(said, list | tuple) or not said or not all(isinstance(word, str) for word in said):
        raise InvalidInput(f"schedule is {quoted(said)}, but it must be one of {', '.join(KINDS)}, or a list of graphs.")
    return Graphs(graph, tuple(_edges(said, graph)), tuple(Path(word).name if is_file(word) else word for word in said))


def _edges(said: Sequence[str], graph: Topology) -> list[tuple[tuple[int, int], ...]]:
    """Of each graph, in the numbers of the topology."""
    read = {word: nx.Graph(read_graph(word)) for word in said if is_file(word)}
    number = _numbers(nx.compose_all(list(read.values())), graph.n) if read else {}
    found = []
    for word in said:
        pairs = [(number[i], number[j]) for i, j in read[word].edges] if word in read else named(word).edges
        found.append(tuple(sorted((min(pair), max(pair)) for pair in pairs)))
    return found


def _numbers(union: nx.Graph, n: int) -> dict[Any, int]:
    """Nodes of files: their names are the nodes' numbers, or all nodes have one, and they count in sorted order."""
    names = dict(zip(union.nodes, numbered(union).nodes, strict=True))
    if all(isinstance(name, int) and name < n for name in names.values()):
        return names
    if len(names) != n:
        raise InvalidInput(
            f"schedule: its files name {len(names)} nodes, and the topology has {n}. Call them 0 to {n - 1}, or name all of them."
        )
    order = {name: place for place, name in enumerate(sorted(names.values()))}
    return {node: order[name] for node, name in names.items()}
