"""Messages that are right on average, and Prox-LEAD, which sends them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from milodo.algorithms import ProxED, ProxLEAD
from milodo.errors import InvalidInput
from milodo.loop import Stop, iterate, solve
from milodo.network import Cast, Dithered, StackedNetwork, Traffic, degraded
from milodo.network.digits import pack_digits, unpack_digits
from milodo.problems import Lasso, optimum
from milodo.status import Status


@given(b=st.integers(2, 10), d=st.integers(0, 70), seed=st.integers(0, 99))
def test_digits_are_packed_into_little_more_than_their_bits(b, d, seed):
    base = 2**b + 1
    symbols = torch.randint(0, base, (3, 2, d), generator=torch.Generator().manual_seed(seed))
    symbols[0] = base - 1
    packed = pack_digits(symbols, base)
    assert torch.equal(unpack_digits(packed, base, d), symbols)
    assert packed.dtype == torch.uint8 and packed.shape[-1] <= math.ceil(1.15 * d * math.log2(base) / 8)


@pytest.mark.parametrize("b", range(2, 11))
def test_what_is_heard_is_what_was_said_on_average(b):
    """Over u evenly spaced in [0, 1) the mean of ⌊t + u⌋ is t, up to half a space."""
    x, draws = torch.randn(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(b)), 1000
    us = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    heard = torch.stack([Dithered(b, u.expand_as(x)).understood(x) for u in us])
    # The scale is rounded up to 16 bits: symbols are of x/s, and s times them is x again.
    level = x.abs().amax(-1, keepdim=True) * 2.0 ** (1 - b) * (1 + 2.0**-14)
    assert bool(((heard.mean(0) - x).abs() <= level / draws).all())
    assert bool(((heard - x).abs() <= level).all())
    assert bool((heard.flatten(1).std(0) > 0).any()) and Dithered(b, us[0]).understood(0 * x).any() == 0


def test_the_largest_coordinate_is_never_silent():
    """Else something else than rest would be a fixed point."""
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        x, u = torch.randn(30, 5, dtype=torch.float64, generator=generator), torch.rand(30, 5, generator=generator)
        assert Dithered(2, u).understood(x).abs().amax(-1).ge(x.abs().amax(-1) / 2).all()


def test_chance_belongs_to_a_node_and_an_iteration():
    whole, part = StackedNetwork("ring(6)"), StackedNetwork("ring(6)")
    part.nodes = (2, 5)
    assert torch.equal(whole.dither(7, 3)[[2, 5]], part.dither(7, 3))
    draws = torch.stack([whole.dither(1000, k) for k in range(20)]).flatten(0, 1)
    assert len({tuple(row.tolist()) for row in draws}) == len(draws)
    assert float(draws.min()) >= 0 and float(draws.max()) < 1 and abs(float(draws.mean()) - 0.5) < 0.01


@pytest.fixture
def problem():
    return Lasso(6, 8, 20, 0.1).sample([0, 1])


@pytest.mark.parametrize("graph", ["ring(6)", "star(6)", "erdos_renyi(6,0.5,seed=1)"])
def test_where_nothing_is_lost_prox_lead_is_prox_ed(monkeypatch, problem, graph):
    """Whatever α is: replicas that lag behind lose nothing either."""
    monkeypatch.setattr(ProxLEAD, "codec", lambda *_: Cast(torch.float64))
    gamma = 1 / float(problem.lipschitz().max())
    for alpha in (0.3, 1.0):
        lead = ProxLEAD(eta=gamma, alpha=alpha, sigma=1.0, bits=2)
        runs = (itertools.islice(iterate(m, problem, StackedNetwork(graph)), 30) for m in (lead, ProxED(gamma=gamma)))
        for one, other in zip(*runs, strict=True):
            torch.testing.assert_close(one.x, other.x, rtol=1e-12, atol=1e-12)


def test_two_bits_need_the_iterations_of_prox_ed():
    """On the graph and the shape of the paper's LASSO, a tenth of its unknowns; they send a twentieth of its bytes."""
    problem = Lasso(10, 30, 10, 0.1).sample([0, 1])
    gamma, stop = 1 / float(problem.lipschitz().max()), Stop(steps=20000, tolerance=1e-6)
    runs = [
        solve(method, problem, StackedNetwork("ring(10)"), stop)
        for method in (ProxED(gamma=gamma), ProxLEAD(eta=gamma, alpha=0.5, sigma=1.0, bits=2))
    ]
    assert all(run.status is Status.CONVERGED for run in runs)
    assert runs[1].k <= 1.1 * runs[0].k
    assert runs[1].traffic.bytes <= runs[0].traffic.bytes / 16


@pytest.mark.parametrize("outage", [0.0, 0.3])
def test_replicas_are_equal_at_both_ends_and_duals_sum_to_zero(build, problem, outage):
    net = degraded(StackedNetwork("grid(2x3)"), outage=outage)
    route = net.routes.of_arcs if outage else net.routes.of_nodes
    for state in itertools.islice(iterate(build("prox-lead", problem), problem, net), 30):
        (slot,) = state.replicas
        assert torch.equal(slot.heard, slot.said.index_select(-2, route.rows))
        assert float(state.y.sum(-2).abs().max()) < 1e-12 * (1 + float(state.y.abs().max()))


def test_prox_lead_reaches_the_optimum_although_links_fail(build, problem):
    net = degraded(StackedNetwork("ring(6)"), outage=0.3)
    x = solve(build("prox-lead", problem), problem, net, Stop(steps=2500)).x
    assert float((x - optimum(problem).x.unsqueeze(-2)).norm(dim=-1).max()) < 1e-9


def test_bytes_are_those_of_packed_digits(build, problem):
    net = StackedNetwork("ring(6)")
    solve(build("prox-lead", problem), problem, net, Stop(steps=5))
    size = 4 + math.ceil(8 * math.log2(5) / 8)  # a scale, and eight numbers of five values
    assert net.traffic == Traffic(rounds=5, messages=60, floats=480, even=60 * size)


@pytest.mark.parametrize("bits", [1, 11])
def test_bits_that_are_not_packed_are_refused(build, problem, bits):
    with pytest.raises(InvalidInput, match=f"bits is {bits}, but"):
        build("prox-lead", problem, bits=bits)
