"""Topologies by name: ring(10), grid(3x3), erdos_renyi(10,0.4,seed=1), ..."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import networkx as nx

from milodo.errors import InvalidInput, quoted, unknown
from milodo.files import is_file
from milodo.topology.graph import Topology


def ring(n: int) -> nx.Graph:
    """Node i talks to i - 1 and i + 1."""
    return nx.cycle_graph(n) if n > 2 else nx.path_graph(n)


def path(n: int) -> nx.Graph:
    """A ring with one link cut."""
    return nx.path_graph(n)


def star(n: int) -> nx.Graph:
    """Node 0 talks to everybody, the others only to node 0."""
    return nx.star_graph(n - 1)


def complete(n: int) -> nx.Graph:
    """Everybody talks to everybody."""
    return nx.complete_graph(n)


def tree(n: int) -> nx.Graph:
    """The balanced binary tree: node i talks to its parent (i - 1) // 2 and its children."""
    return nx.full_rary_tree(2, n)


def grid(rows: int, columns: int) -> nx.Graph:
    """A rows x columns lattice."""
    return nx.grid_2d_graph(rows, columns)


def torus(rows: int, columns: int) -> nx.Graph:
    """A lattice whose borders are joined."""
    if min(rows, columns) < 3:
        raise InvalidInput(
            f"torus({rows}x{columns}): joined borders need at least 3 rows and 3 columns. Use grid({rows}x{columns})."
        )
    return nx.grid_2d_graph(rows, columns, periodic=True)


def exponential(n: int) -> nx.Graph:
    """Undirected: node i talks to i ± 2^k (mod n) for every 2^k < n."""
    return nx.circulant_graph(n, [2**k for k in range(n.bit_length()) if 2**k < n])


def hypercube(k: int) -> nx.Graph:
    """2^k nodes; neighbours differ in one bit."""
    graph = nx.Graph()
    graph.add_nodes_from(range(2**k))
    graph.add_edges_from((i, i ^ (1 << bit)) for i in range(2**k) for bit in range(k))
    return graph


def regular(n: int, degree: int, *, seed: int = 0) -> nx.Graph:
    """A random graph in which every node has the same degree; connected and reproducible."""
    if degree >= n or (n * degree) % 2 or degree < 1:
        raise InvalidInput(f"regular({n},{degree}): needs 1 <= degree < n and n * degree even.")
    return _connected(lambda s: nx.random_regular_graph(degree, n, seed=s), f"regular({n},{degree})", seed)


def erdos_renyi(n: int, p: float, *, seed: int = 0) -> nx.Graph:
    """Each link exists with probability p; drawn again until connected, reproducibly."""
    if not 0 < p <= 1:
        raise InvalidInput(f"erdos_renyi({n},{p}): the probability must lie in (0, 1].")
    if n * (n - 1) / 2 > MOST_PAIRS:
        raise InvalidInput(f"erdos_renyi({n},{p}): more than {MOST_PAIRS} pairs of nodes to draw. Ask for fewer nodes.")
    alone = n * (1 - p) ** (n - 1)
    if alone > 20:
        raise InvalidInput(
            f"erdos_renyi({n},{p}): about {alone:.0f} nodes would have no neighbour, so it will not be connected. "
            f"Use a probability above {math.log(n) / n:.2g}."
        )
    return _connected(lambda s: nx.gnp_random_graph(n, p, seed=s), f"erdos_renyi({n},{p})", seed)


DRAWS = 1000
"""How often a random family is drawn again before we say that it will not become connected."""


def _connected(draw: Callable[[int], nx.Graph], name: str, seed: int) -> nx.Graph:
    for attempt in range(DRAWS):
        graph = draw(seed + attempt * 1_000_003)
        if nx.is_connected(graph):
            return graph
    raise InvalidInput(f"{name}: none of {DRAWS} draws was connected. Use more edges.")


GRAPHS: dict[str, Callable[..., nx.Graph]] = {
    f.__name__: f for f in (ring, path, star, complete, tree, grid, torus, exponential, hypercube, regular, erdos_renyi)
}

EXAMPLES = (
    "ring(10)", "path(6)", "star(8)", "complete(5)", "tree(10)", "grid(3x3)", "torus(4x4)", "exponential(10)",
    "hypercube(3)", "regular(20,4,seed=1)", "erdos_renyi(10,0.4,seed=1)",
)  # fmt: skip
"""One name of every family: what the help shows and what the laws run over."""

