"""A benchmark folder: complete, resumable, and nothing lost when it is stopped."""

from __future__ import annotations

import json
import math
import os
import stat

import pytest

from milodo.bench import plan
from milodo.bench.benchmark import Benchmark
from milodo.bench.recorder import Recorder
from milodo.bench.records import read_records
from milodo.bench.run_file import RunFile
from milodo.bench.runtimes import Simulated
from milodo.cli.tables import run_tables
from milodo.config import parse_experiment
from milodo.errors import InvalidInput
from milodo.files import write_json
from milodo.learned import LPGExtra, MiLoDo, special_initialisation
from milodo.learned.checkpoint import save_optimizer
from milodo.network import StackedNetwork
from milodo.problems import FAMILIES, CustomProblem, Lasso, instance_seeds
from milodo.report.html import write_report
from milodo.report.run import Run
from milodo.status import Status


def experiment(**run):
    return parse_experiment(
        {
            "name": "small",
            "problem": {"family": "lasso", "n": 5, "d": 8, "N": 20, "lam": 0.1},
            "network": {"topology": "ring(5)"},
            "run": {"iterations": 60, "instances": 6, "batch": 3, **run},
            "tuning": {"instances": 2, "iterations": 60, "points": 5, "points_each": 3, "refinements": 1},
            "methods": [
                {"name": "prox-ed"},
                {"name": "dapg", "use": "given", "parameters": {"eta": 0.1, "alpha": 0.2, "K": 2}},
                {"name": "prox-dgd"},
            ],
        },
        "small",
    )


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "cache"))


def without_clock(records):
    return [{**record.__dict__, "seconds": 0.0} for record in records]


def test_a_run_leaves_everything_a_report_needs(tmp_path):
    folder = Benchmark(experiment(), tmp_path / "run").run()
    run, records = RunFile.read(folder), read_records(folder / "records.csv")
    assert {r.method for r in records} == {"prox-ed", "dapg (given)", "prox-dgd"} == set(run.methods)
    assert {r.instance for r in records} == set(range(6))
    assert run.tuning.keys() == {"prox-ed", "prox-dgd"}
    assert run.tuning["prox-ed"].best == run.methods["prox-ed"].parameters
    assert run.methods["dapg (given)"].rounds_per_iteration == 6
    assert run.reference.largest <= 1e-14 and len(run.reference.values) == 6
    assert run.provenance.config["problem"]["d"] == 8 and run.provenance.torch
    last = {(r.method, r.instance): r for r in records}
    assert {r.status for r in last.values()} == {Status.STEPS} and {r.k for r in last.values()} == {60}
    json.dumps(run.model_dump(), allow_nan=False)  # readable by any JSON reader


def test_tuning_and_test_instances_never_meet(tmp_path):
    folder = Benchmark(experiment(), tmp_path / "run").run()
    tested = {r.seed for r in read_records(folder / "records.csv")}
    tuned = set(RunFile.read(folder).tuning["prox-ed"].seeds)
    assert tested == set(instance_seeds("test", 6)) and tuned == set(instance_seeds("tuning", 2))
    assert not tested & tuned


def test_chunks_of_instances_give_the_records_of_one_batch(tmp_path):
    parts = Benchmark(experiment(), tmp_path / "parts").run()
    whole = Benchmark(experiment(batch=None), tmp_path / "whole").run()

    def by_row(folder):
        rows = {(r.method, r.instance, r.k): r for r in read_records(folder / "records.csv")}
        return {key: (pytest.approx(r.loss, rel=1e-12), r.bytes, r.status) for key, r in sorted(rows.items())}

    assert by_row(parts) == {key: (r[0].expected, *r[1:]) for key, r in by_row(whole).items()}


def test_the_same_experiment_gives_the_same_records(tmp_path):
    first = Benchmark(experiment(), tmp_path / "a").run()
    second = Benchmark(experiment(), tmp_path / "b").run()
    assert without_clock(read_records(first / "records.csv")) == without_clock(read_records(second / "records.csv"))


