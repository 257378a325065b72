"""Replicas that are out of step are noticed, brought in step, and do not move where a method ends."""

from __future__ import annotations

import itertools
import json
import math
import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from test_algorithm_laws import start

from milodo.algorithms import METHODS
from milodo.errors import InvalidInput
from milodo.loop import iterate
from milodo.network import Bits, Coded, Levels, Network, StackedNetwork, degraded, replicas
from milodo.network.replica import with_replicas
from milodo.network.wire import lengths
from milodo.problems import Lasso, optimum
from milodo.tree import leaves, rebuilt

sys.path.insert(0, str(Path(__file__).parent.parent))
import real

NEVER = 10**9
FLIPS = 10
EPS = torch.finfo(torch.float64).eps


@pytest.fixture
def often(monkeypatch):
    """Compared so often that short runs are enough."""
    monkeypatch.setattr(replicas, "OF_SUMS", 16)
    monkeypatch.setattr(replicas, "OF_LINKS", 4)


def never(monkeypatch):
    monkeypatch.setattr(replicas, "OF_SUMS", NEVER)
    monkeypatch.setattr(replicas, "OF_LINKS", NEVER)


@torch.no_grad()
def after(steps: int, states):
    """The state after so many iterations."""
    return next(itertools.islice(states, steps, None))


def said(caplog, what: str) -> int:
    return sum(what in record.getMessage() for record in caplog.records)


