"""Names, files, seeds, and what is refused."""

from __future__ import annotations

import networkx as nx
import pytest

from milodo.errors import InvalidInput
from milodo.topology import Topology, dense, topology, weights


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (" ring ( 10 ) ", "ring(10)"),
        ("Ring(10)", "ring(10)"),
        ("grid( 3x3 )", "grid(3x3)"),
        ("grid(3, 3)", "grid(3x3)"),
        ("grid(3 x 3)", "grid(3x3)"),
        ("regular( 20 , 4 , seed = 1 )", "regular(20,4,seed=1)"),
    ],
)
def test_blanks_and_capitals_do_not_matter(written, meant):
    assert topology(written) == topology(meant)
    assert " " not in topology(written).name


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("ring(4)", {(0, 1), (1, 2), (2, 3), (0, 3)}),
        ("path(3)", {(0, 1), (1, 2)}),
        ("star(4)", {(0, 1), (0, 2), (0, 3)}),
        ("complete(3)", {(0, 1), (0, 2), (1, 2)}),
        ("tree(6)", {((i - 1) // 2, i) for i in range(1, 6)}),
        ("grid(2x3)", {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)}),
        ("exponential(10)", {tuple(sorted((i, (i + step) % 10))) for i in range(10) for step in (1, 2, 4, 8)}),
        ("hypercube(3)", {(i, j) for i in range(8) for j in range(i) if (i ^ j).bit_count() == 1}),
    ],
)
def test_a_family_has_the_edges_its_definition_says(name, edges):
    assert set(topology(name).edges) == {tuple(sorted(edge)) for edge in edges}


def test_a_torus_looks_the_same_from_every_node():
    torus = topology("torus(4x5)")
    assert torus.n == 20 and set(torus.degrees) == {4} and torus.diameter == 4 // 2 + 5 // 2


@pytest.mark.parametrize(
    "name", ["ring(1)", "path(1)", "star(1)", "complete(1)", "tree(1)", "grid(1x1)", "exponential(1)", "erdos_renyi(1,0.5)"]
)
def test_one_node_is_a_graph(name):
    assert topology(name).n == 1 and topology(name).edges == () and topology(name).arcs == ()


@pytest.mark.parametrize(
    "name", ["ring(2)", "path(2)", "star(2)", "complete(2)", "tree(2)", "grid(1x2)", "exponential(2)", "hypercube(1)"]
)
def test_two_nodes_have_one_link(name):
    assert topology(name).edges == ((0, 1),)


@pytest.mark.parametrize("name", ["erdos_renyi(20,0.3,seed={})", "regular(20,4,seed={})"])
def test_a_seed_names_one_random_graph(name):
    graphs = [topology(name.format(seed)) for seed in range(5)]
    assert graphs == [topology(name.format(seed)) for seed in range(5)]
    assert len({graph.fingerprint for graph in graphs}) == 5


def test_a_sparse_random_graph_is_drawn_again_until_connected():
    for seed in range(20):
        graph = topology(f"erdos_renyi(12,0.15,seed={seed})").graph
        assert nx.is_connected(graph) and len(graph) == 12


def test_a_networkx_graph_and_a_topology_are_taken_as_they_are():
    graph = nx.petersen_graph()
    assert topology(graph) == Topology.from_edges(graph.edges)
    assert topology(topology(graph)) == topology(graph)


def test_an_edge_list_is_read_back(tmp_path, example):
    graph = topology(example)
    file = tmp_path / "links.txt"
    file.write_text("# who talks to whom\n\n" + "".join(f"{i} {j}  # a link\n" for i, j in graph.edges))
    assert topology(file) == topology(str(file)) == graph


def test_an_edge_list_takes_names_and_commas(tmp_path):
    file = tmp_path / "links.csv"
    file.write_text("rome, oslo\nlima,oslo\n")
    graph = Topology.from_file(file)
    assert graph.edges == ((0, 1), (1, 2))  # lima, oslo, rome


def test_graphml_is_read_back(tmp_path, example):
    graph = topology(example)
    nx.write_graphml(graph.graph, tmp_path / "links.graphml")
    assert topology(tmp_path / "links.graphml") == graph


def test_numbered_nodes_are_in_the_order_of_their_numbers_in_every_file(tmp_path):
    # As strings '10' comes before '2'.
    ring = topology("ring(12)")
    nx.write_graphml(ring.graph, tmp_path / "ring.graphml")
    nx.write_edgelist(ring.graph, tmp_path / "ring.txt", data=False)
    assert topology(tmp_path / "ring.txt") == ring
    assert topology(tmp_path / "ring.graphml") == ring


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rng(10)", "unknown topology 'rng'. Did you mean 'ring'?"),
        ("tours(4x4)", "Did you mean 'torus'?"),
        ("zzz(3)", "Known: complete, erdos_renyi"),
        ("ring()", r"wrong arguments. Write it like ring\(10\)"),
        ("ring(10,3)", r"wrong arguments. Write it like ring\(10\)"),
        ("ring(10,seed=1)", "wrong arguments"),
        ("ring(2.5)", "wrong arguments"),
        ("grid(9)", r"wrong arguments. Write it like grid\(3x3\)"),
        ("erdos_renyi(10)", "wrong arguments"),
        ("erdos_renyi(10,0.4,sed=1)", "wrong arguments"),
        ("ring(ten)", "'ten' is not a number"),
        ("regular(20,4,seed=one)", "'seed=one' is not a number"),
        ("torus(2x2)", r"at least 3 rows and 3 columns. Use grid\(2x2\)"),
        ("ring(0)", "sizes must be at least 1"),
        ("grid(0x3)", "sizes must be at least 1"),
        ("ring(-4)", "sizes must be at least 1"),
        ("regular(5,3)", "n \\* degree even"),
        ("regular(4,4)", "1 <= degree < n"),
        ("erdos_renyi(10,0.0)", r"must lie in \(0, 1\]"),
        ("erdos_renyi(10,1.5)", r"must lie in \(0, 1\]"),
        ("erdos_renyi(40,0.0001)", "will not be connected"),
        ("ring", "cannot read the topology 'ring'"),
        ("ring(3", "cannot read the topology"),
        ("", "cannot read the topology ''"),
        ("no/such/file.txt", "no graph file 'no/such/file.txt'"),
    ],
)
def test_a_name_that_cannot_be_is_refused_in_one_sentence(name, sentence):
    with pytest.raises(InvalidInput, match=sentence) as error:
        topology(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["ring(1000000000)", "hypercube(60)", "grid(99999x99999)", "torus(99999x99999)"])
