"""Channels are values in a stated order: every verb's messages go through them, are counted, and can be learned through."""

from __future__ import annotations

import itertools

import pytest
import torch

from milodo.errors import InvalidInput
from milodo.network import Bits, Cast, Coded, Levels, Outage, StackedNetwork, TopK, degraded

CHANNELS = {"outage": Outage(0.4, seed=2), "cast": Cast(torch.float16), "top": TopK(0.4)}
FORMATS = [*map(Cast, (torch.float32, torch.float16, torch.bfloat16)), *map(TopK, (0.1, 0.4, 1.0)), *map(Bits, range(2, 11))]
FORMATS += map(Levels, (3, 5, 7, 255))
FORMATS += map(Coded, (Levels(5), Bits(4), Bits(9)))
D = 7
NODE_VERBS = {
    "pull": lambda net, x: net.pull(x),
    "diff": lambda net, x: net.diff(x),
    "lap": lambda net, x: net.lap(x),
    "mix": lambda net, x: net.mix(x),
}
EDGE_VERBS = {"swap": lambda net, e: net.swap(e), "both": lambda net, e: net.both(e)}
VERBS = {**NODE_VERBS, **EDGE_VERBS}


def message(net, verb, seed=0, **options):
    rows = net.n if verb in NODE_VERBS else len(net.arcs)
    torch.manual_seed(seed)
    return torch.randn(2, rows, D, dtype=torch.float64, **options)


