"""Records: honest clock, logarithmic samples, ends of instances."""

from __future__ import annotations

import itertools
import math
import time

import pytest
import torch

from milodo.algorithms import ProxED
from milodo.bench.recorder import Limits, Recorder, Stopwatch, record, sample_times
from milodo.bench.records import Record, append_records, read_records, write_records
from milodo.bench.run_file import RunFile
from milodo.errors import InvalidInput
from milodo.files import read_versioned_json, write_json
from milodo.loop import iterate
from milodo.metrics import consensus_error, mean_point
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import Lasso, optimum
from milodo.status import Status

FAMILY = Lasso(5, 8, 20, 0.1)
SEEDS = [3, 4, 5]


def run(algorithm=None, limits=None, seeds=SEEDS, dtype=torch.float64):
    judge = FAMILY.sample(seeds)
    problem = FAMILY.sample(seeds, dtype=dtype)
    net = StackedNetwork("ring(5)", dtype=dtype)
    recorder = Recorder("prox-ed", judge, net, optimum(judge).value, seeds, first=10)
    algorithm = algorithm or ProxED(gamma=0.2 / float(problem.lipschitz().max()))
    return record(algorithm, problem, net, recorder, limits or Limits(iterations=50)), problem, net


@pytest.mark.parametrize("iterations", [1, 2, 7, 100, 12345])
def test_samples_start_at_zero_end_at_the_last_iteration_and_are_evenly_spaced_in_the_logarithm(iterations):
    times = sample_times(iterations, per_decade=20)
    assert times[0] == 0 and times[-1] == iterations
    assert times == sorted(set(times))
    steps = [math.log10(b / a) for a, b in itertools.pairwise(times[1:]) if a >= 20]
    assert all(step < 1.5 / 20 for step in steps)


def test_records_say_what_the_iterates_were():
    recorder, problem, _ = run()
    net = StackedNetwork("ring(5)")
    observer = StackedObserver()
    algorithm = ProxED(gamma=0.2 / float(problem.lipschitz().max()))
    value = optimum(problem).value
    states = dict(zip(range(51), iterate(algorithm, problem, net), strict=False))
    for row in recorder.records:
        x, b = states[row.k].x, row.instance - 10
        loss = problem.objective(mean_point(x, observer), observer)[b]
        assert row.loss == pytest.approx(float(loss), rel=1e-12)
        assert row.gap == pytest.approx(float(loss - value[b]), abs=1e-12)
        assert row.consensus == pytest.approx(float(consensus_error(x, observer)[b]), abs=1e-12)
        assert row.seed == SEEDS[b]
        assert (row.rounds, row.messages, row.floats, row.bytes) == (row.k, row.k * 10, row.k * 80, row.k * 640)


def test_a_stopwatch_adds_up_what_it_measured_and_nothing_between(monkeypatch):
    times = iter([0.0, 1.0, 5.0, 7.0])
    monkeypatch.setattr(Stopwatch, "_now", lambda watch: next(times))
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(2):
        watch.start()
        watch.stop()
    assert watch.seconds == 3.0


def test_a_gap_keeps_its_sign():
    """Below an optimum that is wrong, or by a rounding: an absolute value would hide that the reference is."""
    judge, net = FAMILY.sample(SEEDS), StackedNetwork("ring(5)")
    wrong = optimum(judge).value + torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    recorder = Recorder("prox-ed", judge, net, wrong, SEEDS, first=0)
    record(ProxED(gamma=0.5 / float(judge.lipschitz().max())), judge, net, recorder, Limits(iterations=2000))
    assert recorder.rows[0][-1].gap == pytest.approx(-1.0, abs=1e-6)
    assert recorder.rows[1][-1].gap == pytest.approx(1.0, abs=1e-6)
    assert all(row.gap == row.loss - float(wrong[row.instance]) for row in recorder.records)


def test_an_instance_ends_when_its_gap_is_reached_and_says_so_once():
    recorder, _, _ = run(limits=Limits(iterations=5000, stop_gap=1e-6))
    for rows in recorder.rows:
        assert rows[-1].status is Status.CONVERGED and rows[-1].gap <= 1e-6
        assert all(row.status is Status.RUNNING and row.gap > 1e-6 for row in rows[:-1])


def test_divergence_is_recorded_not_raised():
    recorder, _, _ = run(ProxED(gamma=100.0), Limits(iterations=500))
    assert {rows[-1].status for rows in recorder.rows} == {Status.DIVERGED}
    assert max(row.k for row in recorder.records) < 500


def test_looking_is_never_counted(monkeypatch):
    """By a clock on which every look takes a day, and every step an hour at least."""
    hours, look, step, clock = [0], Recorder.look, ProxED.step, time.perf_counter

    def dawdle(does, length):
        def slow(*args):
            hours[0] += length
            return does(*args)

        return slow

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + 3600 * hours[0])
    monkeypatch.setattr(Recorder, "look", dawdle(look, 24))
    monkeypatch.setattr(ProxED, "step", dawdle(step, 1))
    recorder, _, _ = run(limits=Limits(iterations=20))
    assert len(recorder.rows[0]) >= 10
    assert [round(row.seconds / 3600) for row in recorder.rows[0]] == [row.k for row in recorder.rows[0]]


def test_gaps_of_a_float32_run_are_computed_in_float64():
    recorder, problem, _ = run(dtype=torch.float32)
    assert problem.dtype == torch.float32
    row = recorder.rows[0][-1]
    assert row.bytes == row.floats * 4
    assert torch.tensor(row.loss, dtype=torch.float64) != torch.tensor(row.loss, dtype=torch.float32).double()


def test_seconds_limit_ends_a_run():
    recorder, _, _ = run(limits=Limits(iterations=10**7, seconds=0.05, samples_per_decade=100))
    assert {rows[-1].status for rows in recorder.rows} == {Status.TIME}


def test_records_survive_a_file(tmp_path):
    recorder, _, _ = run()
    path = tmp_path / "records.csv"
    append_records(path, recorder.records[:3])
    append_records(path, recorder.records[3:])
    assert read_records(path) == recorder.records
    write_records(path, recorder.records[:2])
    assert read_records(path) == recorder.records[:2]
    assert [p.name for p in tmp_path.iterdir()] == ["records.csv"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not a milodo records file"),
        ("a,b\n1,2\n", "not a milodo records file"),
        (",".join(Record.__dataclass_fields__) + "\nprox-ed,0,0,zero,0,0,0,0,0,0,0,0,STEPS\n", "line 2"),
        (",".join(Record.__dataclass_fields__) + "\nprox-ed,0\n", "line 2"),
    ],
)
def test_a_broken_records_file_is_refused_in_one_sentence(tmp_path, content, says):
    path = tmp_path / "records.csv"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=says):
        read_records(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "not readable as JSON"), ("[]", "not written by milodo"), ('{"format": 99}', "newer than this milodo")],
)
def test_a_broken_or_newer_run_file_is_refused(tmp_path, content, says):
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=says):
        RunFile.read(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, {"format": 1})
    with pytest.raises(TypeError):
        write_json(path, {"format": 1, "bad": object()})
    assert read_versioned_json(path, 1) == {"format": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
