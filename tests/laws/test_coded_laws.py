"""Messages in a prefix code: nothing more is lost, lengths are those that are counted, and what is damaged is refused."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from milodo.algorithms import ProxED, TreeAPG
from milodo.algorithms.flood_apg import FloodAPG
from milodo.errors import InvalidInput
from milodo.loop import iterate
from milodo.network import Bits, Cast, Coded, Levels, Outage, StackedNetwork, Traffic, message_format
from milodo.network.exchange import Gossip
from milodo.network.prefix import BOOKS, WINDOW, books, read, together, written
from milodo.network.wire import encoded, lengths
from milodo.problems import Lasso

BASES = (3, 5, 7, 11, 15, 63, 255, 1023)
FORMS = [Coded(form) for form in (Levels(3), Levels(5), Levels(11), Bits(2), Bits(4), Bits(6), Bits(10))]
D = 31


def laplace(scale, rows=40):
    """Messages whose largest coordinate is `1/scale` times the usual one, about."""
    u = torch.rand(rows, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) - 0.5
    x = -u.sign() * (1 - 2 * u.abs()).log()
    x[:, 0] = 10 / scale
    return x


@pytest.mark.parametrize("base", BASES)
def test_every_bit_string_is_read_in_one_way(base):
    for book in books(base):
        assert sum(2.0 ** -float(length) for length in book.lengths) == 1  # Kraft: complete, nothing wasted
        words = [format(code, f"0{length}b") for code, length in zip(book.codes, book.lengths, strict=True)]
        words.sort()
        assert not any(later.startswith(word) for word, later in itertools.pairwise(words))
        assert int(book.lengths.max()) <= WINDOW
    assert len(books(base)) == BOOKS


@pytest.mark.parametrize("base", BASES)
def test_machines_that_round_differently_make_the_same_codes(base, monkeypatch):
    expected = books(base)
    rng, own = np.random.default_rng(0), np.exp
    monkeypatch.setattr(np, "exp", lambda x: own(x) * (1 + 2e-16 * rng.integers(-1, 2, np.shape(x))))
    for book, other in zip(expected, books.__wrapped__(base), strict=True):
        assert (book.codes == other.codes).all() and (book.lengths == other.lengths).all()


@pytest.mark.parametrize("base", (3, 5, 15, 255))
def test_a_code_takes_little_more_than_the_entropy(base):
    magnitude = np.abs(np.arange(base) - base // 2)
    for scale in (0.2, 0.5, 1.0, base / 8):
        share = np.exp(-magnitude / scale)
        share /= share.sum()
        every = np.ones(1)
        for _ in range(together(base)):
            every = np.outer(share, every).ravel()
        entropy = -(every * np.log2(every.clip(1e-300))).sum()
        best = min(float(every @ book.lengths) for book in books(base))
        assert entropy <= best <= max(1.2 * entropy, entropy + 0.25, 1.25)  # a block takes a bit at least


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 3.0, 10.0, 100.0])
def test_lengths_are_those_that_are_counted(form, scale):
    x = laplace(scale)
    message = form.encode(x)
    assert torch.equal(lengths(message), form.sizes(x))
    assert int(form.sizes(x).max()) <= form.size(D, x.dtype) == message.shape[-1]
    assert torch.equal(form.decode(message, D, x.dtype), form.form.understood(x))  # nothing is lost that was not lost before


def test_no_message_is_much_longer_than_a_plain_one():
    symbols = torch.arange(300, dtype=torch.float64) % 5 - 2  # all levels alike
    form = Coded(Levels(5))
    assert int(form.sizes(symbols)) <= Levels(5).size(300, torch.float64) + 2
    assert int(lengths(form.encode(symbols.unsqueeze(0)))) == int(form.sizes(symbols))
    assert form.size(300, torch.float64) <= Levels(5).size(300, torch.float64) + 2
    rare = torch.zeros(300, dtype=torch.float64)
    rare[7] = 1.0
    assert int(form.sizes(rare)) < 0.25 * Levels(5).size(300, torch.float64)


@given(st.integers(0, BOOKS - 1), st.lists(st.integers(0, 124), min_size=1, max_size=40), st.integers(0, 3))
def test_what_is_written_is_read(number, blocks, zeros):
    message = np.frombuffer(written(np.array(blocks), number, 5) + bytes(zeros), dtype=np.uint8)
    assert read(message, len(blocks), 5).tolist() == blocks


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=30), st.integers(1, 30))
def test_damaged_messages_are_refused_or_make_sense(message, count):
    try:
        blocks = read(np.frombuffer(message, dtype=np.uint8), count, 5)
    except InvalidInput as error:
        assert "both ends" in str(error)
        return
    assert len(blocks) == count and blocks.min() >= 0 and blocks.max() < 125
    assert written(blocks, message[0] >> 4, 5) == message.rstrip(b"\0")


def test_numbers_that_must_arrive_as_they_are_come_first():
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    form = Coded(Levels(5))
    message = encoded(form, x, exact=1)
    assert torch.equal(message[:, :8].contiguous().view(torch.float64), x[:, -1:])
    assert torch.equal(lengths(message), 8 + form.sizes(x[:, :-1]))


@pytest.mark.parametrize("method", [ProxED(gamma=0.02), TreeAPG(), FloodAPG()], ids=lambda method: method.label)
def test_the_trajectory_is_that_without_the_code_and_every_instance_pays_for_its_own_words(method):
    family, steps = Lasso(5, 40, 4, 0.1), 6

    def run(seeds, form):
        net = StackedNetwork("ring(5)")
        *_, state = itertools.islice(iterate(method.compressed(form), family.sample(seeds), net), steps)
        return state.x, net.traffic

    plain, _ = run([0, 1], Levels(7))
    x, traffic = run([0, 1], Coded(Levels(7)))
    assert torch.equal(x, plain)
    each = traffic.of((2,))
    assert traffic.bytes == round(float(each.double().mean())) and int(each[0]) != int(each[1])
    for k in range(2):
        _, alone = run([k], Coded(Levels(7)))
        assert alone.bytes == int(each[k])


def test_what_a_link_that_is_down_does_not_carry_is_not_counted():
    net = StackedNetwork("ring(6)").through(Outage(0.5, seed=1))
    x = torch.randn(6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    form = Coded(Levels(5))
    Gossip(form)(x, Gossip(form).init(x, net), net)
    up = net.outage.up(6, 0, 0)
    each = [int(form.sizes(x[i])) for i, j in net.arcs if up[net.topology.edges.index((min(i, j), max(i, j)))]]
    assert 0 < len(each) < 12 and net.traffic.bytes == sum(each)


def test_counts_go_on_from_a_file_and_nothing_else_is_taken_for_counts():
    traffic = Traffic(3, 4, 5, 6)
    traffic.weigh(torch.tensor([7, 9]))
    traffic.weigh(torch.tensor(11))
    again = Traffic()
    again.restore(json.loads(json.dumps(traffic.to_json())))
    assert again.bytes == traffic.bytes == 6 + 8 + 11 and again.of((2,)).tolist() == traffic.of((2,)).tolist() == [24, 26]
    kept = traffic.to_json()
    for wrong in ({}, [], {**kept, "even": "x"}, {**kept, "varying": [[[3], [1, 2]]]}, {**kept, "more": 1}):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            again.restore(wrong)
        assert again.to_json() == kept


def test_names_and_what_cannot_be_coded():
    assert message_format("5-level-coded") == Coded(Levels(5)) and message_format("4-bit-coded") == Coded(Bits(4))
    assert str(Coded(Levels(5))) == "5 levels, coded"
    for name in ("float16-coded", "full-coded", "top-10%-coded", "5-level-coded-coded"):
        with pytest.raises(InvalidInput, match="only bits and levels are coded"):
            message_format(name)
    with pytest.raises(InvalidInput, match="no symbols to code"):
        Coded(Cast(torch.float16))
    assert math.isinf(books(5)[-1].mean)