def test_another_seed_means_other_instances(tmp_path):
    other = experiment().model_copy(update={"seed": 1})
    first, second = Benchmark(experiment(), tmp_path / "a").run(), Benchmark(other, tmp_path / "b").run()
    seeds = [{r.seed for r in read_records(folder / "records.csv")} for folder in (first, second)]
    assert not seeds[0] & seeds[1]


@pytest.mark.parametrize("stop_at", [("prox-ed", 0), ("dapg (given)", 3), ("prox-dgd", 3)])
def test_ctrl_c_keeps_what_was_recorded_and_resume_completes_it(tmp_path, monkeypatch, stop_at):
    uninterrupted = Benchmark(experiment(), tmp_path / "whole").run()
    look = Recorder.look

    def stop(self, k, *args):
        look(self, k, *args)
        if (self.method, self.first) == stop_at and k >= 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "look", stop)
    with pytest.raises(KeyboardInterrupt):
        Benchmark(experiment(), tmp_path / "run").run()
    kept = read_records(tmp_path / "run" / "records.csv")
    cut = [r for r in kept if (r.method, r.instance) == stop_at]
    assert cut[-1].status is Status.INTERRUPTED and cut[-1].k >= 20
    monkeypatch.setattr(Recorder, "look", look)
    Benchmark(experiment(), tmp_path / "run").run(resume=True)

    def key(row):
        return row["method"], row["instance"], row["k"]

    resumed = sorted(without_clock(read_records(tmp_path / "run" / "records.csv")), key=key)
    assert resumed == sorted(without_clock(read_records(uninterrupted / "records.csv")), key=key)


def test_a_folder_is_not_overwritten_unasked_nor_resumed_with_another_experiment(tmp_path):
    Benchmark(experiment(), tmp_path / "run").run()
    before = (tmp_path / "run" / "records.csv").read_bytes()
    with pytest.raises(InvalidInput, match="already holds a run"):
        Benchmark(experiment(), tmp_path / "run").run()
    with pytest.raises(InvalidInput, match="another configuration"):
        Benchmark(experiment(iterations=61), tmp_path / "run").run(resume=True)
    assert (tmp_path / "run" / "records.csv").read_bytes() == before
    Benchmark(experiment(iterations=61), tmp_path / "run").run(overwrite=True)


def test_what_is_overwritten_leaves_nothing_behind(tmp_path):
    folder = Benchmark(experiment(), tmp_path / "run").run()
    write_report(Run(folder))
    (folder / "notes.txt").write_text("mine")
    Benchmark(experiment(iterations=61), folder).prepare(overwrite=True)
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["notes.txt", "run.json"]


def test_a_run_of_processes_is_not_continued_in_a_simulation(tmp_path):
    folder = Benchmark(experiment(), tmp_path / "run").run()
    run = RunFile.read(folder)
    run.runtime = "distributed"
    run.write(folder)
    with pytest.raises(InvalidInput, match="another runtime"):
        Benchmark(experiment(), folder).run(resume=True)


class Elsewhere(Simulated):
    """A process that does not write: it receives everything."""

    writes = False

    def __init__(self, told):
        self.told = told

    def shared(self, what, kind, find):
        return kind.model_validate(json.loads(self.told[what]))


class First(Simulated):
    def __init__(self):
        self.told = {}

    def shared(self, what, kind, find):
        found = find()
        self.told[what] = json.dumps(found.model_dump(exclude_none=True))
        return found


def test_who_is_told_races_alike_and_writes_nothing(tmp_path, monkeypatch):
    first = First()
    Benchmark(experiment(), tmp_path / "first", runtime=first).run()
    assert set(first.told) == {"plan", "optimum/0", "optimum/3"}
    monkeypatch.setattr(plan, "optimum", lambda *a, **k: pytest.fail("certified again"))
    monkeypatch.setattr(plan, "tune", lambda *a, **k: pytest.fail("tuned again"))
    seen, look = [], Recorder.look
    monkeypatch.setattr(Recorder, "look", lambda self, *args: (look(self, *args), seen.append(self)))
    Benchmark(experiment(), tmp_path / "second", runtime=Elsewhere(first.told)).run()
    assert not (tmp_path / "second").exists()
    records = [row for recorder in dict.fromkeys(seen) for row in recorder.records]
    assert without_clock(records) == without_clock(read_records(tmp_path / "first" / "records.csv"))


