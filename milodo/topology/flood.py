"""Telling everybody: every node's message to all others along shortest paths, in as many rounds as the graph is wide."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import networkx as nx


@dataclass(frozen=True)
class Flood:
    """What is passed on in each round."""

    rounds: tuple[tuple[tuple[int, int, int], ...], ...]
    """(whose message, who passes it on, who hears it)."""

    @property
    def messages(self) -> int:
        """Each node hears of each other once."""
        return sum(map(len, self.rounds))

    @property
    def longest(self) -> int:
        """Messages that one link carries after another, at most: those of the busiest link of each round."""
        return sum(max(Counter((sender, receiver) for _, sender, receiver in hops).values()) for hops in self.rounds)


def flood(graph: nx.Graph) -> Flood:
    """Of a connected graph on 0 .. n-1. Where several neighbours could pass a message on, the one whose link is least busy does;
    everybody who knows the graph finds the same."""
    distance = dict(nx.all_pairs_shortest_path_length(graph))
    rounds = []
    for t in range(1, max(max(of.values()) for of in distance.values()) + 1):
        hops, busy = [], Counter[tuple[int, int]]()
        for receiver in sorted(graph):
            for source in sorted(graph):
                if distance[source][receiver] == t:
                    nearer = [node for node in sorted(graph[receiver]) if distance[source][node] == t - 1]
                    sender = min(nearer, key=lambda node: (busy[node, receiver], node))
                    busy[sender, receiver] += 1
                    hops.append((source, sender, receiver))
        rounds.append(tuple(hops))
    return Flood(tuple(rounds))
