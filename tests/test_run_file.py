"""run.json, records.csv and folders of runs: old ones open, what is unknown is kept, what is damaged counts as missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_report import complete, look

from milodo.bench.records import COLUMNS, append_records, read_records, write_records
from milodo.bench.run_file import GraphFacts, RunFile
from milodo.config.tables import NetworkTable
from milodo.errors import InvalidInput
from milodo.folder import RunFolder
from milodo.network import StackedNetwork
from milodo.paper.step_sizes import STEP_SIZES, published
from milodo.problems import L1, Lasso, Logistic
from milodo.report.run import Run
from milodo.status import Status

KEPT = sorted((Path(__file__).parent.parent / "docs" / "records").glob("*/run.json"))


def contains(new: Any, old: Any) -> bool:
    """Whether all facts of the old are in the new; null says as much as nothing."""
    if isinstance(old, dict):
        return all(value is None or contains(new.get(key), value) for key, value in old.items())
    return len(new) == len(old) and all(map(contains, new, old)) if isinstance(old, list) else new == old


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.name)
def test_runs_of_earlier_versions_open_and_lose_nothing_when_they_are_written(path, tmp_path):
    run = Run(path.parent)
    assert run.methods and run.speedups and run.topology is not None and run.certified
    assert all(run.about(method).parameters is not None for method in run.methods)
    run.file.write(tmp_path)
    assert RunFile.read(tmp_path) == run.file
    old, new = (json.loads((folder / "run.json").read_text(encoding="utf-8")) for folder in (path.parent, tmp_path))
    assert contains(new, old)


def test_what_a_newer_milodo_may_have_added_is_kept(tmp_path):
    said = complete() | {"later": {"x": [1, None]}}
    said["provenance"]["gpu"] = None
    said["topology"]["length"] = 3
    RunFile.model_validate(said).write(tmp_path)
    again = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert again["later"] == {"x": [1, None]} and again["topology"]["length"] == 3 and again["provenance"]["commit"] == "abc123"
    assert again["provenance"]["config"] == said["provenance"]["config"]


def test_what_is_of_the_wrong_kind_counts_as_missing_and_the_others_stay():
    run = RunFile.model_validate(
        {
            "name": 3,
            "gaps": [0.1, "x", 10**400, True, -1, 0.01],
            "methods": {"a": 5, "b": {"label": [], "parameters": {"K": 2, "gamma": 0.5}}, "c": {"parameters": {"gamma": "x"}}},
            "tuning": {"b": {"grid": ["x", {"score": 1}, {"score": "y", "reached": 1}], "seeds": [1, "x"]}},
            "reference": {"values": [1.0, "x"], "largest": 0.5},
            "provenance": [],
        }
    )  # fmt: skip
    assert (run.name, run.gaps, [*run.methods]) == ("", [0.1, 0.01], ["b", "c"])
    assert run.methods["b"].label == "" and run.methods["b"].parameters == {"K": 2, "gamma": 0.5}
    assert isinstance((run.methods["b"].parameters or {})["K"], int) and run.methods["c"].parameters is None
    assert [(t.score, t.reached) for t in run.tuning["b"].grid] == [(1, False), (None, False)] and run.tuning["b"].seeds is None
    assert run.reference and (run.reference.values, run.reference.largest) == ([], 0.5) and run.provenance.config is None


@pytest.mark.parametrize("name", ["ring(51)", "complete(50)"])
def test_a_large_graph_is_named_by_its_fingerprint_alone(name, monkeypatch):
    for limit, value in (("MOST_NODES", 50), ("MOST_LINKS", 1000)):
        monkeypatch.setattr(f"milodo.bench.run_file.{limit}", value)
    net = StackedNetwork(name)
    facts = GraphFacts.of(net, NetworkTable(topology=name))
    assert (facts.edges, facts.diameter, facts.build()) == (None, None, None)
    assert (facts.links, facts.fingerprint) == (len(net.topology.edges), net.topology.fingerprint)
    small = GraphFacts.of(StackedNetwork("ring(6)"), NetworkTable(topology="ring(6)"))
    assert small.diameter == 3 and small.build() == StackedNetwork("ring(6)").topology


def test_further_metrics_survive_the_file_and_a_file_gets_the_columns_it_lacks(tmp_path):
    path, rows = tmp_path / "records.csv", [look("m", 0, k, 0.5, Status.RUNNING) for k in range(4)]
    first = [rows[0], replace(rows[1], metrics={"accuracy": 0.75})]
    append_records(path, first[:1])
    append_records(path, first[1:])
    later = [replace(rows[2], metrics={"train_loss": 1e-300, "accuracy": float("inf")}), rows[3]]
    append_records(path, later)
    assert read_records(path) == first + later
    assert path.read_text(encoding="utf-8").splitlines()[0].split(",") == [*COLUMNS, "accuracy", "train_loss"]
    assert first[1].value("accuracy") == 0.75 and first[1].value("gap") == 0.5 and first[0].value("accuracy") != 0


@pytest.mark.parametrize("name", ["gap", "../x", "a b", "", "x" * 41, "<b>", "\u0661"])
def test_a_metric_that_cannot_name_a_column_a_chart_and_a_file_is_refused(tmp_path, name):
    path, row = tmp_path / "records.csv", look("m", 0, 0, 0.5, Status.STEPS)
    with pytest.raises(InvalidInput, match="a metric cannot be called"):
        write_records(path, [replace(row, metrics={name: 1.0})])
    write_records(path, [replace(row, metrics={"fine": 1.0})])
    path.write_text(path.read_text(encoding="utf-8").replace("fine", name), encoding="utf-8")
    with pytest.raises(InvalidInput, match="not a milodo records file"):
        read_records(path)


def test_a_status_nobody_knows_is_no_record(tmp_path):
    write_records(tmp_path / "records.csv", [look("m", 0, 0, 0.5, Status.STEPS)])
    text = (tmp_path / "records.csv").read_text(encoding="utf-8")
    (tmp_path / "records.csv").write_text(text.replace("STEPS", "BORED"), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"line 2: not a record .status is 'BORED'"):
        read_records(tmp_path / "records.csv")


def test_a_folder_is_begun_resumed_or_replaced_and_never_mixed(tmp_path):
    folder = RunFolder(tmp_path / "run", "training", "facts.json", ("*.csv", "logs/*"))
    assert not folder.begin(resume=False, overwrite=False) and not folder.begin(resume=True, overwrite=False)
    for name in ("facts.json", "rows.csv", "logs/one", "notes.txt"):
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).write_text("{}")
    with pytest.raises(InvalidInput, match=r"already holds a training. Resume it, overwrite it, or write to another folder"):
        folder.begin(resume=False, overwrite=False)
    with pytest.raises(InvalidInput, match="Choose one of them"):
        folder.begin(resume=True, overwrite=True)
    assert folder.begin(resume=True, overwrite=False) and (folder.path / "rows.csv").exists()
    folder.check_same({"graph": "a", "more": 1}, {"graph": "a"})
    with pytest.raises(InvalidInput, match="was made with another graph; going on would mix the two"):
        folder.check_same({"graph": "a"}, {"graph": "b"})
    assert not folder.begin(resume=False, overwrite=True)
    assert sorted(path.name for path in folder.path.rglob("*") if path.is_file()) == ["facts.json", "notes.txt"]


def test_published_step_sizes_are_asked_for_by_family_and_shape():
    assert published("prox-ed", Lasso(10, 300, 10)) == {"gamma": 0.03} and published("dapg", Lasso(10, 300, 10)) == {"eta": 0.01}
    assert published("prox-ed", Lasso(10, 15000, 1000, 0.0)) == {"gamma": 0.08}
    assert all(published("prox-ed", family) == {"gamma": steps["prox-ed"]} for family, steps in STEP_SIZES.items())
    others = [Logistic(10, 300, 10), Lasso(10, 300, 10, 0.2), Lasso(10, 300, 10, reg=L1(0.2)), Lasso(11, 300, 10)]
    for family in others:
        with pytest.raises(InvalidInput, match=r"publishes no step size .* It has some for lasso\(10,300,10,0.1\)"):
            published("prox-ed", family)
