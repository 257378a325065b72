"""One way to advance: every loop shows the method the problem and the network of iteration k, and one judge ends them all."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from milodo.algorithms import METHODS, ProxED
from milodo.bench.recorder import Limits, Recorder, record
from milodo.bench.tuning import Search, tune
from milodo.errors import InvalidInput
from milodo.loop import Stop, advance, iterate, solve
from milodo.network import Outage, StackedNetwork, StackedObserver, degraded
from milodo.problems import CustomProblem, Lasso, LeastSquares, Zero, optimum
from milodo.status import Status
from milodo.stopping import GROWTH, StoppingCriterion

OBSERVER = StackedObserver()
FAMILY = Lasso(4, 6, 8, 0.1)


class Noted(LeastSquares):
    """Least squares that write down which iterations asked for them, and show each of them other data."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.asked: list[int] = []

    def at_step(self, k):
        self.asked.append(k)
        return LeastSquares(self.A, self.b + 0.01 * k, self.reg)


def noted(seeds=(0,)) -> Noted:
    plain = FAMILY.sample(list(seeds))
    return Noted(plain.A, plain.b, plain.reg)


def by_hand(method, problem, net, steps):
    state = method.init(problem.start(), LeastSquares(problem.A, problem.b, problem.reg), net)
    for k in range(1, steps + 1):
        state = method.step(state, LeastSquares(problem.A, problem.b + 0.01 * k, problem.reg), net)
    return state.x


def test_every_loop_shows_the_problem_of_its_iteration():
    method, net, problem = ProxED(gamma=0.05), StackedNetwork("ring(4)"), noted()
    expected = by_hand(method, problem, net, 5)
    assert torch.equal(next(itertools.islice(iterate(method, problem, net), 5, None)).x, expected)
    assert problem.asked == [0, 1, 2, 3, 4, 5]
    assert torch.equal(solve(method, noted(), net, Stop(steps=5)).x, expected)
    recorder = Recorder("x", FAMILY.sample([0]), net, torch.zeros(1), [0], 0)
    again = noted()
    record(method, again, net, recorder, Limits(iterations=5))
    assert again.asked == [0, 1, 2, 3, 4, 5] and recorder.rows[0][-1].k == 5
    state = advance(method, next(iterate(method, problem, net)), problem, net, 1)
    assert torch.equal(state.x, by_hand(method, problem, net, 1))


class Measured(LeastSquares):
    """Least squares that know one thing more about an iterate."""

    def metrics(self, x, observer):
        return {"largest": observer.mean(x, dim=-2).abs().amax(-1)}


def test_what_else_a_problem_measures_is_recorded():
    plain = FAMILY.sample([0, 1])
    recorder = Recorder("x", Measured(plain.A, plain.b, plain.reg), StackedNetwork("ring(4)"), torch.zeros(2), [0, 1], 0)
    record(ProxED(gamma=0.05), plain, recorder.net, recorder, Limits(iterations=8))
    x = next(itertools.islice(iterate(ProxED(gamma=0.05), plain, StackedNetwork("ring(4)")), 8, None)).x
    for b, rows in enumerate(recorder.rows):
        assert rows[0].metrics == {"largest": 0.0}
        assert rows[-1].metrics["largest"] == pytest.approx(float(x[b].mean(-2).abs().max()), rel=1e-12)


def test_tuning_shows_its_candidates_the_problem_of_their_iteration():
    problem = noted((0, 1))
    search = Search(target=1e-9, iterations=6, points=3, refinements=0)
    tune(ProxED, problem, StackedNetwork("ring(4)"), torch.zeros(2).double(), search)
    assert set(problem.asked) == set(range(7)) and problem.asked[:7] == list(range(7))


@pytest.mark.parametrize("name", ["prox-ed", "dapg"])
def test_tuning_on_links_that_fail_does_not_depend_on_what_was_tuned_before(name):
    problem = FAMILY.sample([0, 1])
    best, search = optimum(problem).value, Search(target=1e-3, iterations=60, points=4, points_each=3, refinements=1)

    def tuned(net):
        return tune(METHODS[name], problem, net, best, search).to_json()

    fresh, used = (degraded(StackedNetwork("ring(4)"), outage=0.3) for _ in range(2))
    tune(METHODS["pg-extra"], problem, used, best, search)
    solve(ProxED(gamma=0.01), problem, used, Stop(steps=7))
    assert tuned(fresh) == tuned(used)


