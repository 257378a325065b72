"""Processes that round differently send the same sequence of messages, in everything that is registered.

Every rank is a thread (rounding.py) whose sums, products and transcendental functions are off by a unit in the last place, at
places of its own. A rank that decides by such a number sends a message that its neighbour does not expect, as the header tells,
or leaves it waiting: then this fails.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest
import torch
from asked import asked
from rounding import HERE, Nudged, nudged_functions, ranks
from trajectories import FEW, methods

from milodo.algorithms import METHODS, AcceleratedED
from milodo.algorithms.auto import Facts, Link, choose
from milodo.algorithms.tree_apg import dot
from milodo.bench.recorder import Limits, Recorder, record
from milodo.fit.model import fit_model
from milodo.fit.path import Choice, fit_path
from milodo.fit.pooled import LOSSES, scaling, total_of
from milodo.fit.task import LINKS, Task
from milodo.learned import LEARNED
from milodo.loop import Stop, solve
from milodo.network import FORMATS, Bits, Coded, Levels, StackedNetwork, degraded
from milodo.network.consensus import average_rounds, exact_steps
from milodo.network.frames import KINDS, OBSERVED_DOWN, OBSERVED_UP
from milodo.problems import Lasso
from milodo.problems.regularizers import REGULARIZERS, Rescaled

sys.path.insert(0, str(Path(__file__).parent.parent))

GRAPH, D = "ring(3)", 7
BY_NAME = methods(GRAPH)


LOCAL = {
    "solvers/fista.py": {"fista"}, "solvers/prox_newton.py": {"_aim", "sparse_quadratic", "value"},
    "network/base.py": {"_count"}, "network/coded.py": {"_packed"}, "network/frames.py": {"trimmed", "untrimmed"},
    "network/traffic.py": {"<genexpr>"}, "problems/base.py": {"check_finite"},
    "bench/recorder.py": {"look"}, "fit/model.py": {"report"}, "fit/path.py": {"<listcomp>"},
}  # fmt: skip
"""Where a rank may look at numbers of its own: small problems whose solutions are averaged
or kept, lengths, counts, its own data; and, in the last line, what is written down at the end."""


def agree(work, graph=GRAPH, world=0, seeds=(1,), like="all"):
    """What ranks found, where they round differently: all the same, like every number that the package reads to decide by.

    They send what they send where all round alike; `like` says how much of it: all, what methods send (checks of a fit may take
    one step more to be at rounding, in all ranks, and average where x is no longer the same to the bit), or nothing, where clocks
    decide.
    """
    plain = _messages([] if like == "nothing" else ranks(work, graph, world=world), like)
    for seed in seeds:
        runs = ranks(work, graph, world=world, seed=seed)
        assert len({run.exchanges for run in runs}) == 1
        assert all(run.found == runs[0].found for run in runs), [run.found for run in runs]
        for one, *others in zip(*map(_decisive, runs), strict=True):
            assert all(other == one for other in others), (one, *others)
        assert like == "nothing" or _messages(runs, like) == plain
    return runs[0].found


def _messages(runs, like):
    kept = {"all": KINDS, "methods": set(KINDS) - {OBSERVED_UP, OBSERVED_DOWN}, "nothing": ()}[like]
    return [[each for each in run.sent if each.kind in kept] for run in runs]


def _decisive(run):
    return [repr(read) for read in run.read if read.function not in LOCAL.get(read.file, ())]


def solved(method, stop, *, reg=None, lam=0.1, **options):
    def work(net, observer):
        problem = Lasso(net.topology.n, D, 8, lam).sample([0, 1], nodes=net.nodes)
        problem = problem if reg is None else problem.under(reg)
        result = solve(method.at(net.nodes), problem, degraded(net, **options), stop, observer=observer)
        return result.k, result.status, result.objective.tolist()

    return work


def test_nudges_are_units_in_the_last_place_and_leave_whole_numbers_alone():
    x = torch.rand(50, 40, dtype=torch.float64)
    for rounding in (Nudged(0), Nudged(1)):
        with rounding:
            off = x.sum(-1)
            assert torch.equal(x.round().sum(-1), (x.round() @ torch.ones(40, 1, dtype=torch.float64))[:, 0])
        units = (off.view(torch.int64) - x.sum(-1).view(torch.int64)).unique()
        assert units.tolist() == [-1, 0, 1]


@pytest.mark.parametrize("name", [*METHODS, *LEARNED])
def test_every_method_sends_the_same(name):
    stop = Stop(steps=6, tolerance=1e-12, every=3)
    like = "methods" if BY_NAME[name].alike else "all"
    agree(solved(BY_NAME[name], stop, lam=0.0 if name == "base-rules" else 0.1), like=like)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("form", [Bits(4), Coded(Levels(5))], ids=str)
def test_every_kind_of_exchange_sends_the_same_in_short_messages_that_are_remembered(name, form):
    method = BY_NAME[name].compressed(form)
    agree(solved(method, Stop(steps=6, tolerance=1e-12, every=3)), like="methods" if method.alike else "all")


@pytest.mark.parametrize("messages", FORMATS)
def test_every_format_sends_the_same(messages):
    agree(solved(BY_NAME["prox-ed"], Stop(steps=6, every=3), messages=messages))


@pytest.mark.parametrize("name", ["prox-ed", "milodo"])
def test_links_that_fail_carry_the_same(name):
    agree(solved(BY_NAME[name], Stop(steps=8, tolerance=1e-12, every=3), outage=0.3))


@pytest.mark.parametrize("name", FEW)
def test_processes_that_hold_several_nodes_send_the_same(name):
    method = methods("grid(2x3)")[name]
    agree(solved(method, Stop(steps=6, tolerance=1e-12, every=3)), "grid(2x3)", world=3)


REGS = {
    "zero": {}, "l1": {"lam": 0.1}, "elastic_net": {"lam": 0.1, "mu": 0.1}, "box": {"low": -0.1, "high": 0.1},
    "non_negative": {"lam": 0.1},
}  # fmt: skip
SCALE = torch.rand(D, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5


@pytest.mark.parametrize("name", REGULARIZERS)
@pytest.mark.parametrize("rescaled", [False, True], ids=["in its own units", "in units of the data"])
def test_certificates_under_every_regularizer_send_the_same(name, rescaled):
    reg = REGULARIZERS[name](**REGS[name])
    reg = Rescaled(reg, SCALE, torch.ones((), dtype=torch.float64)) if rescaled else reg
    agree(solved(BY_NAME["prox-ed"], Stop(steps=9, tolerance=1e-3, every=1), reg=reg))


@pytest.mark.parametrize("stop", [
    Stop(steps=7, every=2), Stop(steps=200, tolerance=1e-2, every=1), Stop(steps=10**6, seconds=0.05, every=2),
    Stop(steps=40, tolerance=3e-16, every=4),
], ids=["steps", "tolerance", "seconds", "tolerance at rounding"])  # fmt: skip
def test_every_stopping_rule_stops_all_ranks_at_one_iteration(stop):
    agree(solved(BY_NAME["tree-apg"], stop), like="nothing" if stop.seconds or stop.tolerance == 3e-16 else "all")


@pytest.mark.parametrize("gap", [1e-2, 1e-9])
def test_a_gap_to_a_known_optimum_ends_a_race_in_all_ranks_at_once(gap):
    family = Lasso(3, D, 8, 0.1)
    best = solve(BY_NAME["tree-apg"], family.sample([0, 1]), StackedNetwork(GRAPH), Stop(steps=400)).objective

    def work(net, observer):
        problem = family.sample([0, 1], nodes=net.nodes)
        recorder = Recorder("tree-apg", problem, net, best, [0, 1], 0, observer)
        record(BY_NAME["tree-apg"], problem, net, recorder, Limits(iterations=60, stop_gap=gap, samples_per_decade=20))
        return [(row.k, row.status, row.loss, row.consensus, row.bytes) for row in recorder.records]

    agree(work)


def data(loss, features=4):
    """Columns of very different sizes at three sites of uneven sizes."""
    numbers, sizes = torch.Generator().manual_seed(0), (30, 14, 9)

    def drawn(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=numbers)

    X = [drawn(size, features) * 10.0 ** torch.arange(features) + 3 for size in sizes]
    w = drawn(features) / 10.0 ** torch.arange(features)
    scores = [x @ w - 1 + drawn(len(x)) for x in X]
    if loss == "softmax":
        return X, [torch.nn.functional.one_hot((s > 0).long() + (s > 1).long(), 3).double() for s in scores]
    return X, [(s > 0).double() for s in scores] if loss == "logistic" else scores


def fitted(task, choice=None):
    X, y = data(task.loss)

    def work(net, observer):
        own = [X[i] for i in net.nodes], [y[i] for i in net.nodes], task
        columns = tuple("abcd")
        if choice is None:
            fit, chosen = fit_model(asked(*own, net, observer, columns=columns)), None
        else:
            fit, path = fit_path(asked(*own, net, observer, columns=columns), choice)
            chosen = path.chosen, path.losses.tolist(), path.tolerances
        return fit.sha256, fit.status, fit.iterations, fit.method, fit.rounds, chosen

    return work


PENALTIES = [{"l1": 0.05}, {"l2": 0.05, "standardise": True}, {}]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_every_fit_sends_the_same_and_ends_with_one_model(loss, links, penalty):
    steps = 20 if links == "lossy" else 400
    agree(fitted(Task(target="y", loss=loss, links=links, tolerance=1e-6, iterations=steps, **penalty)), like="methods")


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("pay", ["rounds", "seconds"])
def test_what_is_paid_for_is_chosen_alike(loss, pay):
    agree(
        fitted(Task(target="y", loss=loss, l1=0.05, pay=pay, tolerance=1e-4, iterations=3)),
        like="methods" if pay == "rounds" else "nothing",
    )


@pytest.mark.parametrize("name", ["prox-ed", "tree-newton"])
def test_methods_that_are_asked_for_fit_alike(name):
    agree(
        fitted(
            Task(target="y", loss="logistic", l1=0.05, method=name, tolerance=1e-4, iterations=3 if name == "tree-newton" else 20)
        ),
        like="methods" if name == "tree-newton" else "all",
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("links", LINKS)
def test_a_penalty_is_chosen_alike_along_the_same_path(loss, links):
    choice = Choice(n_alphas=3, eps=0.1, folds=2, rule="1se" if links == "reliable" else "min", tolerance=1e-2)
    agree(fitted(Task(target="y", loss=loss, links=links, tolerance=1e-3, iterations=8), choice), like="methods")


@pytest.mark.parametrize("reliable", [True, False])
def test_ranks_scale_by_the_very_same_numbers(reliable):
    X, y = data("squared")

    def work(net, observer):
        own = [X[i] for i in net.nodes], [y[i] for i in net.nodes]
        scaled = scaling(*own, total_of(net, reliable=reliable), centre=True)
        return [part.tolist() for part in (scaled.mean, scaled.scale, scaled.weight, scaled.target)]

    agree(work)


@pytest.mark.parametrize("name", ["tree-apg", "flood-apg"])
def test_nodes_that_hold_the_same_x_go_on_holding_it(name):
    """To the bit, and for long: restarts and steps that are taken back are decided by each node for itself."""

    def work(net, observer):
        problem = Lasso(3, D, 8, 0.1).sample([0], nodes=net.nodes)
        return solve(BY_NAME[name], problem, net, Stop(steps=80, every=80), observer=observer).x.tolist()

    agree(work)


@pytest.mark.parametrize("d", [1, 2, 3, 7, 64, 1000])
def test_nodes_with_the_same_vectors_find_the_same_inner_product(d):
    a, b = (torch.randn(4, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    for seed in range(4):
        with Nudged(seed):
            assert torch.equal(dot(a, b), dot(a, b))
            found = dot(a, b)
        torch.testing.assert_close(found, (a * b).sum(-1, keepdim=True), rtol=1e-12, atol=1e-12)


class Rounding:
    """This thread's."""

    def __init__(self, seed):
        self.seed = seed

    def __enter__(self):
        self.functions = nudged_functions()
        self.functions.__enter__()
        HERE.rounding = Nudged(self.seed)

    def __exit__(self, *failure):
        HERE.rounding = None
        self.functions.__exit__(*failure)


