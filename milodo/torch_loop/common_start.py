"""Before the first step: which graph there is, whether all nodes want the same, and from where they begin."""

from __future__ import annotations

import hashlib
import json

import networkx as nx
import torch

from milodo.errors import InvalidInput
from milodo.network import TreeObserver
from milodo.runtime.group import Among
from milodo.topology import GRAPHS, Topology, topology
from milodo.torch_loop.flat import Floats


def graph_of(graph: str | Topology | nx.Graph, processes: int) -> Topology:
    """A family's name is that of as many nodes as there are processes."""
    found = topology(f"{graph}({processes})" if isinstance(graph, str) and graph in GRAPHS else graph)
    if found.n != processes:
        raise InvalidInput(
            f"{found} has {found.n} nodes, but {processes} processes were started, and each is one node. Start {found.n}, or "
            f"use a graph of {processes}."
        )
    return found


def agreed(group: Among, observer: TreeObserver, facts: dict[str, str]) -> None:
    """Refuses processes that differ in what must be the same."""
    group.agree(facts)
    number = int.from_bytes(hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()[:5], "big")
    own = torch.tensor([float(number), float(number) ** 2 % 1e9], dtype=torch.float64)
    if not torch.equal(observer.total(own), own * observer.n):
        raise InvalidInput(f"this node and another differ in one of {', '.join(facts)}. Start all with the same loop.")


def same_start(observer: TreeObserver, node: int, everything: Floats) -> None:
    """Weights, frozen ones too, and buffers of node 0 at all nodes: they come down a spanning tree of neighbours."""
    own = everything.read()
    everything.write(observer.total(own if node == 0 else torch.zeros_like(own)))
