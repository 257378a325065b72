"""What is reported is what travels: set-up, method and checks, simulated, real, and as the kernel counts it."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ledgers
import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from milodo.algorithms import METHODS, TreeAPG
from milodo.checks import Checks, Pace, digests, exact_norm, next_look
from milodo.errors import InvalidInput
from milodo.fit import Choice, Listeners, Site, Task, choose_here, fit_here
from milodo.fit.saved import read_fit
from milodo.fit.tables import write_fit
from milodo.loop import Stop, solve
from milodo.metrics import Units, optimality_error
from milodo.network import Observer, StackedNetwork, StackedObserver
from milodo.network.frames import HEADER
from milodo.problems import LeastSquares, LogisticRegression, optimum
from milodo.problems.regularizers import L1, ElasticNet, Rescaled, UnpenalizedIntercept
from milodo.status import Status
from milodo.words import amount

sys.path.insert(0, str(Path(__file__).parent.parent))
from real import LIMIT, environment, free_port

OBSERVER = StackedObserver()
PREAMBLE = 48
"""Bytes of what gloo sends beside the numbers: before each message, and in each of two notices that go with it (ready to send,
ready to receive). A receive that is posted ahead is announced once more."""


def alone() -> bool:
    """Whether this machine lets us have a network of our own."""
    words = ["unshare", "-n", "sh", "-c", "ip link set lo up"]
    return all(map(shutil.which, ("unshare", "ip"))) and subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Every fit of ledgers.py in three processes, and whether nobody else was on their network."""
    out = tmp_path_factory.mktemp("ledgers") / "found.json"
    own = alone()
    words = [sys.executable, str(Path(ledgers.__file__)), str(out), str(free_port())]
    words = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words] if own else words
    env = environment(PYTHONPATH=":".join(filter(None, sys.path)), TORCH_CPP_LOG_LEVEL="FATAL")
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(out.read_text()), own


@pytest.mark.parametrize("case", ledgers.CASES)
def test_simulated_ledgers_are_those_of_real_processes(real, case):
    task = ledgers.CASES[case]
    simulated = ledgers.reported(fit_here(ledgers.sites(task), task))
    assert {name: real[0][case][name] for name in simulated} == simulated
    assert simulated["status"] == "CONVERGED"


@pytest.mark.parametrize("case", ledgers.CASES)
def test_the_kernel_carries_what_is_reported(real, case):
    found, own = real
    if not own:
        pytest.skip("this machine does not allow a network namespace of one's own (unshare -n), where nobody else talks")
    facts = found[case]
    messages = facts["messages"] + facts["barriers"]["messages"]
    beside = PREAMBLE * (3 * messages + facts["ready"]) + HEADER.size * messages + facts["barriers"]["bytes"]
    assert facts["kernel"] - beside == pytest.approx(facts["bytes"], rel=0.05)


def cancer(sites: int) -> list[Site]:
    data = load_breast_cancer()
    cuts = {3: (300, 500), 5: (300, 450, 540, 560)}[sites]
    names = tuple(map(str, data.feature_names))
    parts = np.split(np.arange(len(data.data)), cuts)
    return [Site(f"{k}.csv", names, data.data[rows], data.target[rows].astype(float)) for k, rows in enumerate(parts)]