@pytest.mark.parametrize("graph", ["ring(6)", "star(5)", "grid(2x3)"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("form", ["cast", "top"])
def test_the_order_in_which_channels_are_given_does_not_matter(graph, verb, form):
    """Also not whether they come at once or one after the other."""
    a, b = CHANNELS["outage"], CHANNELS[form]
    bare = [StackedNetwork(graph) for _ in range(4)]
    nets = [bare[0].through(a, b), bare[1].through(b, a), bare[2].through(a).through(b), bare[3].through(b).through(a)]
    x = message(bare[0], verb)
    for k in (0, 3):
        first, *others = [VERBS[verb](net.at_step(k), x) for net in nets]
        assert all(torch.equal(first, other) for other in others)
    assert all(vars(net.traffic) == vars(nets[0].traffic) for net in nets)
    assert bare[0].outage is None and bare[0].format is None  # a network with channels is another one


def test_a_second_of_a_kind_is_refused_and_so_is_what_is_no_channel():
    net = StackedNetwork("ring(4)")
    for pair in itertools.product((Cast(torch.float16), TopK(0.5)), repeat=2):
        with pytest.raises(InvalidInput, match="is another format"):
            net.through(*pair)
    with pytest.raises(InvalidInput, match="is another outage"):
        degraded(net, outage=0.1).through(Outage(0.2))
    with pytest.raises(InvalidInput, match="is no channel"):
        net.through(0.3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_what_is_understood_is_what_is_decoded(form, dtype):
    x = torch.randn(3, 5, 11, dtype=dtype, generator=torch.Generator().manual_seed(0))
    message = form.encode(x)
    assert torch.equal(form.understood(x), form.decode(message, 11, dtype))
    assert form.size(11, dtype) == message.shape[-1] * message.element_size() and message.dtype == form.wire(dtype)


@pytest.mark.parametrize("form", [*map(Bits, range(2, 11)), *map(Levels, range(3, 16, 2))], ids=str)
def test_symbols_are_off_by_half_a_level_at_most_in_any_unit(form):
    x = torch.randn(4, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(form.most))
    found = form.decode(form.encode(x), 33, torch.float64)
    level = 2 * x.abs().amax(-1, keepdim=True) / (form.levels if isinstance(form, Levels) else 2 * form.most)
    assert bool(((found - x).abs() <= 0.5001 * level).all())
    for power in (-1000, 1000):
        assert torch.equal(form.decode(form.encode(x * 2.0**power), 33, torch.float64), found * 2.0**power)
    assert not form.decode(form.encode(0 * x), 33, torch.float64).any()
    assert form.decode(form.encode(x / 0), 33, torch.float64).isnan().all()  # divergence is seen at both ends


@pytest.mark.parametrize("kind", [*CHANNELS, "outage and cast", "outage and top", "none"])
@pytest.mark.parametrize("graph", ["ring(6)", "star(5)"])
@pytest.mark.parametrize("verb", VERBS)
def test_learning_through_channels_sees_what_running_does(graph, verb, kind):
    net = StackedNetwork(graph).through(*(CHANNELS[word] for word in kind.split(" and ") if word in CHANNELS))
    x = message(net, verb)
    ran = VERBS[verb](net.at_step(2), x)
    sent = net.traffic.snapshot()
    learned = VERBS[verb](net.at_step(2), x.clone().requires_grad_())
    assert learned.requires_grad and torch.equal(ran, learned.detach())
    assert vars(net.traffic - sent) == vars(sent)  # and counts the same


@pytest.mark.parametrize("verb", VERBS)
def test_gradients_pass_links_that_fail(verb):
    """With given links every verb is linear: its gradient is exact."""
    net = StackedNetwork("star(4)").through(Outage(0.5))
    x = message(net, verb, requires_grad=True)
    assert torch.autograd.gradcheck(lambda part: VERBS[verb](net.at_step(5), part), (x,))


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("verb", VERBS)
def test_gradients_pass_short_messages_as_if_what_arrives_were_what_was_sent(form, verb):
    """Rounding has no slope; a coordinate that is left out has none either."""
    whole, short = StackedNetwork("star(5)"), StackedNetwork("star(5)").through(form)
    x = message(whole, verb, requires_grad=True)
    sparse = form.sparse and verb in NODE_VERBS  # weights, which travel by arc, are never made sparse
    arrives = x * (form.understood(x.detach()) != 0) if sparse else x
    expected = x - whole.lap(arrives) if verb == "mix" else VERBS[verb](whole, arrives)  # a node keeps what it has itself
    found = VERBS[verb](short, x)
    along = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ours, theirs = (torch.autograd.grad((along * result).sum(), x)[0] for result in (found, expected))
    rounded = torch.finfo(form.to).eps if isinstance(form, Cast) else 1e-14  # a cast is undone in the shorter type
    torch.testing.assert_close(ours, theirs, rtol=0, atol=10 * rounded)


@pytest.mark.parametrize("verb", [*VERBS, "total"])
def test_every_verb_sends_what_the_format_makes_of_it(verb):
    whole, short = StackedNetwork("grid(2x3)"), StackedNetwork("grid(2x3)").through(Cast(torch.float16))
    for net in (whole, short):
        if verb == "total":
            net.total(torch.ones(net.n, D, dtype=torch.float64))
        else:
            VERBS[verb](net, message(net, verb))
    assert short.traffic.bytes * 4 == whole.traffic.bytes > 0
    assert short.traffic.floats == whole.traffic.floats and short.traffic.messages == whole.traffic.messages


def test_links_are_those_of_the_iteration_and_of_the_round_within_it():
    net = degraded(StackedNetwork("ring(12)"), outage=0.5, seed=1)
    x = torch.arange(12.0, dtype=torch.float64).unsqueeze(-1)

    def rounds(k):
        view = net.at_step(k)
        return [view.pull(x) for _ in range(3)]

    first = rounds(7)
    rounds(8), rounds(2)  # whatever was said before
    again = rounds(7)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], rounds(8)[0])
    assert net.traffic.rounds == 15 and net.round == 0  # views count for all, and leave the network as it was
    perfect = StackedNetwork("ring(12)")
    assert perfect.at_step(3) is perfect


def test_a_maximum_over_neighbours_is_that_of_each_node():
    for graph in ("ring(5)", "star(5)", "erdos_renyi(9,0.4,seed=2)", "ring(1)"):
        net = StackedNetwork(graph)
        e = torch.randn(2, len(net.arcs), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        found = net.max(e)
        for i in range(net.n):
            rows = [k for k, (source, _) in enumerate(net.arcs) if source == i]
            expected = e[:, rows].amax(1) if rows else torch.full((2, 3), -torch.inf, dtype=torch.float64)
            assert torch.equal(found[:, i], expected)
