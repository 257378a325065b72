"""Every rule on every graph gives a symmetric, stochastic matrix that mixes; the fastest is the fastest."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from milodo.errors import InvalidInput
from milodo.topology import EXAMPLES, WEIGHTS, Mixing, Topology, dense, topology, weights

RULES = sorted(set(WEIGHTS) - {"third"})
SOLVED = 1.1e-7
"""`fastest` stops when its λ is within 1e-7 of the least; a tenth more for an inexact centre."""


def contraction(graph: Topology, w: np.ndarray) -> float:
    return Mixing(graph, w).contraction


@pytest.fixture(
    scope="module", params=[(rule, name) for rule in RULES for name in EXAMPLES] + [("third", "ring(10)")], ids="-".join
)
def W(request: pytest.FixtureRequest) -> np.ndarray:
    rule, name = request.param
    return dense(topology(name), weights(topology(name), rule))


def test_the_mixing_matrix_is_symmetric_and_stochastic(W):
    assert (W == W.T).all()
    np.testing.assert_allclose(W.sum(1), 1, rtol=0, atol=1e-15 * len(W))
    assert W.min() >= -1e-15  # 1 - Σ_j w_ij is rounded where it should be 0


def test_the_mixing_matrix_mixes(W):
    # Powers of W bring every start to the average; λ < 1 in other words, and by another way than eigenvalues.
    far = np.linalg.matrix_power(W, 2**14)
    np.testing.assert_allclose(far, 1 / len(W), rtol=0, atol=1e-9)  # squaring 14 times multiplies rounding by about 2^14


@pytest.mark.parametrize("rule", RULES)
def test_weights_lie_on_edges_and_contraction_is_the_second_eigenvalue(example, rule):
    graph = topology(example)
    w = weights(graph, rule)
    W = dense(graph, w)
    off_diagonal = W - np.diag(np.diag(W))
    assert set(zip(*np.nonzero(off_diagonal), strict=True)) <= set(graph.arcs)
    moduli = np.sort(np.abs(np.linalg.eigvals(W)))
    # eigvals is the general solver: accurate to about 1e-14 on a symmetric matrix
    assert contraction(graph, w) == pytest.approx(moduli[-2], abs=1e-12)


@pytest.mark.parametrize("name", [e for e in EXAMPLES if not e.startswith("ring")] + ["ring(1)", "ring(2)"])
def test_one_third_is_refused_off_the_ring(name):
    with pytest.raises(InvalidInput, match=r"'third' are for a ring.*Use 'metropolis'"):
        weights(topology(name), "third")


@pytest.mark.parametrize("n", [3, 4, 7, 10])
def test_metropolis_on_a_ring_is_one_third(n):
    ring = topology(f"ring({n})")
    assert (weights(ring, "metropolis") == weights(ring, "third")).all()


def test_lazy_weights_leave_no_negative_eigenvalue(example):
    graph = topology(example)
    assert np.linalg.eigvalsh(dense(graph, weights(graph, "lazy"))).min() > -1e-14


@pytest.mark.parametrize("rule", RULES)
def test_fastest_is_never_slower(example, rule):
    graph = topology(example)
    assert contraction(graph, weights(graph, "fastest")) <= contraction(graph, weights(graph, rule)) + SOLVED


def cycle(n: int) -> float:
    """One weight on all edges by symmetry; it balances 1 - 2w(1 - cos θ) at the two ends of the spectrum."""
    theta = 2 * np.pi * np.arange(1, n // 2 + 1) / n
    slow, fast = 1 - np.cos(theta[0]), 1 - np.cos(theta[-1])
    return (fast - slow) / (fast + slow)


CLOSED_FORMS = {
    **{f"ring({n})": cycle(n) for n in (3, 4, 5, 8, 11)},
    **{f"path({n})": np.cos(np.pi / n) for n in (2, 3, 6, 9)},  # w = 1/2 (Boyd, Diaconis, Sun, Xiao 2006)
    **{f"complete({n})": 0.0 for n in (2, 5)},
    **{f"hypercube({k})": (k - 1) / (k + 1) for k in (2, 3)},  # w = 1/(k+1) balances 1 - 2w and 1 - 2kw
    **{f"star({n})": 1 - 1 / (n - 1) for n in (4, 8)},  # the centre gives all it has: w = 1/(n-1)
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_fastest_finds_the_closed_form(name):
    graph = topology(name)
    assert contraction(graph, weights(graph, "fastest")) == pytest.approx(CLOSED_FORMS[name], abs=SOLVED)


def test_fastest_on_a_path_is_one_half():
    # λ is sharp in w at the optimum (a largest and a smallest eigenvalue meet), so 1e-7 in λ is about 1e-6 in w.
    np.testing.assert_allclose(weights(topology("path(6)"), "fastest"), 0.5, rtol=0, atol=1e-5)


def test_no_feasible_change_beats_fastest(example):
    graph = topology(example)
    best = weights(graph, "fastest")
    rng = np.random.default_rng(0)
    incidence = np.abs(nx.incidence_matrix(graph.graph, edgelist=graph.edges).toarray())
    for scale in (1e-5, 1e-3, 1e-1):
        for _ in range(50):
            w = np.maximum(best + scale * rng.standard_normal(len(best)), 0)
            w /= max(1, (incidence @ w).max())
            assert contraction(graph, w) >= contraction(graph, best) - SOLVED


def test_a_matrix_of_ones_own_is_read_back(example):
    graph = topology(example)
    w = weights(graph, "metropolis")
    assert (weights(graph, dense(graph, w)) == w).all()


RING = topology("ring(4)")
GOOD = dense(RING, weights(RING, "metropolis"))
ASYMMETRIC, FAR, INFINITE = GOOD.copy(), GOOD.copy(), GOOD.copy()
ASYMMETRIC[0, 1] += 0.1
FAR[[0, 2, 0, 2], [2, 0, 0, 2]] += [0.1, 0.1, -0.1, -0.1]
INFINITE[0, 0] = np.nan


@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        (np.eye(3), r"\(3, 3\), but ring\(4\) has 4 nodes"),
        (ASYMMETRIC, "symmetric with rows that sum to 1"),
        (GOOD / 2, "symmetric with rows that sum to 1"),
        (INFINITE, "must be finite"),
        (FAR, r"weight on a pair that ring\(4\) does not join"),
        (np.eye(4), "does not mix"),
        (dense(RING, np.full(4, 0.5)), "does not mix"),
    ],
)
def test_a_matrix_that_cannot_mix_is_refused(matrix, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        weights(RING, matrix)


def test_an_unknown_rule_names_the_nearest():
    with pytest.raises(InvalidInput, match=r"unknown weights 'metropols'\. Did you mean 'metropolis'\?"):
        weights(RING, "metropols")


def test_a_single_node_needs_no_weights():
    alone = Topology(1, (), "one")
    for rule in RULES:
        assert weights(alone, rule).shape == (0,) and contraction(alone, weights(alone, rule)) == 0