def test_a_graph_that_has_changed_is_not_mixed_into_an_old_run(tmp_path):
    links = tmp_path / "links.txt"
    links.write_text("0 1\n1 2\n2 3\n3 4\n")

    def on_file():
        return experiment().model_copy(update={"network": experiment().network.model_copy(update={"topology": str(links)})})

    Benchmark(on_file(), tmp_path / "run").run()
    links.write_text("0 1\n0 2\n0 3\n0 4\n")
    with pytest.raises(InvalidInput, match="another graph"):
        Benchmark(on_file(), tmp_path / "run").run(resume=True)


def test_a_file_cut_in_its_last_line_can_be_resumed(tmp_path):
    folder = Benchmark(experiment(), tmp_path / "run").run()
    whole = without_clock(read_records(folder / "records.csv"))
    text = (folder / "records.csv").read_text()
    (folder / "records.csv").write_text(text[:-30])
    with pytest.raises(InvalidInput, match="line"):
        read_records(folder / "records.csv")
    Benchmark(experiment(), folder).run(resume=True)
    again = without_clock(read_records(folder / "records.csv"))
    assert sorted(map(str, again)) == sorted(map(str, whole))


def test_what_cannot_be_certified_has_no_gap_and_is_not_tuned_for(tmp_path, monkeypatch):
    monkeypatch.setattr("milodo.solvers.reference.CERTIFIED", -1.0)  # nothing is good enough
    with pytest.raises(InvalidInput, match="no gap to tune for"):
        Benchmark(experiment(), tmp_path / "tuned").run()
    given = {"name": "prox-ed", "use": "given", "parameters": {"gamma": 0.1}}
    content = {**experiment().model_dump(mode="json"), "methods": [given]}
    del content["problem"]["regularizer"]
    folder = Benchmark(parse_experiment(content, "x"), tmp_path / "given").run()
    assert all(math.isnan(row.gap) for row in read_records(folder / "records.csv"))
    assert RunFile.read(folder).reference.values == [None] * 6


class Unknown(Lasso):
    """A family of objectives of which nothing but values and gradients is known."""

    def sample(self, seeds, nodes=None, **options):
        known = super().sample(seeds, nodes, **options)

        def f(x, data):
            return (data["A"] @ x - data["b"]).square().mean() / 2

        return CustomProblem(f, {"A": known.A, "b": known.b}, self.d, self.regularizer(), instances=1)


def test_a_race_without_any_optimum_records_losses_and_has_a_page_of_them(tmp_path, monkeypatch):
    monkeypatch.setitem(FAMILIES, "unknown", Unknown)
    content = experiment(stop_gap=1e-3).model_dump(mode="json")
    content["problem"] = {"family": "unknown", "n": 5, "d": 8, "N": 20, "lam": 0.1}
    content["methods"] = [{"name": "prox-ed", "use": "given", "parameters": {"gamma": 0.02}}]
    said = []
    folder = Benchmark(parse_experiment(content, "x"), tmp_path / "run", lambda *event: said.append(event)).run()
    assert said[-1][2].startswith("loss ")
    records = read_records(folder / "records.csv")
    assert {r.status for r in records if r.k == 60} == {Status.STEPS} and all(math.isnan(r.gap) for r in records)
    assert RunFile.read(folder).reference is None
    page = write_report(Run(folder)).read_text(encoding="utf-8")
    assert "No optimum was certified" in page and "What a gap costs" not in page
    (table,) = run_tables(Run(folder))
    last = sorted(r.loss for r in records if r.k == 60)
    assert [*table.columns[2].cells] == [f"{(last[2] + last[3]) / 2:.4g}"]


def test_a_start_that_is_already_optimal_is_tuned_and_raced(tmp_path):
    content = experiment().model_dump(mode="json")
    content["problem"] = {**content["problem"], "lam": 100.0}
    del content["problem"]["regularizer"]
    folder = Benchmark(parse_experiment(content, "x"), tmp_path / "run").run()
    gaps = [row.gap for row in read_records(folder / "records.csv")]
    assert gaps and max(map(abs, gaps)) < 1e-14  # rounding of a loss of size 1