def wide(d: int = 1500) -> list[Site]:
    """Columns that are like their neighbours, three sites of 300 rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, d))
    for j in range(1, d):
        X[:, j] = 0.97 * X[:, j - 1] + math.sqrt(1 - 0.97**2) * X[:, j]
    y = X[:, ::37] @ rng.standard_normal(len(range(0, d, 37))) + 0.5 * rng.standard_normal(900)
    names = tuple(f"x{k}" for k in range(d))
    return [Site(f"{k}.csv", names, X[rows], y[rows]) for k, rows in enumerate(np.split(np.arange(900), 3))]


CANCER = Task(target="y", loss="logistic", l1=0.01)


@pytest.mark.parametrize(
    ("sites", "task", "most"),
    [
        (3, CANCER, 0.3), (5, CANCER, 0.3), (5, replace(CANCER, method="tree-apg", standardise=True), 0.3),
        (3, replace(CANCER, links="lossy", standardise=True), 0.3), (5, replace(CANCER, links="lossy", standardise=True), 0.3),
        (None, Task(target="y", l1=0.01), 0.15),
    ],
)  # fmt: skip
def test_checks_cost_little_beside_the_method(sites, task, most):
    fit = fit_here(wide() if sites is None else cancer(sites), task)
    assert fit.status is Status.CONVERGED and max(fit.gap, fit.residual, fit.consensus) <= task.tolerance
    assert 0 < fit.traffic.checks.bytes <= most * fit.traffic.method.bytes


@pytest.mark.parametrize("penalties", [0.05, "auto"])
@pytest.mark.parametrize("name", ["Moments", "Newton", "gossip"])
def test_totals_are_the_sums_of_their_parts(name, penalties, tmp_path):
    task = ledgers.CASES[name]
    if penalties == "auto":
        fit, path = choose_here(ledgers.sites(task), task, Choice(n_alphas=4, folds=3, eps=0.1))
        assert (path.traffic.rounds, path.traffic.bytes) == (path.rounds, path.bytes)
        assert all(path.traffic.parts[part].bytes < fit.traffic.parts[part].bytes for part in ("method", "checks"))
        assert path.traffic.setup == fit.traffic.setup
    else:
        fit = fit_here(ledgers.sites(task), task)
    assert all(part.bytes > 0 and part.rounds > 0 for part in fit.traffic.parts.values())
    assert (sum(p.rounds for p in fit.traffic.parts.values()), sum(p.bytes for p in fit.traffic.parts.values())) == (
        fit.rounds, fit.bytes,
    )  # fmt: skip
    file = write_fit(fit, tmp_path, task, None, "simulated")
    assert read_fit(file).fit.traffic == fit.traffic
    said = json.loads(file.read_text())
    said["traffic"]["checks"]["bytes"] += 8
    file.write_text(json.dumps(said))
    with pytest.raises(InvalidInput, match="do not add up"):
        read_fit(file)


@pytest.mark.parametrize("name", ["Moments", "no penalty", "Newton"])
def test_what_is_announced_is_about_what_is_used(name):
    said, task = [], ledgers.CASES[name]
    fit = fit_here(ledgers.sites(task), task, Listeners(announce=lambda plan: said.append(plan.cost)))
    if name != "Newton":
        assert said[0].startswith(f"about {amount(fit.bytes)} in {fit.rounds} rounds (")
        return
    number, unit, rounds = re.match(r"about ([0-9.]+) (kB) in (\d+) rounds", said[0]).groups()
    assert unit == "kB" and float(number) * 1e3 * fit.iterations / 10 == pytest.approx(fit.bytes, rel=0.05)
    assert int(rounds) * fit.iterations / 10 == pytest.approx(fit.rounds, rel=0.15)


def test_a_run_says_what_its_method_sent_and_what_its_checks_did():
    A = torch.randn(4, 9, 6, generator=torch.Generator().manual_seed(0)).double()
    problem, net = LeastSquares(A, A.sum(-1), L1(0.1)), StackedNetwork("ring(4)")
    result = solve(TreeAPG(), problem, net, Stop(steps=500, tolerance=1e-9))
    assert result.status is Status.CONVERGED
    assert result.traffic.bytes == net.traffic.bytes == 2 * 3 * 8 * 7 * result.k  # gradients and one number, over three edges
    assert result.checks.bytes == net.checks.bytes > 0 and result.checks.messages % 6 == 0


# What is found by few sums is what is found by many.


class Counting(StackedObserver):
    """How many numbers are averaged."""

    def __init__(self):
        super().__init__()
        self.numbers = []

    def total(self, x):
        self.numbers.append(x.numel())
        return super().total(x)


def problems(n=4, d=6, N=12):
    rng = np.random.default_rng(3)
    A = torch.from_numpy(np.concatenate([rng.standard_normal((n, N, d - 1)), np.ones((n, N, 1))], axis=-1))
    A[..., :-1] -= A[..., :-1].mean((0, 1))
    A[..., :-1] /= A[..., :-1].square().mean((0, 1)).sqrt()
    b = A @ torch.from_numpy(rng.standard_normal(d)) + torch.from_numpy(rng.standard_normal((n, N)))
    scale = torch.from_numpy(np.exp(rng.standard_normal(d - 1)))
    for reg in (L1(0.1), ElasticNet(0.05, 0.1), Rescaled(L1(0.1), scale, torch.ones(()).double())):
        for problem in (
            LeastSquares(A, b, UnpenalizedIntercept(reg, 1)),
            LogisticRegression(A, (b > 0).double(), UnpenalizedIntercept(reg, 1)),
        ):
            problem.column = 1 + 1e-9
            yield problem


@pytest.mark.parametrize("alike", [True, False])
def test_a_look_finds_what_all_its_sums_apart_would(alike):
    for problem in problems():
        units = Units.of(problem, OBSERVER)
        x = problem.everywhere(torch.linspace(-1, 1, problem.d).double())
        x = x if alike else x + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).double()
        observer = Counting()
        look = Checks(problem, observer, units, alike=alike).look(x)
        assert sum(numbers >= problem.d for numbers in observer.numbers) == (1 if alike else 2)
        settled = problem.settled(x.mean(-2), OBSERVER)
        torch.testing.assert_close(look.point, settled)
        torch.testing.assert_close(look.objective, problem.objective(settled, OBSERVER))
        truth = optimality_error(problem, problem.everywhere(settled), OBSERVER, units)
        torch.testing.assert_close(look.off.moved, truth.moved)
        torch.testing.assert_close(look.off.gap, truth.gap, rtol=1e-9, atol=1e-12)  # at the best intercept both duals are one
        torch.testing.assert_close(look.spread, (x - x.mean(-2)).norm(dim=-1).mean(), atol=1e-15, rtol=1e-12)


def test_certificates_beside_an_intercept_prove_what_they_say_wherever_it_is():
    """Not only at the best intercept: the bound grows with how far off it is, and never falls below the truth."""
    for problem in problems():
        best = optimum(problem)
        for seed in range(8):
            away = torch.randn(problem.d, generator=torch.Generator().manual_seed(seed)).double()
            for size in (1.0, 1e-2, 1e-4, 1e-6):
                x = best.x + size * away
                gradient = OBSERVER.mean(problem.grad(problem.everywhere(x)), dim=-2)
                bound = float(problem.certificate(x, OBSERVER, gradient))
                assert bound >= float(problem.objective(x, OBSERVER)) - float(best.value) - 1e-13
            assert bound < 1e-4  # and it is worth something


def test_certificates_beside_an_intercept_are_those_of_the_pulled_back_dual_where_no_bound_enters():
    """Under a penalty that every dual is feasible for, r* is 0: nothing is left of the bound."""
    for problem in problems():
        problem = problem.under(UnpenalizedIntercept(L1(100.0), 1))
        for seed in range(5):
            x = 0.1 * torch.randn(problem.d, generator=torch.Generator().manual_seed(seed)).double()
            gradient = OBSERVER.mean(problem.grad(problem.everywhere(x)), dim=-2)
            bound = problem.certificate(x, OBSERVER, gradient)
            torch.testing.assert_close(bound, problem.certificate(x, OBSERVER), rtol=1e-10, atol=0)


def test_norms_do_not_depend_on_the_order_of_what_is_added():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal(1000) * 10.0 ** rng.integers(-8, 8, 1000))
    for scale in (1.0, 1e-300, 1e290):
        found = {float(exact_norm(scale * x[torch.from_numpy(rng.permutation(1000))])) for _ in range(50)}
        assert len(found) == 1 and found.pop() == pytest.approx(scale * float(x.norm()), rel=1e-14)
    assert torch.isnan(exact_norm(torch.tensor([1.0, math.nan]))) and exact_norm(torch.tensor([1.0, math.inf])) == math.inf
    assert exact_norm(torch.zeros(2, 3)).tolist() == [0, 0]


def test_nodes_that_no_longer_hold_the_same_are_noticed_and_averaged():
    problem = next(problems())
    x = problem.everywhere(torch.linspace(-1, 1, problem.d).double()).clone()
    checks = Checks(problem, OBSERVER, Units.of(problem, OBSERVER), alike=True)
    checks.glance(x, None)
    assert checks.alike and float(checks.look(x).spread) == 0
    x[2, 3] = torch.nextafter(x[2, 3], torch.tensor(2.0).double())
    checks.glance(x, None)
    assert not checks.alike and float(checks.look(x).spread) > 0
    assert len({int(digest) for digest in digests(torch.randn(2000, 5).double())}) > 1990  # of 2²⁰


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.alike])
def test_methods_that_say_so_hold_the_same_everywhere(name):
    A = torch.randn(5, 9, 6, generator=torch.Generator().manual_seed(0)).double()
    problem, net = LogisticRegression(A, (A.sum(-1) > 0).double(), L1(0.01)), StackedNetwork("ring(5)")
    x = solve(METHODS[name](), problem, net, Stop(steps=37)).x
    assert torch.equal(x, x[:1].expand_as(x))


def test_looks_lie_further_and_further_apart():
    at, found = 0, []
    while at < 10_000:
        at = next_look(at, 20, 2.0)
        found.append(at)
    assert found[:5] == [20, 40, 60, 80, 100] and len(found) < 110
    gaps = [later - before for before, later in itertools.pairwise(found)]
    assert gaps == sorted(gaps) and gaps[-1] == pytest.approx(math.sqrt(2 * 2.0 * found[-2]), abs=1)
    assert all(next_look(k, 20, 2.0) == found[2] for k in range(40, 60))  # a resumed run looks where the first would have
    assert [next_look(k, 10, 0.0) for k in (-1, 0, 9, 10)] == [0, 10, 10, 20]


def test_a_closer_look_waits_for_steps_as_short_as_the_last_one_asked_for():
    pace = Pace(1e-8)
    assert not pace.due(50, 1e-6) and pace.due(50, 1e-7)
    pace.failed(50, 1e-7, off=1e-5)
    assert not pace.due(60, 4e-10) and pace.due(60, 2e-10)
    assert pace.due(1000, 1.0)  # and in any case now and then
    pace.failed(60, 0.0, off=1e-5)
    assert not pace.due(70, 0.0)  # what does not move is no nearer the next time
    again = Pace(1e-8)
    again.restore(json.loads(json.dumps(pace.to_json())))
    assert (again.target, again.last) == (pace.target, pace.last)


class Keeps:
    """The state of one iteration, and what was noted beside it."""

    def __init__(self, at: int) -> None:
        self.at, self.kept, self.notes, self.restored = at, None, dict, bool

    def last(self, first):
        self.restored(None if self.kept is None else json.loads(self.kept[2]))
        return None if self.kept is None else self.kept[:2]

    def keep(self, k, state):
        if k == self.at:
            self.kept = k, state, json.dumps(self.notes())


@pytest.mark.parametrize("name", ["accelerated-ed", "tree-apg"])
def test_a_resumed_run_looks_and_ends_where_the_first_did(name):
    A = torch.randn(5, 9, 12, generator=torch.Generator().manual_seed(0)).double() * torch.logspace(0, -1, 12).double()
    problem, net = LeastSquares(A, A.sum(-1), L1(1e-3)), StackedNetwork("ring(5)")
    method = METHODS[name].safe(float(problem.lipschitz().max()), net)
    stop = Stop(steps=20_000, tolerance=1e-9, every=10, price=2.0)
    whole = solve(method, problem, net, stop)
    assert whole.status is Status.CONVERGED
    for at in (whole.k // 3, whole.k // 2, whole.k - 1, whole.k):
        keeper = Keeps(at)
        solve(method, problem, net, stop, keeper=keeper)
        assert keeper.kept is not None
        resumed = solve(method, problem, net, stop, keeper=keeper)
        assert resumed.k == whole.k and torch.equal(resumed.x, whole.x)


def test_observers_of_no_network_count_nothing():
    observer: Observer = StackedObserver()
    observer.mean(torch.ones(3, 4), dim=0)
    assert observer.traffic.bytes == observer.traffic.rounds == 0 == observer.price(torch.ones(3))