def test_a_graph_too_large_to_be_meant_is_refused_before_it_is_built(name, monkeypatch):
    def build(*args, **kwargs):
        raise AssertionError(f"{name} was about to be built")

    for builder in ("cycle_graph", "grid_2d_graph", "Graph.add_nodes_from"):
        monkeypatch.setattr(f"milodo.topology.families.nx.{builder}", build)
    with pytest.raises(InvalidInput, match="more than 100000 nodes"):
        topology(name)


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (nx.DiGraph([(0, 1), (1, 0)]), r"directed, but .* Pass graph.to_undirected\(\)"),
        (nx.Graph([(0, 1), (2, 3)]), r"disconnected \(2 parts; one of them is \{0, 1\}\)"),
        (nx.Graph([(0, 1), (1, 1)]), "node 1 has an edge to itself"),
        (nx.Graph(), "has no nodes"),
    ],
)
def test_a_graph_whose_nodes_cannot_agree_is_refused(graph, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        topology(graph)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0 1\n1 2 0.5\n", "line 2: expected two node names, found '1 2 0.5'"),
        ("0\n", "line 1: expected two node names, found '0'"),
        ("0 1\n2 3\n", "disconnected"),
        ("0 1\n1 1\n", "edge to itself"),
        ("# nothing\n", "no nodes"),
    ],
)
def test_an_edge_list_that_is_none_is_refused_with_its_line(tmp_path, text, sentence):
    file = tmp_path / "links.txt"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=sentence):
        topology(file)


def test_a_file_that_is_no_graph_is_refused(tmp_path):
    (tmp_path / "a.graphml").write_text("<graphml><not closed")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InvalidInput, match="not a readable GraphML file"):
        topology(tmp_path / "a.graphml")
    with pytest.raises(InvalidInput, match="not a text file"):
        topology(tmp_path / "b.txt")


def test_a_directed_graphml_file_is_refused(tmp_path):
    nx.write_graphml(nx.DiGraph([(0, 1)]), tmp_path / "a.graphml")
    with pytest.raises(InvalidInput, match=r"a\.graphml: the graph is directed"):
        topology(tmp_path / "a.graphml")


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    file = tmp_path / "links.txt"
    file.write_text("0 1\n1 2\n2 0\n", encoding="utf-8-sig")
    assert topology(file) == topology("ring(3)")


def test_two_spellings_of_a_number_are_two_names(tmp_path):
    file = tmp_path / "links.txt"
    file.write_text("1 01\n01 2\n", encoding="utf-8")
    assert Topology.from_file(file).edges == ((0, 1), (0, 2))  # 01, 1, 2


@pytest.mark.parametrize("name", ["x" * 300, "y/" + "x" * 300, "x\0y", "x\0/y.txt", f"ring({'0' * 200}5)", "\ud800"])
def test_a_name_that_no_file_can_have_is_refused_in_one_short_sentence(name):
    with pytest.raises(InvalidInput, match=r"cannot read the topology|no graph file") as error:
        topology(name)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("name", ["exponential(2.5)", "star(2.5)", "tree(nan)", "hypercube(0.5)", "erdos_renyi(4.5,0.5)"])
def test_half_a_node_is_refused(name):
    with pytest.raises(InvalidInput, match=r"wrong arguments. Write it like"):
        topology(name)


@pytest.mark.parametrize(
    "name", ["complete(100000)", "regular(100000,5000)", "erdos_renyi(50000,0.5)", "erdos_renyi(50000,0.001)"]
)
def test_more_links_than_fit_are_refused_before_they_are_made(name, monkeypatch):
    def build(*args, **kwargs):
        raise AssertionError(f"{name} was about to be built")

    for builder in ("complete_graph", "random_regular_graph", "gnp_random_graph"):
        monkeypatch.setattr(f"milodo.topology.families.nx.{builder}", build)
    with pytest.raises(InvalidInput, match=r"more than 2000000 links|more than 200000000 pairs"):
        topology(name)


@pytest.mark.parametrize("make", [lambda graph: weights(graph, "fastest"), lambda graph: dense(graph, weights(graph))])
def test_a_matrix_that_cannot_fit_is_refused_before_it_is_made(make, monkeypatch):
    monkeypatch.setattr("milodo.memory.free_memory", lambda: 10**9)
    with pytest.raises(InvalidInput, match=r"ring\(40000\) would need .* of memory, but this machine has 1 GB free"):
        make(topology("ring(40000)"))
