"""Links that fail and messages that are short: what they may not break, and what they cost."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from milodo.algorithms import ProxED
from milodo.errors import InvalidInput
from milodo.learned import MiLoDo
from milodo.loop import iterate
from milodo.metrics import consensus_error, mean_point
from milodo.network import Outage, StackedNetwork, StackedObserver, degraded, message_format
from milodo.network.consensus import maximum, roughly_maximum
from milodo.problems import Lasso, optimum
from milodo.topology import EXAMPLES, topology

sys.path.insert(0, str(Path(__file__).parent.parent))
from disturb import disturbed

ROUNDING = 1e-11
OBSERVER = StackedObserver()
KINDS = {
    "lossy": {"outage": 0.4},
    "float16": {"messages": "float16"},
    "top": {"messages": "top-40%"},
    "both": {"outage": 0.4, "messages": "bfloat16"},
}


def make(graph, **options):
    return degraded(StackedNetwork(graph), **options)


def learned(graph, gamma=0.1, every=1):
    """MiLoDo's rules with networks that look at their input."""
    torch.manual_seed(0)
    return disturbed(MiLoDo(graph, every=every).double(), gamma)


@torch.no_grad()
def last(method, problem, net, count, look=None):
    for k, state in enumerate(iterate(method, problem, net)):
        if look:
            look(state)
        if k == count:
            return state
    raise AssertionError


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", EXAMPLES)
def test_differences_stay_antisymmetric_and_sums_stay_what_they_were(graph, kind):
    net = make(graph, **KINDS[kind])
    torch.manual_seed(0)
    x = torch.randn(2, net.n, 11, dtype=torch.float64)
    arc = {arc: k for k, arc in enumerate(net.arcs)}
    back = [arc[j, i] for i, j in net.arcs]
    for _ in range(5):
        d = net.diff(x)
        assert torch.equal(d, -d[:, back])
        assert float(net.lap(x).sum(-2).abs().max()) < 1e-13 * 11
        e = net.both(torch.rand(2, len(net.arcs), 11, dtype=torch.float64))
        assert torch.equal(e, e[:, back])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", ["ring(6)", "star(5)", "grid(2x3)"])
def test_dual_sums_stay_zero(graph, kind):
    problem, net = Lasso(topology(graph).n, 8, 20, 0.1).sample([0]), make(graph, **KINDS[kind])

    def look(state):
        assert float(state.y.sum(-2).abs().max()) < ROUNDING * max(1.0, float(state.y.abs().max()))

    last(learned(graph), problem, net, 60, look)


@pytest.mark.parametrize("p", [0.3, 0.6])
@pytest.mark.parametrize("which", ["prox-ed", "milodo", "milodo, networks in each 5th iteration"])
def test_the_optimum_is_reached_although_links_fail(which, p):
    graph = "ring(6)"
    problem, net = Lasso(6, 8, 40, 0.1).sample([0, 1]), make(graph, outage=p)
    method = ProxED(gamma=0.2) if which == "prox-ed" else learned(graph, every=5 if "5th" in which else 1)
    x = last(method, problem, net, 1500).x
    best = optimum(problem)
    assert float(best.certificate.max()) < 1e-13
    gap = problem.objective(mean_point(x, OBSERVER), OBSERVER) - best.value
    assert float(gap.abs().max()) < 1e-10
    assert float(consensus_error(x, OBSERVER).max()) < 1e-6
    arcs = len(net.arcs)
    assert abs(net.traffic.messages / (net.traffic.rounds * arcs) - (1 - p)) < 0.02  # what is down is not counted


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("graph", ["path(30)", "tree(31)", "ring(40)", "star(9)", "complete(6)", "ring(2)"])
def test_everybody_hears_the_largest_number_although_links_fail(graph, seed):
    """γ and σ come from it, and must be the same at all nodes."""
    net = make(graph, outage=0.4, seed=seed)
    x = torch.from_numpy(np.random.default_rng(seed).random((net.n, 3)))
    assert torch.equal(maximum(net, x), x.amax(0).expand(net.n, 3))
    before = net.traffic.snapshot()
    rough, sent = roughly_maximum(net, x), net.traffic - before
    assert sent.bytes == 3 * 2 * sent.messages  # two bytes a number
    assert torch.equal(rough, rough[:1].expand(net.n, 3)) and bool(((x.amax(0) <= rough) & (rough < 1.022 * x.amax(0))).all())
    for power in (-900, 900):  # in units of another power of two it is the same
        assert torch.equal(roughly_maximum(net, x * 2.0**power), rough * 2.0**power)


