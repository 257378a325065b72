"""The spectrum of I - W: found only when asked for, and the same from a sparse matrix as from a dense one."""

from __future__ import annotations

import copy

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from milodo.algorithms import PGExtra, ProxATC, ProxED
from milodo.errors import InvalidInput
from milodo.loop import Stop, solve
from milodo.network import StackedNetwork
from milodo.network.consensus import average, exact_steps, maximum
from milodo.problems import Lasso
from milodo.topology import WEIGHTS, Mixing, Topology, topology, weights
from milodo.topology.filters import enough
from milodo.topology.spectrum import FILL, NEAR, extremes

ROUNDED = 1e-9
"""Eigenvalues of a few hundred nodes are known to about 1e-14 / λ."""


def close(found: tuple[float, float], low: float, high: float, rounded: float = ROUNDED) -> bool:
    """Bounds, and close ones: the smallest is never said too large, nor the largest too small."""
    below, above = found[0] / low - 1, found[1] / high - 1
    return -NEAR - rounded <= below <= rounded and -rounded <= above <= NEAR + rounded


@pytest.mark.parametrize("most", [0, FILL], ids=["lanczos", "factorised"])
@pytest.mark.parametrize("rule", sorted(set(WEIGHTS) - {"third"}))
def test_sparse_extremes_are_the_dense_ones(example, rule, most, monkeypatch):
    monkeypatch.setattr("milodo.topology.spectrum.FILL", most)
    graph = topology(example)
    w = weights(graph, rule)
    spectrum = Mixing(graph, w).eigenvalues
    assert close(extremes(graph, w), spectrum[0], spectrum[-1])


LARGER = ["ring(300)", "path(300)", "tree(700)", "grid(7x40)", "star(300)", "regular(300,3)", "erdos_renyi(300,0.03)"]


@pytest.mark.parametrize("most", [0, FILL], ids=["lanczos", "factorised"])
@pytest.mark.parametrize("name", LARGER)
def test_sparse_extremes_are_the_dense_ones_on_larger_graphs(name, most, monkeypatch):
    monkeypatch.setattr("milodo.topology.spectrum.FILL", most)
    graph = topology(name)
    w = weights(graph)
    spectrum = Mixing(graph, w).eigenvalues
    assert close(extremes(graph, w), spectrum[0], spectrum[-1])


@given(st.integers(3, 60), st.integers(0, 10**6))
def test_sparse_extremes_are_the_dense_ones_with_any_weights(n, seed):
    rng = np.random.default_rng(seed)
    tree = nx.Graph([(int(rng.integers(i)), i) for i in range(1, n)])
    tree.add_edges_from((int(i), int(j)) for i, j in rng.integers(n, size=(n // 2, 2)) if i != j)
    graph = Topology.from_graph(tree)
    w = rng.uniform(0.05, 1, len(graph.edges)) / (1 + max(graph.degrees))
    spectrum = Mixing(graph, w).eigenvalues
    assert close(extremes(graph, w), spectrum[0], spectrum[-1])


@pytest.mark.parametrize("n", [5_000, 99_999])
def test_a_long_ring_has_the_extremes_of_its_closed_form(n):
    ring = topology(f"ring({n})")
    mixing = Mixing(ring, weights(ring))
    low, high = (4 / 3 * np.sin(np.pi * k / n) ** 2 for k in (1, n // 2))
    # Entries of I - W are rounded to 1e-16, and eigenvalues of it with them.
    assert close((mixing.low, mixing.high), low, high, rounded=1e-16 / low)
    assert mixing.contraction == 1 - mixing.low


def test_all_eigenvalues_of_a_large_graph_are_refused_with_what_to_use_instead():
    with pytest.raises(InvalidInput, match=r"ring\(3000\), but beyond 2000 nodes .* Use those \(low and high\)"):
        StackedNetwork("ring(3000)").eigenvalues  # noqa: B018


def test_a_network_that_nobody_asks_knows_no_spectrum():
    net = StackedNetwork("ring(20000)")
    problem = Lasso(20000, 3, 2, 0.1).sample([0])
    solve(ProxED.safe(float(problem.lipschitz().max()), net), problem, net, Stop(steps=3, every=3))
    assert set(vars(net.mixing)) == {"topology", "w"}


def test_a_copy_of_a_network_shares_what_is_known():
    net = StackedNetwork("ring(10)")
    other = copy.copy(net)
    assert other.contraction == net.contraction and other.eigenvalues is net.eigenvalues


@pytest.fixture
def large(monkeypatch):
    """As if graphs of more than four nodes were large."""
    for place in ("topology.mixing", "network.consensus"):
        monkeypatch.setattr(f"milodo.{place}.DENSE", 4)


@pytest.mark.parametrize("method", [ProxATC, PGExtra, ProxED])
def test_safe_parameters_are_those_of_the_whole_spectrum(example, method, large, monkeypatch):
    found = method.safe(2.0, StackedNetwork(example, "lazy"))
    monkeypatch.undo()
    assert found.gamma == pytest.approx(method.safe(2.0, StackedNetwork(example, "lazy")).gamma, rel=2 * NEAR)


@pytest.mark.parametrize(("name", "left"), [("fastmix", 0.3), ("chebyshev", 0.5)])
def test_bounds_alone_give_enough_rounds_and_hardly_more(example, name, left, large, monkeypatch):
    K = enough(name, StackedNetwork(example, "lazy").mixing, left)
    monkeypatch.undo()
    known = enough(name, StackedNetwork(example, "lazy").mixing, left)
    assert known <= K <= (3 if name == "fastmix" else 1) * known


def test_nodes_of_a_large_graph_find_their_average_without_the_whole_spectrum(example, large):
    net = StackedNetwork(example)
    x = torch.randn(net.n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert net.n <= 4 or exact_steps(net) is None
    torch.testing.assert_close(average(net, x), x.mean(0).expand(net.n, 3), rtol=1e-12, atol=1e-13)


def test_a_maximum_floods_a_large_graph(example, monkeypatch):
    monkeypatch.setattr("milodo.topology.graph.EXACT", 4)
    net = StackedNetwork(example)
    assert net.topology.diameter <= net.topology.reach <= 2 * net.topology.diameter
    x = torch.randn(net.n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(maximum(net, x), x.amax(0).expand(net.n, 3))
