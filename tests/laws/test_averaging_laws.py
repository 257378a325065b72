"""Every exchange averages by the matrix it says it does, costs what it says, and leaves consensus alone in any precision."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch

from milodo.errors import InvalidInput
from milodo.network import Bits, Outage, StackedNetwork
from milodo.network.exchange import EXCHANGES, Polynomial, named
from milodo.network.requirement import Requirement
from milodo.topology import weights
from milodo.topology.filters import FILTERS, different, enough, polynomial
from milodo.topology.mixing import dense

NEARLY = nx.complement(nx.path_graph(9))
"""Nearly complete: its eigenvalues are alike, and yet not one."""
GRAPHS = (
    "ring(9)",
    "star(7)",
    "complete(5)",
    "tree(10)",
    "grid(3x4)",
    "path(6)",
    "ring(1)",
    "ring(2)",
    nx.lollipop_graph(5, 4),
    NEARLY,
)
ROUNDS = (1, 2, 3, 6)


@pytest.fixture(params=GRAPHS, ids=str)
def net(request):
    return StackedNetwork(request.param)


def of(name, K):
    exchange = named(name)
    return replace(exchange, K=K) if isinstance(exchange, Polynomial) else exchange


def averaged(A, x, net):
    return A.average(x, None, net)[0]


def residual(A, x, net):
    return A.residual(x, None, net)[0]


def matrix(A, net):
    return averaged(A, torch.eye(net.n, dtype=torch.float64), net)


@pytest.mark.parametrize("K", ROUNDS)
@pytest.mark.parametrize("name", EXCHANGES)
def test_it_is_symmetric_keeps_the_mean_and_leaves_what_it_says(name, K, net):
    A = of(name, K)
    found, cost = matrix(A, net), A.cost(net, net.n)
    assert (net.traffic.rounds, net.traffic.messages) == (cost.rounds, cost.messages)
    assert (net.traffic.floats, net.traffic.bytes) == (cost.numbers, cost.bytes)
    torch.testing.assert_close(found, found.mT, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.sum(0), torch.ones(net.n).double(), rtol=0, atol=1e-12)
    others = torch.linalg.eigvalsh(found - 1 / net.n)
    assert float(others.abs().max()) == pytest.approx(A.contraction(net.mixing), abs=1e-8)  # no more, and no less
    if name not in ("gossip", "fastmix"):
        assert float(others.min()) > -1e-7  # what Accelerated Exact Diffusion needs
    x = torch.randn(net.n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(x - residual(A, x, net), averaged(A, x, net), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", EXCHANGES)
def test_agreement_stays_in_single_precision(name):
    net = StackedNetwork("tree(31)", dtype=torch.float32)
    x = torch.full((31, 2), 0.1)
    left = residual(of(name, 6), x, net)
    # A sum of 31 numbers divided by 31 is the number up to rounding; polynomials carry differences alone, which are zero.
    assert not left.any() if name not in ("tree", "all-gather") else float(left.abs().max()) < 1e-7


@pytest.mark.parametrize("K", ROUNDS)
def test_chebyshev_is_chebyshevs(K):
    net = StackedNetwork("grid(3x4)")
    A, low, high = Polynomial("chebyshev", K), net.mixing.low, net.mixing.high
    values, vectors = torch.linalg.eigh(torch.eye(net.n).double() - torch.from_numpy(dense(net.topology, weights(net.topology))))
    u = (high + low - 2 * values) / (high - low)
    T = torch.where(u > 1, torch.cosh(K * torch.acosh(u.clamp(min=1))), torch.cos(K * torch.acos(u.clamp(-1, 1))))
    q = 1 / np.cosh(K * np.arccosh((high + low) / (high - low)))
    expected = vectors @ torch.diag(q / (1 + q) * (1 + T)) @ vectors.mT
    torch.testing.assert_close(matrix(A, net), expected, rtol=0, atol=1e-9)


def test_what_is_fitted_leaves_no_more_than_chebyshev_and_nothing_where_rounds_reach(net):
    for K in range(1, len(different(net.mixing)) + 2 if net.n > 1 else 3):
        fitted = polynomial("minimax", net.mixing, K)
        assert fitted.contraction <= polynomial("chebyshev", net.mixing, K).contraction + 1e-12
        if net.n > 1 and len(different(net.mixing)) <= K:
            assert fitted.contraction == 0
            torch.testing.assert_close(
                matrix(Polynomial("minimax", K), net),
                torch.full((net.n, net.n), 1 / net.n, dtype=torch.float64),
                rtol=0,
                atol=1e-9,
            )


@pytest.mark.parametrize("name", EXCHANGES)
def test_rounding_is_amplified_by_no_more_than_it_says(name, net):
    """Messages of b bits are off by a known share of their largest number."""
    if net.n == 1:
        return
    x = torch.randn(net.n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for K in (1, 3):
        A = of(name, K)
        form, largest = Bits(10), _Largest(10)
        averaged(A, x, net.through(largest))
        off = (averaged(A, x, net.through(form)) - averaged(A, x, net)).norm()
        # One number a message is its own scale and arrives exactly, up to 16 bits of it.
        assert off <= A.noise_gain(net.mixing) * largest.seen * np.sqrt(net.n) * 2**-15


class _Largest(Bits):
    """Remembers the largest number that was sent."""

    def __init__(self, b):
        object.__setattr__(self, "b", b)
        object.__setattr__(self, "seen", 0.0)

    def understood(self, x):
        object.__setattr__(self, "seen", max(self.seen, float(x.abs().max())))
        return super().understood(x)


@pytest.mark.parametrize("name", EXCHANGES)
def test_lost_messages_keep_the_mean_or_are_refused(name):
    net = StackedNetwork("grid(3x4)").through(Outage(0.4)).at_step(3)
    x = torch.randn(net.n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    A = of(name, 3)
    if Requirement.RELIABLE_LINKS in A.requires:
        for refused in (lambda: A.init(x, net), lambda: averaged(A, x, net)):
            with pytest.raises(InvalidInput, match="a lost message breaks a sum"):
                refused()
        return
    torch.testing.assert_close(residual(A, x, net).sum(0), torch.zeros(2).double(), rtol=0, atol=1e-12)


def test_enough_is_the_first_that_is(net):
    for kind in FILTERS:
        K = enough(kind, net.mixing, 0.4)
        assert polynomial(kind, net.mixing, K).contraction <= 0.4
        assert K == 1 or polynomial(kind, net.mixing, K - 1).contraction > 0.4


def test_what_is_no_exchange_is_refused():
    net = StackedNetwork("ring(4)")
    with pytest.raises(InvalidInput, match="Did you mean 'minimax'"):
        named("minmax")
    with pytest.raises(InvalidInput, match="Did you mean 'chebyshev'"):
        Polynomial("chebishev")
    with pytest.raises(InvalidInput, match="at least degree one"):
        Polynomial("minimax", 0).contraction(net.mixing)