def test_outages_are_drawn_alike_wherever_they_are_drawn():
    one, two = (StackedNetwork("ring(8)").through(Outage(0.5, seed=3)) for _ in range(2))
    x = torch.randn(8, 2, dtype=torch.float64)
    assert all(torch.equal(one.pull(x), two.pull(x)) for _ in range(10))
    other = StackedNetwork("ring(8)").through(Outage(0.5, seed=4))
    assert any(not torch.equal(one.pull(x), other.pull(x)) for _ in range(10))


def test_a_link_that_is_down_leaves_everybody_with_what_they_have():
    net = StackedNetwork("path(2)").through(Outage(0.999999))
    x = torch.tensor([[1.0], [5.0]], dtype=torch.float64)
    assert torch.equal(net.pull(x), x) and torch.equal(net.mix(x), x) and not net.both(x).any()
    assert (net.traffic.rounds, net.traffic.bytes) == (3, 0)


@pytest.mark.parametrize(("messages", "bytes_each", "floor"), [("float32", 4, 1e-6), ("float16", 2, 1e-2), ("bfloat16", 2, 1e-1)])
def test_short_messages_cost_accuracy_and_save_bytes(messages, bytes_each, floor):
    problem, net = Lasso(6, 10, 40, 0.1).sample([0, 1]), make("ring(6)", messages=messages)
    x = last(ProxED(gamma=0.2), problem, net, 2000).x
    assert net.traffic.bytes == net.traffic.messages * 10 * bytes_each
    error = float((mean_point(x, OBSERVER) - optimum(problem).x).abs().max())
    assert error < floor
    full = last(ProxED(gamma=0.2), problem, make("ring(6)"), 2000).x
    assert error > float((mean_point(full, OBSERVER) - optimum(problem).x).abs().max())


def test_the_largest_coordinates_travel_with_their_places():
    top = message_format("top-30%")
    assert top is not None
    x = torch.tensor([[0.1, -5.0, 0.2, 3.0, 0.0, 0.3, 0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    message = top.encode(x)
    assert message.shape[-1] * message.element_size() == 3 * (8 + 4)
    assert top.decode(message, 10, torch.float64).tolist() == [[0, -5.0, 0, 3.0, 0, 0, 0, 1.0, 0, 0]]
    with pytest.raises(InvalidInput, match="does not exist among 2"):
        top.decode(message, 2, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("messages", ["full", "float32", "float16", "bfloat16", "top-10%", "top-40%", "top-100%"])
@pytest.mark.parametrize("outage", [0.0, 0.4])
def test_counted_bytes_are_those_of_the_message_that_is_sent(messages, outage, dtype):
    """Whatever a message is packed into: a value in its own type, and four bytes for the place of each that is sent alone."""
    net = degraded(StackedNetwork("star(5)", dtype=dtype), outage=outage, messages=messages, seed=1)
    d, value = 11, {"full": dtype, "float32": torch.float32}.get(messages, dtype if "top" in messages else torch.float16)
    sent = max(1, round(float(messages[4:-1]) / 100 * d)) if "top" in messages else d
    each = sent * (torch.finfo(value).bits // 8 + (4 if "top" in messages else 0))
    for _ in range(3):
        net.pull(torch.randn(net.n, d, dtype=dtype))
    assert 0 < net.traffic.messages <= 3 * len(net.arcs)
    assert (net.traffic.floats, net.traffic.bytes) == (net.traffic.messages * sent, net.traffic.messages * each)
    how = message_format(messages)
    if how is not None:
        message = how.encode(torch.randn(1, d, dtype=dtype))
        assert message.numel() * message.element_size() == each


def test_places_beyond_two_bytes_arrive_where_they_belong():
    x = torch.zeros(1, 70_000, dtype=torch.float64)
    x[0, [3, 40_000, 69_999]] = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    top = message_format("top-0.01%")
    assert top is not None and torch.equal(top.decode(top.encode(x), 70_000, torch.float64), x)


def test_what_cannot_be_sent_so_is_refused():
    for name, said in (
        ("float8", "unknown kind of messages"),
        ("top-0%", "above 0"),
        ("top-x%", "above 0"),
        ("top-101%", "above 0"),
    ):
        with pytest.raises(InvalidInput, match=said):
            message_format(name)
    with pytest.raises(InvalidInput, match="at least 0 and below 1"):
        Outage(1.0)


def test_perfect_links_are_what_degraded_gives_unless_asked():
    net = StackedNetwork("ring(4)")
    assert degraded(net) is net