class Flip:
    """One bit of one message, chosen by a seed."""

    def __init__(self, seed: int) -> None:
        self.drawn, self.message = torch.Generator().manual_seed(seed), -1
        """Messages before the one that is altered; -1 for none."""

    def below(self, bound: int) -> int:
        return int(torch.randint(bound, (1,), generator=self.drawn))

    def __call__(self, came: torch.Tensor, varies: bool) -> torch.Tensor:
        self.message -= 1
        if self.message >= 0:
            return came
        rows = came.clone().flatten(0, -2).contiguous().view(torch.uint8)
        row = self.below(len(rows))
        bit = self.below(8 * (int(lengths(rows[row])) if varies else rows.shape[-1]))
        rows[row, bit // 8] ^= 1 << bit % 8
        return rows.view(came.dtype).reshape(came.shape)


class Packed(StackedNetwork):
    """Messages are packed and unpacked as between processes, and one of them has a bit flipped."""

    flip: Flip
    say, scatter, told = Network.say, Network.scatter, Network.told

    def _carry(self, message, route, up=None, *, varies=False):
        came = super()._carry(message, route, up, varies=varies)
        return self.flip(came, varies) if self.flip.message >= 0 else came


CASES = {
    "tree-apg": ("ring(4)", Coded(Bits(4)), 80),
    "accelerated-ed": ("ring(4)", Coded(Levels(5)), 330),
    "prox-ed": ("ring(4)", Bits(8), 150),
}
"""Graph, messages, and iterations in which an undisturbed run and one that began anew arrive at rounding."""


@lru_cache
def solved(n: int):
    problem = Lasso(n, 4, 20, 0.02).sample([1])
    return problem, optimum(problem).x.unsqueeze(-2)


def ends(name: str, seed: int | None) -> float:
    """How far from the optimum a run ends in which a bit was flipped in one of the first twenty iterations; the very first apart,
    in which Tree-APG adds up L̄, once and for all nodes alike."""
    graph, form, steps = CASES[name]
    net = Packed(graph)
    (problem, best), net.flip = solved(net.n), Flip(seed or 0)
    method = METHODS[name].safe(float(problem.lipschitz().max()), net).compressed(form)
    at, states = 1 + net.flip.below(20), iterate(method, problem, net)
    after(at, states)
    if seed is not None:
        net.flip.message = net.flip.below(method.cost(net, 1).rounds)
    return float((after(steps - at, states).x - best).abs().max())


@pytest.mark.parametrize("name", CASES)
def test_a_flipped_bit_does_not_move_where_a_method_ends(name, often, caplog):
    assert ends(name, None) < 1e-12 and not caplog.records
    told = 0
    for seed in range(30 if name == "prox-ed" else FLIPS):  # in the 29th while a comparison is under way
        caplog.clear()
        try:
            off = ends(name, seed)
        except InvalidInput:  # a message that says nothing valid is refused
            continue
        if math.isfinite(off):  # what is not is seen by who judges the run: it has diverged
            assert off < 1e-12, f"seed {seed}"
            told += said(caplog, "is not what node") > 0
    assert told >= FLIPS // 4  # others altered what is used once, or a message of zeros


def test_without_comparisons_it_does(monkeypatch, caplog):
    never(monkeypatch)
    assert sum(ends("prox-ed", seed) > 1e-9 for seed in range(FLIPS)) >= FLIPS // 3
    assert not caplog.records


def test_a_digest_is_of_the_exact_bits():
    rows = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows[0, 2, 1] = 0.0
    first = replicas.digest(rows)
    assert first.shape == (3, 5, replicas.DIGEST) and len({tuple(row.tolist()) for row in first.flatten(0, 1)}) == 15
    for bit in (0, 1, 51, 52, 62, 63):  # the last one makes -0.0 of 0.0
        other = rows.clone()
        other.view(torch.int64)[0, 2, 1] ^= 1 << bit if bit < 63 else -(1 << 63)
        assert (replicas.digest(other) != first).any(-1).nonzero().tolist() == [[0, 2]]
    assert torch.equal(replicas.digest(rows.mT.contiguous().mT), first)  # however they lie in memory


FAILING = [(name, links) for name in ("prox-ed", "lepdo") for links in ({"outage": 0.3}, {"schedule": "matchings"})]


@pytest.mark.parametrize(("name", "links"), [*((name, {}) for name in METHODS), *FAILING])
def test_where_nothing_is_wrong_comparing_changes_nothing(name, links, build, often, monkeypatch, caplog):
    problem = Lasso(6, 5, 20, 0.1).sample([0, 1])
    method = build(name, problem).compressed(Bits(4))
    x0 = None if METHODS[name].alike else start(problem)  # sums need one point for all nodes

    def run():
        net = degraded(StackedNetwork("ring(6)"), **links)
        return after(190 if links else 50, iterate(method, problem, net, x0=x0)), net.traffic

    one, sent = run()
    never(monkeypatch)
    other, bare = run()
    assert torch.equal(one.x, other.x) and not caplog.records
    more = sent - bare
    assert more.bytes == more.even > 0 and more.rounds > 0


@pytest.mark.parametrize("graph", ["ring(6)", "star(8)", "path(12)", "complete(6)"])
@pytest.mark.parametrize("name", ["tree-apg", "flood-apg", "accelerated-ed"])
def test_comparing_costs_less_than_a_hundredth_of_the_bytes(name, graph, monkeypatch):
    """Of messages about one number, which are as short as any."""
    net = StackedNetwork(graph)
    problem = Lasso(net.n, 1, 5, 0.1).sample([0])
    method = METHODS[name].safe(float(problem.lipschitz().max()), net).compressed(Levels(5))
    steps = replicas.OF_SUMS if method.alike else replicas.every(net) + replicas.spreading(net, 0)

    def run():
        net = StackedNetwork(graph)
        after(steps, iterate(method, problem, net))
        return net.traffic

    sent = run()
    never(monkeypatch)
    bare = run()
    assert 0 < sent.bytes - bare.bytes < 0.01 * bare.bytes
    assert 0 < sent.rounds - bare.rounds < 0.04 * bare.rounds


def tampered(state, off: float):
    """The first replica of what was heard, off by this share of its largest number."""
    slots = list(state.replicas)
    place = next(i for i, slot in enumerate(slots) if slot.received is not None and slot.received.numel())
    heard = slots[place].received.clone()
    row = heard.flatten(0, -2)[0]
    row[row.abs().argmax()] *= 1 + off
    slots[place] = slots[place]._replace(received=heard)
    return state._replace(inner=with_replicas(state.inner, slots))


@pytest.mark.parametrize("name", ["tree-apg", "accelerated-ed", "lepdo"])
def test_rounding_is_mended_and_nobody_begins_anew(name, build, often, caplog):
    problem, net = Lasso(6, 5, 20, 0.1).sample([0, 1]), StackedNetwork("ring(6)")
    method = build(name, problem).compressed(Bits(6))
    state = tampered(after(12, iterate(method, problem, net)), EPS)
    state = after(40, iterate(method, problem, net, after=(12, state)))
    assert said(caplog, "is not what node") == 1 and said(caplog, "in full") == 1 and not said(caplog, "anew")
    caplog.clear()
    after(60, iterate(method, problem, net, after=(state.k, state)))
    assert not caplog.records


def test_nodes_that_hold_different_points_are_brought_to_one(build, often, caplog):
    """As after a total that came down altered: no replica tells of it any more."""
    problem, best = solved(4)
    net, method = StackedNetwork("ring(4)"), build("tree-apg", problem).compressed(Bits(4))
    state = after(12, iterate(method, problem, net))
    x = state.inner.x.clone()
    x[..., 2, :] += 0.3
    state = after(70, iterate(method, problem, net, after=(12, state._replace(x=x, inner=state.inner._replace(x=x)))))
    assert said(caplog, "begin anew") == 1 and float((state.x - best).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("name", "links"),
    [("prox-ed", {"schedule": "one-peer"}), ("lepdo", {"schedule": "alternating(2)"}), ("accelerated-ed", {"outage": 0.2})],
)
def test_where_links_come_and_go_everybody_forgets_and_begins_anew(name, links, build, often, caplog):
    problem, best = solved(4)
    net = degraded(StackedNetwork("exponential(4)" if links.get("schedule") == "one-peer" else "ring(4)"), **links)
    method = build(name, problem).compressed(Bits(8))
    state = tampered(after(30, iterate(method, problem, net)), 0.1)
    state = after(1200, iterate(method, problem, net, after=(30, state)))
    assert said(caplog, "is not what node") and said(caplog, "begin anew") == 1
    assert float((state.x - best).abs().max()) < 1e-12


def test_a_state_between_alarm_and_repair_goes_on_from_a_file(often):
    """What a snapshot keeps: tensors, and words and numbers as JSON has them."""
    problem, net = Lasso(6, 5, 20, 0.1).sample([0]), StackedNetwork("ring(6)")
    method = METHODS["prox-ed"](gamma=0.01).compressed(Bits(6))
    with torch.no_grad():
        state = tampered(after(12, iterate(method, problem, net)), 0.1)
        states = iterate(method, problem, net, after=(12, state))
        state = next(state for state in states if state.alarm)
        parts = leaves(state).items()
        kept = {name: part if isinstance(part, torch.Tensor) else json.loads(json.dumps(part)) for name, part in parts}
        again = iterate(method, problem, net, after=(state.k, rebuilt(state, kept)))
        next(again)
        pairs = list(itertools.islice(zip(states, again, strict=True), 40))
    assert all(one.alarm == other.alarm and torch.equal(one.x, other.x) for one, other in pairs)
    assert {one.alarm for one, _ in pairs} == {0, 1, 2} and pairs[-1][0].alarm == 0


def test_what_is_not_finite_is_not_taken():
    had, came = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    came[1, 2, 0], came[0, 1, 0] = torch.nan, 1.5
    taken, beyond = replicas._finite(came, had)
    assert torch.equal(taken[1, 2], had[1, 2]) and taken[0, 1, 0] == 1.5 and beyond.nonzero().tolist() == [[0, 1, 0]]


def test_real_processes_notice_repair_and_say_it():
    """The bytes of comparisons, like all that is sent, are compared with the simulation's in test_distributed_laws.py."""
    done = real.together([str(Path(__file__).parent / "flipped.py")], 3)
    off = json.loads(done[0].out)
    assert set(off) == {"tree-apg", "flood-apg", "accelerated-ed"} and max(off.values()) < 1e-12
    assert sum(process.err.count("is not what node") for process in done) >= 3
    assert done[0].err.count("begin anew") == 3 and all("begin anew" not in process.err for process in done[1:])