@pytest.mark.parametrize("graph", ["star(5)", "hypercube(5)", "path(6)", "ring(8)", "complete(5)", "grid(3x3)", "ring(30)"])
def test_what_nodes_find_out_about_their_graph_decides_alike(graph):
    """θ of star(5) is 0.8, the very limit of free momentum; on path(6) two orders of exact averaging are equally good."""
    found = []
    for seed in range(6):
        with Rounding(seed):
            net = StackedNetwork(graph)
            steps, safe = exact_steps(net), AcceleratedED.safe(2.0, net, 1.0)
            facts = Facts(L=2.0, mean=1.0, pooled=0.5, sums=50.0, curvatures=tuple([2.0] * (net.n - 1) + [20.0]))
            ways = [choose(pay, facts, net, 20, Link(0.01, 1e6)) for pay in ("bytes", "rounds", "seconds")]
            order = steps and [round(value, 9) for value in steps]
            names = [[candidate.name for candidate in (way.best, *way.others)] for way in ways]
            found.append((order, average_rounds(net), safe.chosen, safe.allowed(net), names))
    assert all(each == found[0] for each in found), found


def test_a_clock_that_runs_faster_stops_nobody_earlier(monkeypatch):
    own = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: own() * getattr(HERE, "speed", 1.0))
    inner = solved(BY_NAME["prox-ed"], Stop(steps=10**6, seconds=0.05, every=2))

    def work(net, observer):
        HERE.speed = 1.0 + 3 * net.peers.rank
        return inner(net, observer)

    agree(work, like="nothing")


def test_what_ranks_decide_by_is_looked_at():
    """The law can fail: a rank that averages once more where its own rounding says so is noticed, in one sentence."""

    def work(net, observer):
        x = torch.full((net.n, 3), math.pi, dtype=torch.float64)
        for _ in range(20):
            if float(x.square().sum().sqrt()) < float(x.norm()):  # as long, in real numbers
                observer.mean(x, dim=-2)
            x = net.mix(x)
        return True

    with pytest.raises(Exception, match=r"sent .* but node \d \(rank \d\) expected .* the two no longer do the same"):
        agree(work)