LARGEST = 100_000
"""Nodes; a larger number in a name is taken for a slip."""
MOST_LINKS = 2_000_000
"""More would take gigabytes."""
MOST_PAIRS = 200_000_000
"""Of nodes, each of which erdos_renyi draws: half a minute."""
LONGEST_NAME = 100
"""Characters."""


def topology(name: str | Topology | nx.Graph | Path) -> Topology:
    """A Topology from a name, a networkx graph, a file, or itself.

    >>> topology("grid(3x3)").diameter
    4
    """
    if isinstance(name, Topology):
        return name
    if isinstance(name, nx.Graph):
        return Topology.from_graph(name)
    if not isinstance(name, str | Path):
        raise InvalidInput(
            f"cannot read the topology {quoted(name)}. Give a name such as 'ring(10)', a file's path, or a networkx graph."
        )
    if isinstance(name, Path) or is_file(name):
        return Topology.from_file(name)
    match = re.fullmatch(r"\s*([a-z_]\w*)\s*\(([^()]*)\)\s*", name, re.IGNORECASE)
    if not match or len(name) > LONGEST_NAME:
        if "(" not in name and ("/" in name or "." in name):
            return Topology.from_file(name)
        raise InvalidInput(
            f"cannot read the topology {quoted(name)}. Write a name such as {', '.join(EXAMPLES[:6])}, or a file's path."
        )
    family, written = match[1].lower(), match[2]
    if family not in GRAPHS:
        raise unknown("topology", family, GRAPHS)
    name = "".join(name.split()).lower()
    sizes, options = _arguments(name, written)
    if any(size < 1 for size in sizes if isinstance(size, int)):
        raise InvalidInput(f"{name}: sizes must be at least 1.")
    if _nodes(family, sizes) > LARGEST:
        raise InvalidInput(f"{name}: more than {LARGEST} nodes. Ask for a smaller graph.")
    if not _takes(family, sizes, options):
        example = next(e for e in EXAMPLES if e.startswith(family + "("))
        raise InvalidInput(f"{name}: wrong arguments. Write it like {example}.")
    if _links(family, sizes) > MOST_LINKS:
        raise InvalidInput(f"{name}: more than {MOST_LINKS} links. Ask for a smaller graph, or one with fewer of them.")
    return Topology.from_graph(GRAPHS[family](*sizes, **options), name)


def _takes(family: str, sizes: list[int | float], options: dict[str, int]) -> bool:
    """Whether these are a family's arguments; nothing but a probability is a fraction."""
    try:
        signature(GRAPHS[family]).bind(*sizes, **options)
    except TypeError:
        return False
    return all(isinstance(size, int) for size in (sizes[:1] if family == "erdos_renyi" else sizes))


def _nodes(family: str, sizes: list[int | float]) -> float:
    """How many nodes a name asks for, before they are made."""
    if family in ("grid", "torus"):
        return math.prod(sizes)
    if family == "hypercube":
        return 2.0 ** min(sizes[0], 64) if sizes else 0
    return max(sizes, default=0)


def _links(family: str, sizes: list[int | float]) -> float:
    """About how many links a name asks for, where they may be many more than nodes."""
    n, *rest = sizes
    if family == "complete":
        return n * (n - 1) / 2
    if family == "erdos_renyi":
        return n * (n - 1) / 2 * rest[0]
    return n * rest[0] / 2 if family == "regular" else 0


def _arguments(name: str, written: str) -> tuple[list[int | float], dict[str, int]]:
    """'3x3' -> [3, 3]; '20,4,seed=1' -> [20, 4], {'seed': 1}."""
    sizes: list[int | float] = []
    options: dict[str, int] = {}
    for word in filter(None, (w.strip() for w in written.split(","))):
        try:
            if "=" in word:
                key, value = (part.strip() for part in word.split("=", 1))
                options[key] = int(value)
            elif re.fullmatch(r"\d+\s*[xX]\s*\d+", word):
                sizes += [int(part) for part in re.split("[xX]", word)]
            else:
                sizes.append(int(word) if re.fullmatch(r"-?\d+", word) else float(word))
        except ValueError as error:
            raise InvalidInput(f"{name}: {quoted(word)} is not a number.") from error
    return sizes, options
