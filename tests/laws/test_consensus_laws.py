"""What all nodes learn by talking to their neighbours: right, in as many rounds as it takes, and in none more or fewer."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.stats import binom

from milodo.network import Outage, StackedNetwork, consensus
from milodo.network.consensus import average, average_rounds, exact_steps, maximum, maximum_rounds
from milodo.topology import EXAMPLES, dense, weights

GRAPHS = [*EXAMPLES, "path(2)", "path(17)", "ring(24)", "tree(31)", nx.lollipop_graph(5, 4)]
GRADUAL = ["path(17)", "path(30)", "ring(41)", nx.lollipop_graph(6, 9)]
"""Graphs of so many different eigenvalues that the exact average is not the cheapest."""


@pytest.mark.parametrize("graph", GRAPHS, ids=str)
def test_the_largest_number_reaches_everybody_from_anywhere_in_as_many_rounds_as_the_graph_is_wide(graph):
    net = StackedNetwork(graph)
    assert bool((maximum(net, torch.eye(net.n, dtype=torch.float64)) == 1).all())
    assert net.traffic.rounds == maximum_rounds(net) == nx.diameter(net.topology.graph)


@pytest.mark.parametrize("p", [0.1, 0.4, 0.7])
def test_where_links_fail_there_are_rounds_enough_for_a_word_to_cross_the_graph(p):
    for graph in ("path(2)", "star(8)", "path(17)", "ring(24)", "grid(3x3)", "path(200)"):
        net = StackedNetwork(graph).through(Outage(p))
        late = binom.cdf(net.topology.reach - 1, maximum_rounds(net), 1 - p)  # fewer links crossed than there are
        assert late < 2e-4
        assert maximum_rounds(net) < 2 * (net.topology.reach + 25) / (1 - p)  # and not many more


@pytest.mark.parametrize("graph", GRAPHS, ids=str)
def test_an_average_leaves_nothing_but_rounding_in_the_fewest_rounds(graph):
    net = StackedNetwork(graph)
    found = average(net, torch.eye(net.n, dtype=torch.float64))
    torch.testing.assert_close(found, torch.full_like(found, 1 / net.n), rtol=0, atol=1e-13)
    assert net.traffic.rounds == average_rounds(net) > 0
    # Chebyshev's polynomial of degree K leaves 1/T_K(1/λ) of disagreement.
    needed = 1 if net.contraction < 1e-12 else math.ceil(math.acosh(1 / consensus.ROUNDING) / math.acosh(1 / net.contraction))
    steps = exact_steps(net)
    assert average_rounds(net) == needed if steps is None else min(needed, len(steps))


@pytest.mark.parametrize("left", [1e-1, 1e-2, 1e-4])
@pytest.mark.parametrize("graph", GRADUAL, ids=str)
def test_a_gradual_average_is_chebyshevs_polynomial_of_the_mixing_matrix(graph, left, monkeypatch):
    """Where fewer rounds are enough than there are eigenvalues: T_K(W/λ) / T_K(1/λ), by its values at the eigenvalues."""
    monkeypatch.setattr(consensus, "ROUNDING", left)
    net = StackedNetwork(graph)
    K, lam = average_rounds(net), net.contraction
    steps = exact_steps(net)
    assert K > 2 and (steps is None or len(steps) > K)
    values, vectors = np.linalg.eigh(dense(net.topology, weights(net.topology)))
    T = lambda w: np.where(abs(w) <= 1, np.cos(K * np.arccos(np.clip(w, -1, 1))), np.cosh(K * np.arccosh(np.maximum(abs(w), 1))))  # noqa: E731
    expected = vectors @ np.diag(T(values / lam) / T(1 / lam)) @ vectors.T
    found = average(net, torch.eye(net.n, dtype=torch.float64))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    others = np.linalg.eigvalsh(found.numpy() - 1 / net.n)
    assert abs(others).max() == pytest.approx(1 / T(1 / lam), rel=1e-6) and abs(others).max() <= left