class Told(StackedObserver):
    """What the processes agree upon, as somebody else's clock has it: the last of the four numbers of a glance."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def mean(self, x, dim):
        found = super().mean(x, dim)
        if found.shape[-1:] == (4,):
            found[..., -1] = self.seconds
        return found


def test_a_run_ends_by_the_clock_that_all_agree_upon_and_by_no_other():
    problem, net = FAMILY.sample([0]), StackedNetwork("ring(4)")
    late = solve(ProxED(gamma=0.01), problem, net, Stop(steps=50, seconds=60.0, every=10), observer=Told(61.0))
    assert (late.status, late.k) == (Status.TIME, 0)
    early = solve(ProxED(gamma=0.01), problem, net, Stop(steps=50, seconds=1e-9, every=10), observer=Told(0.0))
    assert (early.status, early.k) == (Status.STEPS, 50)


def test_progress_of_an_objective_without_a_lipschitz_constant():
    """It has no units in which to say how far from optimal it is; it runs all the same."""
    data = {"b": torch.arange(8.0, dtype=torch.float64).reshape(4, 2)}
    problem = CustomProblem(lambda x, part: ((x - part["b"]) ** 2).sum() / 2, data, 2, Zero())
    seen = []
    result = solve(
        ProxED(gamma=0.5), problem, StackedNetwork("ring(4)"), Stop(steps=30), progress=lambda k, off: seen.append((k, off))
    )
    assert [k for k, _ in seen] == [0, 10, 20, 30] and all(math.isnan(off) for _, off in seen)
    assert result.status is Status.STEPS
    with pytest.raises(InvalidInput, match="Lipschitz constant"):
        solve(ProxED(gamma=0.5), problem, StackedNetwork("ring(4)"), Stop(tolerance=1e-3))


def test_one_judge_for_all_that_can_happen_to_an_instance():
    problem = FAMILY.sample([0, 1, 2, 3])
    best = torch.tensor([0.0, 0.0, 0.0, math.nan], dtype=torch.float64)
    judge = StoppingCriterion(problem, OBSERVER, steps=10, seconds=5.0, gap=1e-3, optimum=best)
    start = problem.objective(problem.start()[:, 0], OBSERVER)
    torch.testing.assert_close(judge.limit, GROWTH * start, rtol=1e-15, atol=0)
    assert judge(1, torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64), 0.0) is Status.RUNNING
    assert judge(2, torch.tensor([1e-4, math.nan, 2.0, 0.0], dtype=torch.float64), 0.0) is Status.DIVERGED
    assert judge.ended == [Status.CONVERGED, Status.DIVERGED, Status.RUNNING, Status.RUNNING]
    judge(3, torch.tensor([9.0, 9.0, 2 * float(judge.limit[2]), 1.0], dtype=torch.float64), 0.0)
    assert judge.ended[2] is Status.DIVERGED  # and who has ended stays so
    judge(4, torch.ones(4, dtype=torch.float64), 5.0)
    assert judge.ended == [Status.CONVERGED, Status.DIVERGED, Status.DIVERGED, Status.TIME]
    again = StoppingCriterion(problem, OBSERVER, steps=10)
    assert again(10, torch.ones(4, dtype=torch.float64), 1e9) is Status.STEPS


def test_a_network_carries_no_counters_of_a_run():
    """Two runs on one network are the runs on two: nothing of the first is left in it but what it sent."""
    problem = FAMILY.sample([0])
    net = StackedNetwork("ring(4)").through(Outage(0.4))
    before = {name: value for name, value in vars(net).items() if name not in ("traffic", "routes", "mixing")}
    once = solve(ProxED(gamma=0.05), problem, net, Stop(steps=20))
    after = {name: value for name, value in vars(net).items() if name not in ("traffic", "routes", "mixing")}
    assert before.keys() == after.keys() and all(before[name] is after[name] for name in before)
    assert torch.equal(once.x, solve(ProxED(gamma=0.05), problem, net, Stop(steps=20)).x)
