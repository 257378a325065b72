"""What holds for every registered graph, and for any connected graph at all."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from milodo.topology import EXAMPLES, GRAPHS, Topology, topology


@st.composite
def connected_graphs(draw) -> nx.Graph:
    """A random tree with random links added."""
    n = draw(st.integers(1, 12))
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((draw(st.integers(0, i - 1)), i) for i in range(1, n))
    extra = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=10))
    graph.add_edges_from((i, j) for i, j in extra if i != j)
    return graph


def test_every_family_has_an_example():
    assert sorted(name.split("(")[0] for name in EXAMPLES) == sorted(GRAPHS)


def test_every_example_is_connected(example):
    graph = topology(example)
    reached, new = {0}, {0}
    while new:
        new = {j for i in new for j in graph.neighbours(i)} - reached
        reached |= new
    assert reached == set(range(graph.n))


def test_edges_arcs_neighbours_and_degrees_tell_one_story(example):
    graph = topology(example)
    assert list(graph.edges) == sorted({(i, j) for i, j in graph.edges if i < j})
    assert list(graph.arcs) == sorted({(i, j) for i in range(graph.n) for j in graph.neighbours(i)})
    assert {(min(arc), max(arc)) for arc in graph.arcs} == set(graph.edges)
    assert graph.degrees == tuple(len(graph.neighbours(i)) for i in range(graph.n))


def test_a_name_gives_itself_back(example):
    assert str(topology(example)) == example
    assert topology(str(topology(example))) == topology(example)
    assert topology(topology(example)) is not None and topology(topology(example)) == topology(example)


def test_fingerprints_of_examples_differ():
    assert len({topology(name).fingerprint for name in EXAMPLES}) == len(EXAMPLES)


@given(connected_graphs(), connected_graphs())
def test_fingerprints_are_equal_exactly_if_the_edges_are(one, other):
    a, b = Topology.from_graph(one, "a"), Topology.from_graph(other, "b")
    same = nx.utils.graphs_equal(one, other)
    assert (a.fingerprint == b.fingerprint) == same == (a == b)
    assert a.fingerprint == Topology.from_graph(nx.Graph(list(one.edges)) if one.edges else one, "c").fingerprint


@given(connected_graphs())
def test_nodes_that_are_already_numbered_keep_their_numbers(graph):
    assert nx.utils.graphs_equal(Topology.from_graph(graph).graph, graph)


@given(connected_graphs(), st.randoms(use_true_random=False))
def test_nodes_with_names_are_numbered_in_their_order(graph, random):
    names = random.sample([f"{letter}{k}" for letter in "xyz" for k in range(9)], len(graph))
    named = nx.relabel_nodes(graph, dict(enumerate(names)))
    topology = Topology.from_graph(named)
    back = nx.relabel_nodes(topology.graph, dict(enumerate(sorted(names))))
    assert nx.utils.graphs_equal(back, named)


@given(connected_graphs())
def test_nodes_that_cannot_be_sorted_keep_the_order_given(graph):
    mixed = nx.relabel_nodes(graph, {i: i if i % 2 else (i, "even") for i in graph})
    assert nx.is_isomorphic(Topology.from_graph(mixed).graph, graph)


@given(connected_graphs())
def test_parallel_links_count_once(graph):
    twice = nx.MultiGraph(graph)
    twice.add_edges_from(graph.edges)
    assert Topology.from_graph(twice) == Topology.from_graph(graph)


@given(connected_graphs())
def test_the_diameter_is_the_longest_shortest_path(graph):
    steps = nx.floyd_warshall_numpy(graph)
    assert Topology.from_graph(graph).diameter == int(steps.max())