@pytest.mark.parametrize("regularizer", [{"kind": "box", "low": 0.0, "high": 0.3}, {"kind": "non_negative", "lam": 0.05}])
def test_walls_touched_in_float32_are_not_divergence(tmp_path, regularizer):
    content = experiment(dtype="float32", iterations=300).model_dump(mode="json")
    content["problem"] = {"family": "lasso", "n": 5, "d": 8, "N": 20, "regularizer": regularizer}
    folder = Benchmark(parse_experiment(content, "x"), tmp_path / "run").run()
    last = {(row.method, row.instance): row.status for row in read_records(folder / "records.csv")}
    assert set(last.values()) == {Status.STEPS}


def test_an_unwritable_folder_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "optimum", lambda *a, **k: pytest.fail("ran before the folder was checked"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidInput, match=r"cannot write to .*Choose another folder"):
        Benchmark(experiment(), tmp_path / "file" / "run").run()
    if os.geteuid() != 0:  # root may write anywhere
        closed = tmp_path / "closed"
        closed.mkdir()
        closed.chmod(stat.S_IRUSR | stat.S_IXUSR)
        with pytest.raises(InvalidInput, match="cannot write to"):
            Benchmark(experiment(), closed / "run").run()


def test_tuning_is_found_in_the_cache_the_second_time(tmp_path, monkeypatch):
    Benchmark(experiment(), tmp_path / "a").run()
    monkeypatch.setattr(plan, "tune", lambda *a, **k: pytest.fail("tuned again"))
    said = []
    Benchmark(experiment(), tmp_path / "b", lambda *event: said.append(event)).run()
    assert ("tune Prox-ED", 1.0, "from the cache") in said
    tunings = [RunFile.read(tmp_path / name).tuning["prox-ed"] for name in "ab"]
    assert tunings[0].cached is False and tunings[1].cached is True
    assert tunings[0].grid == tunings[1].grid


def learned_experiment(path, name="milodo", topology="ring(5)"):
    content = experiment(batch=6).model_dump(mode="json", exclude_none=True)
    content["network"]["topology"] = topology
    content["methods"] = [{"name": "prox-ed"}, {"name": name, "weights": str(path)}]
    return parse_experiment(content, "small")


def test_a_learned_method_races_like_any_other(tmp_path):
    started = special_initialisation(MiLoDo("ring(5)", hidden=4), StackedNetwork("ring(5)"), 0.1)  # a random one would diverge
    save_optimizer(started, tmp_path / "mine.safetensors", good_for="tests", training={})
    folder = Benchmark(learned_experiment(tmp_path / "mine"), tmp_path / "run").run()
    run, records = RunFile.read(folder), read_records(folder / "records.csv")
    facts = run.methods["milodo"]
    assert (facts.how, facts.label, facts.weights.name) == ("learned", "MiLoDo", "mine")
    last = [r for r in records if r.method == "milodo" and r.k == 60]
    assert len(last) == 6 and {(r.rounds, r.bytes) for r in last} == {(120, 60 * 10 * 8 * (8 + 4))}
    save_optimizer(MiLoDo("ring(5)", hidden=4), tmp_path / "mine.safetensors", good_for="tests", training={})
    with pytest.raises(InvalidInput, match="begun with other weights"):
        Benchmark(learned_experiment(tmp_path / "mine"), tmp_path / "run").run(resume=True)


def test_an_unrolled_method_ends_with_its_last_layer(tmp_path):
    save_optimizer(LPGExtra("ring(5)", layers=20), tmp_path / "mine.safetensors", good_for="tests", training={})
    folder = Benchmark(learned_experiment(tmp_path / "mine", "lpg-extra"), tmp_path / "run").run()
    last = {(r.method, r.instance): r for r in read_records(folder / "records.csv")}
    assert {(r.k, r.status) for r in last.values() if r.method == "lpg-extra"} == {(20, Status.STEPS)}
    assert {r.k for r in last.values() if r.method == "prox-ed"} == {60}


