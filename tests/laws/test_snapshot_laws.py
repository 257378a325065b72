"""A run that goes on from a snapshot is the run that was never interrupted: every method, perfect links and failing ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from trajectories import MORE, REMEMBERING, D, methods, remembering

from milodo.algorithms import METHODS
from milodo.errors import InvalidInput
from milodo.fit.newton import NewtonOnSums
from milodo.learned import LEARNED
from milodo.loop import Stop, iterate, solve
from milodo.network import StackedNetwork, degraded, replicas
from milodo.problems import Lasso, Logistic, LogisticRegression
from milodo.runtime.snapshots import Snapshots, common, latest
from milodo.status import Status

GRAPH = "ring(4)"


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Replicas are compared before and after the snapshot, and while it is taken."""
    monkeypatch.setattr(replicas, "OF_SUMS", 8)
    monkeypatch.setattr(replicas, "OF_LINKS", 1)


@pytest.mark.parametrize("outage", [0.0, 0.3])
@pytest.mark.parametrize("name", [*METHODS, *LEARNED, *MORE, *(f"{name} in bits" for name in REMEMBERING)])
def test_a_resumed_run_is_bit_identical(tmp_path, name, outage):
    problem = Lasso(4, D, 8, 0.0 if name == "base-rules" else 0.1).sample([0, 1])
    method = (methods(GRAPH) | remembering(GRAPH))[name]
    if outage and method.alike:  # a sum over a spanning tree needs links that hold, and says so
        with pytest.raises(InvalidInput, match="a lost message breaks a sum"):
            solve(method, problem, degraded(StackedNetwork(GRAPH), outage=outage), Stop(steps=60))
        return
    whole, net = degraded(StackedNetwork(GRAPH), outage=outage), degraded(StackedNetwork(GRAPH), outage=outage)
    x = solve(method, problem, whole, Stop(steps=60)).x
    first = Snapshots(tmp_path, 0, net, 20, "run")
    solve(method, problem, net, Stop(steps=50), keeper=first)
    assert first.available() == [20, 40]
    again = degraded(StackedNetwork(GRAPH), outage=outage)
    solve(ProxLike(), problem, again, Stop(steps=3))  # whatever ran before on this network
    second = Snapshots(tmp_path, 0, again, 20, "run")
    second.choose([second.available(), [20, 40, 60]])
    assert second.chosen == 40
    resumed = solve(method, problem, again, Stop(steps=60), keeper=second)
    assert torch.equal(resumed.x, x) and resumed.k == 60
    assert vars(again.traffic) == vars(whole.traffic)


def test_newton_on_sums_goes_on_where_it_was_and_another_method_does_not_begin_from_its_state(tmp_path):
    """A fit keeps the states of both its methods in one place."""
    problem, stop = Logistic(4, D, 30, 0.01).sample([0]), Stop(steps=20, tolerance=1e-12, every=1, patience=6)
    problem = LogisticRegression(problem.A[0], problem.b[0], problem.reg)
    whole, net, again = (StackedNetwork(GRAPH) for _ in range(3))
    expected = solve(NewtonOnSums(), problem, whole, stop)
    first = Snapshots(tmp_path, 0, net, 2, "run")
    solve(NewtonOnSums(), problem, net, replace(stop, steps=3), keeper=first)
    second = Snapshots(tmp_path, 0, again, 2, "run")
    second.choose([first.available()])
    resumed = solve(NewtonOnSums(), problem, again, stop, keeper=second)
    assert expected.status is resumed.status is Status.CONVERGED and resumed.k == expected.k > 3
    assert torch.equal(resumed.x, expected.x) and vars(again.traffic) == vars(whole.traffic)
    third = Snapshots(tmp_path, 0, again, 2, "run")
    third.chosen = first.available()[-1]
    assert solve(METHODS["tree-apg"](), problem, again, Stop(steps=1), keeper=third).k == 1


def ProxLike():
    return METHODS["prox-ed"](gamma=0.01)


def test_outages_do_not_depend_on_what_ran_before():
    problem, net = Lasso(4, D, 8, 0.1).sample([0]), degraded(StackedNetwork(GRAPH), outage=0.4)
    once, twice = (solve(ProxLike(), problem, net, Stop(steps=20)).x for _ in range(2))
    assert torch.equal(once, twice)


def test_snapshots_of_another_run_and_damaged_ones_are_refused(tmp_path):
    problem, net = Lasso(4, D, 8, 0.1).sample([0]), StackedNetwork(GRAPH)
    keeper = Snapshots(tmp_path, 0, net, 10, "run")
    solve(ProxLike(), problem, net, Stop(steps=10), keeper=keeper)
    state = next(iterate(ProxLike(), problem, net))
    other = Snapshots(tmp_path, 0, net, 10, "other")
    other.chosen = 10
    with pytest.raises(InvalidInput, match="another run"):
        other.last(state)
    keeper.chosen = 10
    with pytest.raises(InvalidInput, match="does not fit this run"):
        keeper.last(next(iterate(ProxLike(), Lasso(4, D + 1, 8, 0.1).sample([0]), net)))
    content = keeper.path(10).read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"\x00" * 64):
        keeper.path(10).write_bytes(damaged)
        with pytest.raises(InvalidInput, match=r"not a snapshot|another run"):
            keeper.last(state)


def test_only_a_few_are_kept_and_later_ones_are_forgotten(tmp_path):
    problem, net = Lasso(4, D, 8, 0.1).sample([0]), StackedNetwork(GRAPH)
    keeper = Snapshots(tmp_path, 0, net, 1, "run")
    solve(ProxLike(), problem, net, Stop(steps=9), keeper=keeper)
    assert keeper.available() == [6, 7, 8, 9]  # two, and as many as processes may be apart
    keeper.choose([[6, 7, 8], [7, 8, 9]])
    assert keeper.chosen == 8 and keeper.available() == [6, 7, 8]
    assert latest(tmp_path) == (tmp_path, 8) and latest(tmp_path, 2) is None
    keeper.choose([[6, 7, 8], []])
    assert keeper.chosen is None and not tmp_path.exists()
    assert common([[1, 2], [2, 3]]) == 2 and common([[1], [2]]) is None