def test_weights_that_do_not_fit_are_refused_before_anything_is_tuned(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "tune", lambda *_, **__: pytest.fail("tuned"))
    save_optimizer(MiLoDo("ring(5)", hidden=4), tmp_path / "mine.safetensors", good_for="tests", training={})
    with pytest.raises(InvalidInput, match=r"made for ring\(5\) and cannot run on star\(5\)"):
        Benchmark(learned_experiment(tmp_path / "mine", topology="star(5)"), tmp_path / "a").run()
    with pytest.raises(InvalidInput, match="holds weights of 'milodo', not of 'lpg-extra'"):
        Benchmark(learned_experiment(tmp_path / "mine", "lpg-extra"), tmp_path / "b").run()
    with pytest.raises(InvalidInput, match="no trained optimizer"):
        Benchmark(learned_experiment(tmp_path / "gone" / "mine"), tmp_path / "c").run()


def test_what_cannot_fit_into_memory_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("milodo.memory.free_memory", lambda: 10**9)
    monkeypatch.setattr(plan, "optimum", lambda *a, **k: pytest.fail("ran before memory was asked for"))
    content = experiment(instances=300, batch=None).model_dump(mode="json")
    content["problem"] = {"family": "lasso", "n": 5, "d": 80, "N": 2000}  # 6.5 MB an instance
    with pytest.raises(
        InvalidInput, match=r"300 instances of .* would need 1.94 GB of memory, but .* 1 GB free. Set a smaller batch"
    ):
        Benchmark(parse_experiment(content, "x"), tmp_path / "run").run()
    assert not (tmp_path / "run").exists()
    content["run"]["batch"] = 100
    Benchmark(parse_experiment(content, "x"), tmp_path / "run").prepare()
    content["run"]["dtype"] = "float32"  # is held beside the fp64 one that judges
    with pytest.raises(InvalidInput, match="would need 972 MB of memory"):
        monkeypatch.setattr("milodo.memory.free_memory", lambda: 9 * 10**8)
        Benchmark(parse_experiment(content, "x"), tmp_path / "again").run()


def test_a_stop_gap_above_the_first_gap_ends_in_a_page(tmp_path):
    folder = Benchmark(experiment(stop_gap=1e9), tmp_path / "run").run()
    assert {(r.k, r.status) for r in read_records(folder / "records.csv")} == {(0, Status.CONVERGED)}
    assert "no method made a step" in write_report(Run(folder)).read_text(encoding="utf-8")


def damaged(run):
    """Copies of a run's facts, each with one of them damaged."""
    methods, reference = run["methods"], run["reference"]
    yield {**run, "methods": {}}
    yield {**run, "methods": {**methods, "prox-ed": "x"}, "tuning": 5}
    for facts in ({"parameters": {"gamma": "x"}}, {"parameters": {"gama": 0.1}}, {"parameters": {"gamma": -1}}, {"label": []}):
        yield {**run, "methods": {**methods, "prox-ed": {**methods["prox-ed"], **facts}}}
    yield {**run, "reference": {**reference, "values": [1.0], "largest": "x"}}
    yield {**run, "reference": [1]}


def test_a_run_with_damaged_facts_is_resumed_as_if_they_were_missing(tmp_path):
    folder = Benchmark(experiment(), tmp_path / "run").run()
    whole = without_clock(read_records(folder / "records.csv"))
    text = (folder / "records.csv").read_text(encoding="utf-8")
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    for number, facts in enumerate(damaged(run)):
        (folder / "records.csv").write_text(text[: len(text) // 2], encoding="utf-8")  # the last methods are to be run again
        write_json(folder / "run.json", facts)
        Benchmark(experiment(), folder).run(resume=True)
        assert sorted(map(str, without_clock(read_records(folder / "records.csv")))) == sorted(map(str, whole)), number
        again = RunFile.read(folder)
        assert {key: facts.parameters for key, facts in again.methods.items()} == {
            key: facts["parameters"] for key, facts in run["methods"].items()
        }
        assert len(again.reference.values) == 6
