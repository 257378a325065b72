"""Figures and the page, from synthetic records: whole, bare, hostile and broken ones."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib import image

from milodo.bench.merge import merge_runs
from milodo.bench.records import Record, write_records
from milodo.bench.run_file import RunFile
from milodo.cli.tables import run_tables, tuning_table
from milodo.errors import InvalidInput
from milodo.files import write_json
from milodo.report.endings import REACHED, line_ends
from milodo.report.figures import draw_topology, write_figures
from milodo.report.html import CHARTS, charts_script, write_report
from milodo.report.layout import layout, node_size
from milodo.report.run import Run
from milodo.report.spoken import spoken
from milodo.report.training import draw_training
from milodo.report.tuning import grids
from milodo.report.words import amount, number, summary
from milodo.status import Status
from milodo.topology import EXAMPLES, Topology, topology

KS = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]


def look(method: str, instance: int, k: int, gap: float, status: Status, rounds: int = 1) -> Record:
    return Record(
        method=method, instance=instance, seed=100 + instance, k=k, rounds=rounds * k, messages=20 * rounds * k,
        floats=6000 * rounds * k, bytes=48000 * rounds * k, seconds=2e-4 * rounds * k, loss=3 + gap, gap=gap,
        consensus=0.1 * gap if k else 0.0, status=status,
    )  # fmt: skip


def records_of(rates: dict[str, float], instances: int = 4, ending: dict[str, Status] | None = None) -> list[Record]:
    """gap = 10^(1 - rate k), a little different on every instance; DAPG needs 8 rounds an iteration."""
    rows = []
    for method, rate in rates.items():
        end = (ending or {}).get(method, Status.STEPS)
        ks = KS[: KS.index(50) + 1] if end in (Status.DIVERGED, Status.INTERRUPTED) else KS
        for i in range(instances):
            for k in ks:
                gap = 10 ** max(1 - rate * (1 + 0.1 * i) * k, -15)
                last = k == ks[-1]
                gap = math.nan if last and end is Status.DIVERGED else gap
                rows.append(look(method, i, k, gap, end if last else Status.RUNNING, 8 if method == "dapg" else 1))
    return rows


def complete() -> dict[str, Any]:
    """A run.json with everything in it."""
    ring = topology("ring(10)")
    how = {"prox-ed": "tuned", "prox-ed (published)": "published", "dapg": "tuned", "wild": "given", "cut": "given"}
    labels = {
        "prox-ed": "Prox-ED",
        "prox-ed (published)": "Prox-ED (published)",
        "dapg": "DAPG",
        "wild": "Wild",
        "cut": "Cut short",
    }
    grid = [
        {"parameters": {"gamma": 0.01}, "score": 900.0, "reached": True, "gap": 1e-3, "diverged": False},
        {"parameters": {"gamma": 0.05}, "score": 400.0, "reached": True, "gap": 1e-3, "diverged": False},
        {"parameters": {"gamma": 5.0}, "score": None, "reached": False, "gap": None, "diverged": True},
    ]
    tuning = {"target": 1e-3, "iterations": 3000, "cost": "iterations", "instances": 8, "seeds": [1, 2], "candidates": 3}
    return {
        "format": 1, "name": "demo", "title": "LASSO on a ring of ten nodes",
        "description": "Ten nodes look for a sparse vector.",
        "problem": "lasso(10,300,10,0.1)", "instances": 4, "runtime": "simulated",
        "topology": {
            "name": "ring(10)", "n": 10, "edges": [list(edge) for edge in ring.edges], "diameter": 5, "weights": "metropolis",
            "contraction": 0.8727, "fingerprint": ring.fingerprint,
        },
        "methods": {
            key: {"label": label, "parameters": {"gamma": 0.05}, "how": how[key], "rounds_per_iteration": 1, "exact": True}
            for key, label in labels.items()
        },
        "tuning": {
            "prox-ed": {**tuning, "best": {"gamma": 0.05}, "score": 400.0, "reached": True, "grid": grid, "cached": False}
        },
        "reference": {"kind": "duality gap", "largest": 1.7e-15, "values": [3.0, 3.1, 3.2, None]},
        "gaps": [0.1, 0.01, 0.001], "baseline": "prox-ed",
        "provenance": {
            "milodo": "0.1.0", "commit": "abc123", "python": "3.11", "seed": 0, "started": "2026-11-15T19:00:00+00:00",
            "command": "milodo bench demo", "config": {"problem": {"family": "lasso"}, "run": {"iterations": 1000}},
        },
    }  # fmt: skip


def make_run(folder: Path, run: dict[str, Any], records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_records(folder / "records.csv", records)
    write_json(folder / "run.json", run)
    return folder


def complete_run(folder: Path) -> Path:
    rates = {"prox-ed": 0.01, "prox-ed (published)": 0.004, "dapg": 0.1, "wild": -0.1, "cut": 0.01}
    return make_run(folder, complete(), records_of(rates, ending={"wild": Status.DIVERGED, "cut": Status.INTERRUPTED}))


@pytest.fixture
def pageonly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pictures as files, which take seconds, and plotly's megabyte, which is the same in every page."""
    monkeypatch.setattr("milodo.report.html.write_figures", lambda run: [])
    monkeypatch.setattr("milodo.report.html.charts_script", lambda: "")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = complete_run(tmp_path_factory.mktemp("runs") / "demo")
    write_report(Run(folder))
    return folder


class Page(HTMLParser):
    """Tags with their attributes, the text outside of scripts, and what scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def page_of(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def colours(pixels: np.ndarray) -> int:
    """How many different ones; a blank picture has one."""
    rgb = (pixels[::2, ::2, :3] * 255).astype(np.int64)
    return len(np.unique(rgb @ np.array([1, 256, 65536])))


def report(folder: Path) -> Page:
    return Page(write_report(Run(folder)).read_text(encoding="utf-8"))


def test_the_page_says_everything_that_is_known(whole):
    text = " ".join(page_of(whole).text.split())
    for said in (
        "LASSO on a ring of ten nodes", "Ten nodes look for a sparse vector.", "lasso(10,300,10,0.1)", "metropolis", "0.8727",
        "duality gap", "1.7 × 10⁻¹⁵", "abc123", "milodo bench demo", "15 November 2026",
        "What a gap costs", "speed-up in bytes over Prox-ED", "Published and tuned",
        "from 3 candidates", "chosen on 8 other instances by the fewest iterations to a gap of 0.001",
        "stopped by the user; what was recorded is kept", "the loss is no longer finite",
        "Seconds count the time spent in steps only",
        "f(x̄) + r(x̄) − f*", "an absolute difference",
    ):  # fmt: skip
        assert said in text, said


def test_the_sections_come_in_order(whole):
    ids = [attrs["id"] for tag, attrs in page_of(whole).tags if tag == "section"]
    assert ids == ["network", "race", "speed", "end", "tuning", "certificate", "origin"]
    levels = [int(tag[1]) for tag, _ in page_of(whole).tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels)), "a level of headings is skipped"


def test_the_summary_is_computed_from_the_records(whole):
    # Rates 0.01 and 0.1 times 1, 1.1, 1.2, 1.3: 4 / rate iterations from a gap of 10 to 1e-3, median over four instances.
    expected = np.median([np.ceil(4 / (0.1 * (1 + 0.1 * i))) for i in range(4)])
    said = summary(Run(whole))
    assert said.startswith(f"DAPG reaches a gap of 0.001 in {expected:.0f} iterations, 9.9× fewer than Prox-ED")
    assert "do not get there" in said and "Wild" in said
    assert said in " ".join(page_of(whole).text.split())


def test_the_charts_get_the_medians_and_no_infinity(whole):
    data = page_of(whole).data
    assert [axis["key"] for axis in data["axes"]] == ["k", "rounds", "bytes", "seconds"]
    gap = data["charts"][0]["lines"][0]
    expected = [np.median([10 ** max(1 - 0.01 * (1 + 0.1 * i) * k, -15) for i in range(4)]) for k in KS]
    assert gap["median"] == pytest.approx(expected, rel=1e-4)
    assert gap["x"]["bytes"][1:] == [48000 * k for k in KS[1:]]
    wild = data["charts"][0]["lines"][3]
    assert wild["median"][-1] is None


def test_the_page_loads_nothing_from_anywhere(whole):
    text = (whole / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    for tag, attrs in page.tags:
        for name in ("src", "srcset", "data", "action", "poster", "background"):
            assert name not in attrs, (tag, attrs)
        href = attrs.get("href") or ""
        assert href.startswith(("#", "figures/")) or not href, href
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
    own = text.replace(charts_script(), "")
    assert len(own) < len(text)
    assert not re.search(r"https?://|url\(|@import", own)
    policy = next(attrs["content"] or "" for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "http" not in policy


def test_the_page_of_a_real_race_is_at_most_a_megabyte_and_a_half(tmp_path):
    """Ten methods, 32 instances, every candidate of their tuning: the largest race whose records are kept here."""
    folder = shutil.copytree(Path(__file__).parent.parent / "docs" / "records" / "auto-ring10", tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milodo.report.html.write_figures", lambda run: [])  # files beside the page
        assert 1_000_000 < write_report(Run(folder)).stat().st_size <= 1_500_000


def test_the_charts_are_drawn_by_the_script_whose_origin_is_told():
    said = (CHARTS.parent / "README.md").read_text(encoding="utf-8")
    version, checksum = re.search(r"version (\S+),", said), re.search(r"sha256: ([0-9a-f]{64})", said)
    assert version and checksum
    assert hashlib.sha256(CHARTS.read_bytes()).hexdigest() == checksum[1]
    assert f"plotly.js (basic - minified) v{version[1]}" in CHARTS.read_text(encoding="utf-8")[:200]
    assert "MIT License" in (CHARTS.parent / "plotly-LICENSE.txt").read_text()


def test_every_chart_is_told_in_a_sentence_and_in_a_table_of_its_medians(whole):
    page, text = page_of(whole), " ".join(page_of(whole).text.split())
    charts = [attrs for tag, attrs in page.tags if attrs.get("class") == "chart"]
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(charts) == 2 and all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    assert all(chart["aria-describedby"] in ids for chart in charts)
    assert [attrs["aria-label"] for tag, attrs in page.tags if tag == "svg" and attrs.get("role") == "img"] == [
        "ring(10): 10 nodes, 10 links, diameter 5"
    ]
    # DAPG's gap is 10^(1 - 0.1 (1 + 0.1 i) k): the truth of a cell, computed without the report.
    expected = number(float(np.median([10 ** max(1 - 0.1 * (1 + 0.1 * i) * 10, -15) for i in range(4)])), 2)
    told = spoken(Run(whole), Run(whole).quantities[0])
    assert told.iterations == [1, 10, 100, 1000]
    row = next(cells for label, cells, _ in told.rows if label == "DAPG")
    assert row[1] == expected and expected in text
    assert told.sentence in text and "DAPG ends at 10⁻¹⁵ after 1,000 iterations, the lowest" in told.sentence
    cells, last = next((cells, last) for label, cells, last in told.rows if label == "Wild")
    assert cells[2:] == ["–", "–"] and last == "diverged at 50"


def test_every_link_to_a_figure_leads_to_a_picture_that_is_not_blank(whole):
    links = [
        attrs["href"] or ""
        for tag, attrs in page_of(whole).tags
        if tag == "a" and (attrs.get("href") or "").startswith("figures/")
    ]
    names = {Path(link).stem for link in links}
    curves = {f"{q}-{a}" for q in ("gap", "consensus") for a in ("iterations", "rounds", "bytes", "seconds")}
    assert names == curves | {"race", "topology"}
    for link in links:
        path = whole / link
        if path.suffix == ".png":
            pixels = image.imread(path)
            assert min(pixels.shape[:2]) > 300
            assert colours(pixels) > 10, f"{link} is blank"
        else:
            assert path.read_text().count("<path") > 10, f"{link} is blank"


def test_the_same_records_give_the_same_files(whole, tmp_path):
    for path in write_figures(Run(complete_run(tmp_path / "again"))):
        assert path.read_bytes() == (whole / "figures" / path.name).read_bytes(), path.name


def test_pictures_leave_no_global_state(tmp_path):
    before = dict(matplotlib.rcParams)
    draw_topology(topology("ring(5)"), tmp_path / "ring")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.usefixtures("drawn_once")
def test_nothing_is_printed(tmp_path, capfd):
    write_report(Run(make_run(tmp_path / "quiet", {"format": 1, "name": "quiet"}, records_of({"m": 0.01}, instances=2))))
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("undrawn")
def test_a_bare_run_has_the_race_and_no_invented_section(tmp_path):
    page = report(make_run(tmp_path / "bare", {"format": 1, "name": "bare"}, records_of({"prox-ed": 0.01, "dapg": 0.02})))
    ids = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert ids == ["race", "end", "origin"]
    assert "bare" in page.text and "dapg ends with a gap of" in page.text
    assert not (tmp_path / "bare" / "figures" / "topology.png").exists()


@pytest.mark.parametrize("key", [key for key in complete() if key not in ("format", "name")])
@pytest.mark.parametrize("value", ["missing", None, 7, "text", [], {}, ["x"], {"x": "y"}])
@pytest.mark.usefixtures("pageonly")
def test_any_part_may_be_missing_or_odd(tmp_path, key, value):
    run = complete()
    run.pop(key) if value == "missing" else run.update({key: value})
    report(make_run(tmp_path, run, records_of({"prox-ed": 0.01, "prox-ed (published)": 0.004, "dapg": 0.1})))


@pytest.mark.usefixtures("drawn_once")
def test_without_a_certified_optimum_the_loss_is_shown_and_no_gap(tmp_path):
    """The loss is negative here, which a log scale could not show."""
    records = [look("m", 0, k, math.nan, Status.STEPS if k == 1000 else Status.RUNNING) for k in KS]
    records = [Record(**{**vars(r), "loss": -1 + 1 / (1 + r.k), "consensus": 0.5}) for r in records]
    page = report(make_run(tmp_path / "run", {"format": 1, "name": "no optimum", "gaps": [0.1]}, records))
    assert [chart["key"] for chart in page.data["charts"]] == ["loss", "consensus"]
    assert page.data["charts"][0]["lines"][0]["median"][-1] == pytest.approx(-1 + 1 / 1001, rel=1e-4)
    assert "No optimum was certified" in page.text and "What a gap costs" not in page.text
    assert (tmp_path / "run" / "figures" / "loss-iterations.png").exists()


def test_every_further_metric_has_a_chart_of_its_own_on_a_linear_axis(tmp_path):
    records = [replace(r, metrics={"test_accuracy": 1 - 1 / (1 + r.k)}) for r in records_of({"m": 0.01, "n": 0.02})]
    page = report(make_run(tmp_path / "run", {"format": 1, "name": "measured"}, records))
    chart = page.data["charts"][-1]
    assert (chart["key"], chart["title"], chart["log"]) == ("test_accuracy", "test accuracy", False)
    assert chart["lines"][0]["median"] == pytest.approx([1 - 1 / (1 + k) for k in KS], rel=1e-4)
    assert "The test accuracy, as the problem measures it" in " ".join(page.text.split())
    heads = [text.strip() for text in re.findall(r"<th[^>]*>([^<]*)</th>", (tmp_path / "run" / "report.html").read_text("utf-8"))]
    assert {"gap", "consensus error", "test accuracy"} <= set(heads)
    assert (tmp_path / "run" / "figures" / "test_accuracy-bytes.svg").exists()


@pytest.mark.usefixtures("pageonly")
def test_what_metrics_are_measured_at_is_said_of_each(tmp_path):
    metrics = {"test_accuracy": 0.9, "worst_accuracy": 0.8, "sparsity": 0.5}
    records = [replace(r, gap=math.nan, metrics=metrics) for r in records_of({"m": 0.01})]
    text = " ".join(report(make_run(tmp_path, {"format": 1, "name": "measured"}, records)).text.split())
    assert "The test accuracy, as the problem measures it at the average x̄ of all nodes." in text
    assert "The accuracy on the test samples of the model of the worst node" in text
    assert "The worst accuracy, as" not in text
    assert "The sparsity, as the problem measures it." in text


@pytest.mark.parametrize("lowest", [1e-6, -1e-6])
@pytest.mark.usefixtures("pageonly")
def test_a_loss_has_a_logarithmic_axis_where_it_is_positive(tmp_path, lowest):
    records = [replace(r, gap=math.nan, loss=max(r.gap, lowest) + min(lowest, 0)) for r in records_of({"m": 0.01})]
    chart = report(make_run(tmp_path, {"format": 1, "name": "network"}, records)).data["charts"][0]
    assert (chart["key"], chart["log"]) == ("loss", lowest > 0)
    assert (chart["window"][0] > 0) == (lowest > 0)


@pytest.mark.parametrize("certified", [True, False])
@pytest.mark.usefixtures("pageonly")
def test_no_method_is_said_to_converge_to_an_optimum_that_nobody_knows(tmp_path, certified):
    records = [r if certified else replace(r, gap=math.nan) for r in records_of({"prox-ed": 0.01})]
    text = report(make_run(tmp_path, complete(), records)).text
    assert ("the optimum" in text.split("converges to")[1].split("Every candidate")[0]) == certified
    assert ("a stationary point, given full gradients" in text) != certified


@pytest.mark.usefixtures("pageonly")
def test_it_is_said_how_many_candidates_reached_the_target(tmp_path):
    """Those that ran beside the chosen one may have been there before it."""
    said = {}
    for reached in (0, 3):
        run = complete()
        grid = [
            {"parameters": {"gamma": 0.01 * (k + 1)}, "score": 400.0 + k, "reached": k < reached, "gap": 1e-3, "diverged": False}
            for k in range(7)
        ]
        run["tuning"]["prox-ed"] |= {"reached": False, "grid": grid, "candidates": 7, "best": grid[5]["parameters"]}
        said[reached] = report(make_run(tmp_path / str(reached), run, records_of({"prox-ed": 0.01}))).text
    assert "none reached the target" in said[0]
    assert "none reached the target" not in said[3] and "3 of 7 reached the target" in said[3]


def ended(method: str, k: int, status: Status, instance: int = 0) -> list[Record]:
    rows = [r for r in records_of({method: 0.01}, instances=1) if r.k < k]
    return [replace(r, instance=instance) for r in [*rows, look(method, 0, k, 1e-3, status)]]


@pytest.mark.usefixtures("pageonly")
def test_it_is_said_why_lines_end_and_which_methods_were_given_fewer_iterations(tmp_path):
    by = {"dapg": (40, Status.CONVERGED), "prox-ed": (400, Status.STEPS), "wild": (300, Status.STEPS), "cut": (300, Status.STEPS)}
    records = [row for method, end in by.items() for row in ended(method, *end)]
    text = " ".join(report(make_run(tmp_path / "some", complete(), records)).text.split())
    assert "A line ends where the iterations it was given were used up; that of DAPG where half of the instances have" in text
    assert "not given the same number of iterations: Prox-ED 400; Wild and Cut short 300." in text
    all_alike = [row for method in ("dapg", "prox-ed") for row in ended(method, 400, Status.STEPS)]
    text = " ".join(report(make_run(tmp_path / "alike", complete(), all_alike)).text.split())
    assert "A line ends where the iterations it was given were used up." in text
    assert "reached their tolerance" not in text and "not given the same number" not in text
    # One of three ran out of iterations before half of them were there: the line ends with it.
    few = [*ended("dapg", 20, Status.STEPS), *ended("dapg", 40, Status.CONVERGED, 1), *ended("dapg", 50, Status.CONVERGED, 2)]
    run = Run(make_run(tmp_path / "few", complete(), few))
    assert run.curve("dapg", "k", run.quantities[0]).x[-1] == 20 and "used up" in line_ends(run)


def test_candidates_stand_from_the_best_to_those_that_diverged(tmp_path):
    run = complete()
    grid = [
        {"parameters": {"gamma": 0.1}, "score": 50.0, "reached": False, "gap": 1.0, "diverged": False},
        {"parameters": {"gamma": 0.2}, "score": None, "reached": False, "gap": None, "diverged": True},
        {"parameters": {"gamma": 0.3}, "score": 400.0, "reached": True, "gap": 1e-3, "diverged": False},
        {"parameters": {"gamma": 0.4}, "score": 300.0, "reached": True, "gap": 1e-3, "diverged": False},
    ]
    run["tuning"]["prox-ed"] |= {"grid": grid, "best": {"gamma": 0.4}}
    (shown,) = grids(Run(make_run(tmp_path, run, records_of({"prox-ed": 0.01}))))
    assert [row["values"] for row in shown["rows"]] == [["0.4"], ["0.3"], ["0.1"], ["0.2"]]


def test_a_line_of_which_just_half_converged_ends_where_the_last_of_these_did(tmp_path):
    both = [*ended("dapg", 40, Status.CONVERGED), *ended("dapg", 300, Status.STEPS, 1)]
    run = Run(make_run(tmp_path, complete(), both))
    assert run.curve("dapg", "k", run.quantities[0]).x[-1] == 40 and REACHED in line_ends(run)


def test_a_graph_too_large_to_be_drawn_is_said_to_be(tmp_path):
    run = complete()
    run["topology"] = {"name": "ring(100000)", "n": 100_000, "links": 100_000, "fingerprint": "abc"}
    page = report(make_run(tmp_path / "run", run, records_of({"prox-ed": 0.01})))
    text = " ".join(page.text.split())
    assert "none of a graph this large" in text and "100,000" in text and "Nodes talk only along the links" not in text
    assert not (tmp_path / "run" / "figures" / "topology.png").exists()
    run["topology"] |= {"n": 3000, "links": None, "edges": [[i, (i + 1) % 3000] for i in range(3000)]}  # of an earlier version
    assert "none of a graph this large" in report(make_run(tmp_path / "old", run, records_of({"prox-ed": 0.01}))).text


@pytest.mark.usefixtures("pageonly")
def test_one_instance_has_no_quartiles(tmp_path):
    page = report(make_run(tmp_path / "one", complete(), records_of({"prox-ed": 0.01, "dapg": 0.1}, instances=1)))
    assert "on one instance" in page.text and "One instance." in page.text
    assert "quartiles" not in page.text


@pytest.mark.usefixtures("drawn_once")
def test_only_a_diverged_method_still_makes_a_page(tmp_path):
    rows = [look("wild", 0, 0, 1.0, Status.RUNNING), look("wild", 0, 1, math.inf, Status.DIVERGED)]
    assert "diverged" in report(make_run(tmp_path / "wild", complete(), rows)).text


@pytest.mark.usefixtures("drawn_once")
def test_a_run_cut_off_at_its_start_and_a_single_node_still_make_a_page(tmp_path):
    start = [look("m", i, 0, 1.0, Status.INTERRUPTED) for i in range(3)]
    assert "stopped by the user" in report(make_run(tmp_path / "start", complete(), start)).text
    alone = [
        Record(**{**vars(r), "rounds": 0, "messages": 0, "floats": 0, "bytes": 0, "consensus": 0.0})
        for r in records_of({"m": 0.01})
    ]
    page = report(make_run(tmp_path / "alone", {"format": 1, "name": "alone"}, alone))
    assert [axis["key"] for axis in page.data["axes"]] == ["k", "seconds"]
    assert "Nothing to draw" in page.text


@pytest.mark.usefixtures("pageonly")
def test_methods_without_records_are_named(tmp_path):
    page = report(make_run(tmp_path / "early", complete(), records_of({"prox-ed": 0.01})))
    assert "No records yet: Prox-ED (published), DAPG, Wild and Cut short." in page.text


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{ 7*7 }}&$x_y$"


@pytest.mark.usefixtures("drawn_once")
def test_hostile_strings_stay_text(tmp_path):
    def poison(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: poison(entry) for key, entry in value.items()}
        return HOSTILE if isinstance(value, str) and value != "prox-ed" else value

    run = poison(complete()) | {"name": HOSTILE}
    run["methods"][HOSTILE] = {"label": HOSTILE, "parameters": {HOSTILE: HOSTILE}, "how": HOSTILE}
    run["provenance"][HOSTILE] = HOSTILE
    page = report(make_run(tmp_path / "hostile", run, records_of({"prox-ed": 0.01, HOSTILE: 0.02})))
    assert [tag for tag, _ in page.tags].count("script") == 3  # the data, plotly and ours
    assert all(tag != "img" and not any(name.startswith("on") for name in attrs) for tag, attrs in page.tags)
    assert page.text.count(HOSTILE) > 5
    assert page.data["methods"][1]["label"].startswith(HOSTILE)


def test_a_folder_without_records_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(InvalidInput, match="no run folder"):
        Run(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="no records"):
        Run(tmp_path)
    write_records(tmp_path / "records.csv", [])
    with pytest.raises(InvalidInput, match="holds no records"):
        Run(tmp_path)
    write_records(tmp_path / "records.csv", records_of({"m": 0.1}))
    with pytest.raises(InvalidInput, match=r"no run\.json"):
        Run(tmp_path)


@pytest.mark.parametrize(
    "name", [*EXAMPLES, "ring(1)", "ring(2)", "path(40)", "tree(2)", "tree(60)", "grid(1x5)", "regular(400,3)"]
)
def test_every_topology_has_a_picture_in_which_nodes_lie_apart(tmp_path, name):
    graph = topology(name)
    x = layout(graph)
    assert x.shape == (graph.n, 2) and np.isfinite(x).all() and (x >= -1e-9).all() and (x <= 1 + 1e-9).all()
    if graph.n <= 100:
        apart = [np.linalg.norm(x[i] - x[j]) for i in range(graph.n) for j in range(i)]
        assert min(apart, default=1) > node_size(x) * 0.99
    paths = draw_topology(graph, tmp_path / name)
    assert [path.name for path in paths] == [f"{name}.png", f"{name}.svg"]
    assert colours(image.imread(paths[0])) > 5


def test_neighbours_on_a_ring_grid_and_tree_are_drawn_as_neighbours():
    ring, grid, tree = (topology(name) for name in ("ring(10)", "grid(3x4)", "tree(10)"))
    x = layout(ring)
    assert np.ptp([np.linalg.norm(x[i] - x[j]) for i, j in ring.edges]) < 1e-9
    x = layout(grid)
    assert all(np.isclose(x[i], x[j]).sum() == 1 for i, j in grid.edges)  # horizontal or vertical
    x = layout(tree)
    assert all(x[i, 1] > x[j, 1] for i, j in tree.edges)  # a parent above its child
    order = (3, 1, 4, 0, 5, 9, 2, 6, 8, 7)
    shuffled = Topology.from_edges((order[i], order[j]) for i, j in ring.edges)
    x = layout(shuffled)
    assert np.ptp([np.linalg.norm(x[i] - x[j]) for i, j in shuffled.edges]) < 1e-9


def test_draw_topology_keeps_to_the_format_asked_for(tmp_path):
    assert draw_topology(topology("ring(5)"), tmp_path / "a.svg") == [tmp_path / "a.svg"]
    assert draw_topology(topology("ring(5)"), str(tmp_path / "b.png")) == [tmp_path / "b.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.png"]


def test_numbers_are_written_as_a_person_would():
    assert [number(v) for v in (0, 1, 0.05, 1e-3, 1e-5, 123456, 2.5e9, math.inf)] == [
        "0", "1", "0.05", "0.001", "10⁻⁵", "123,000", "2.5 × 10⁹", "∞",
    ]  # fmt: skip
    assert amount(160.4, "k") == "160 iterations"
    assert amount(1.234e6, "bytes") == "1.23 MB"
    assert amount(0.0123, "seconds") == "12.3 ms"
    assert amount(999.9, "bytes") == "1 kB"


def test_step_sizes_are_whole_words_on_the_page(whole):
    text = (whole / "report.html").read_text(encoding="utf-8")
    table = text[text.index("What each method ran with") :]
    assert table[: table.index("</table>")].count('<td class="code"><span class="main">gamma = 0.05</span></td>') == 5


def test_a_race_that_was_over_before_it_began_has_a_page_without_curves(tmp_path):
    """With stop_gap above the first gap every instance has converged at k = 0; only the clock has moved."""
    rows = [Record(**{**vars(look(m, i, 0, 1.0, Status.CONVERGED)), "seconds": 1e-5}) for m in ("a", "b") for i in range(3)]
    page = report(make_run(tmp_path / "over", {**complete(), "gaps": [10.0, 1.0]}, rows))
    assert "no method made a step" in page.text and "a reaches a gap of 1 in 0 iterations" in page.text
    assert sorted(path.name for path in (tmp_path / "over" / "figures").iterdir()) == ["topology.png", "topology.svg"]
    assert [cell for column in run_tables(Run(tmp_path / "over"))[0].columns[1:] for cell in column.cells if cell != "-"]


DAMAGE: dict[str, tuple[str, Any]] = {
    "no methods": ("methods", "x"), "a method that is none": ("methods.prox-ed", 5), "no label": ("methods.prox-ed.label", [1]),
    "exact of a list": ("methods.prox-ed.exact", []), "parameters of words": ("methods.prox-ed.parameters", {"gamma": "x"}),
    "weights of words": ("methods.prox-ed.weights", "x"), "gaps beyond floats": ("gaps", [10**400, 0.1]), "gaps of words": ("gaps", ["x"]),
    "gaps that are none": ("gaps", {"a": 1}), "a baseline of lists": ("baseline", []), "instances of words": ("instances", "many"),
    "instances of lists": ("instances", [4]), "no topology": ("topology", 7), "a graph without a name": ("topology.name", None),
    "a contraction of words": ("topology.contraction", "x"), "tuning of words": ("tuning", "x"), "a tuning that is none": ("tuning.prox-ed", 3),
    "a score of words": ("tuning.prox-ed.score", "x"), "a cost of lists": ("tuning.prox-ed.cost", [1]), "a grid of words": ("tuning.prox-ed.grid", ["x"]),
    "a score beyond floats": ("tuning.prox-ed.grid", [{"parameters": {"gamma": 1}, "score": 10**400}]), "seeds of lists": ("tuning.prox-ed.seeds", [[1]]),
    "optima of words": ("reference.values", ["x"]), "a bound beyond floats": ("reference.largest", 10**400), "no provenance": ("provenance", []),
    "provenance beyond floats": ("provenance.cores", 10**400), "a problem of lists": ("problem", [1]), "a runtime of numbers": ("runtime", 3),
}  # fmt: skip


def put(tree: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    *path, last = place.split(".")
    here = tree
    for key in path:
        here = here[key]
    here[last] = value
    return tree


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.usefixtures("pageonly")
def test_a_run_file_with_facts_of_the_wrong_kind_still_has_a_page_tables_and_a_place_among_others(tmp_path, name):
    rates = {"prox-ed": 0.01, "prox-ed (published)": 0.004, "dapg": 0.1}
    folder = make_run(tmp_path / "run", put(complete(), *DAMAGE[name]), records_of(rates))
    report(folder)
    assert len(run_tables(Run(folder))) == 2
    assert tuning_table(RunFile.read(folder)).row_count <= 5
    assert isinstance(RunFile.read(folder).instances, int | None)
    merge_runs([folder, folder], tmp_path / "merged")
    report(tmp_path / "merged")


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("topology.n", 10**9, "has 1000000000 nodes, which 10 edges cannot join"),
        ("topology.edges", [[0, 1], [1, "x"]], "edges that are not pairs of nodes"),
        ("topology.edges", [[0, 1]] * 9, "the graph is disconnected"),
        ("title", "\ud800", "text that is none"),
        ("provenance.config", json.loads("[" * 99 + "]" * 99), "lists within lists"),
        ("format", 10**400, "is newer than this milodo reads"),
    ],
)
@pytest.mark.usefixtures("pageonly")
def test_a_run_file_that_cannot_be_meant_is_refused_by_its_name(tmp_path, place, value, says):
    make_run(tmp_path, put(complete(), place, value), records_of({"prox-ed": 0.01}))
    with pytest.raises(InvalidInput, match=rf"run\.json.*{says}") as caught:
        report(tmp_path)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (b"\x89PNG\r\n\xff\xfe\x00", "records.csv: cannot be read"),
        (b"a" * 200_000, "records.csv: cannot be read"),
        (b"prox-ed,0,0,-1,0,0,0,0,0,0,0,0,STEPS", "records.csv, line 2: not a record .k is -1"),
        (b"prox-ed,0,0,1" + b"0" * 400 + b",0,0,0,0,0,0,0,0,STEPS", "records.csv, line 2: not a record .k is 1000"),
        (b"prox-ed,0,0,1,0,0,0,0,nan,0,0,0,STEPS", "records.csv, line 2: not a record .seconds is nan"),
        (b"prox-ed,0,0," + b"x" * 9000 + b",0,0,0,0,0,0,0,0,STEPS", "records.csv, line 2: not a record"),
    ],
)
def test_records_that_are_none_are_refused_by_their_name(tmp_path, cells, says):
    make_run(tmp_path, complete(), [])
    with (tmp_path / "records.csv").open("ab") as file:
        file.write(cells + b"\n")
    with pytest.raises(InvalidInput, match=says) as caught:
        Run(tmp_path)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:overflow")  # matplotlib tries ticks far outside of the picture
@pytest.mark.usefixtures("drawn_once")
def test_numbers_at_the_ends_of_fp64_are_drawn(tmp_path):
    values = [1e308, 1e-320, 1.0, math.inf, math.nan, 5e-324, 1.7e308]
    rows = [look("m", 0, k, value, Status.STEPS if k == 6 else Status.RUNNING) for k, value in enumerate(values)]
    run = Run(make_run(tmp_path / "ends", {"format": 1, "name": "ends"}, rows))
    paths = write_figures(run)
    assert len(paths) == 2 * 9 and all(math.isfinite(end) for end in run.window(run.quantities[0]) or ())


@pytest.mark.parametrize("name", ["x" * 300, "x\0y"])
def test_a_folder_that_cannot_be_is_refused(name):
    with pytest.raises(InvalidInput, match="no run folder 'x"):
        Run(name)


@pytest.mark.parametrize(
    ("rows", "facts", "says"),
    [
        (b"\xff\xfe", {}, "training.csv: cannot be read"),
        (b"1,1,1,0.5,2.0,1.0,0.1,,\nx,1,1,0.5,2.0,1.0,0.1,,\n3,1,1,1,1,1,1,1,\n", {}, "training.csv, line 3: not a row"),
        (b"1" + b"0" * 400 + b",1,1,1,1,1,1,1,\n1,1,1,1,1,1,1,1,\n", {}, "training.csv, line 2: not a row"),
        (b"1,1,1,0.5,2.0,1.0,0.1,,\n", {"config": ["x"]}, None),
    ],
)
def test_a_damaged_training_is_drawn_or_refused_by_its_name(tmp_path, rows, facts, says):
    (tmp_path / "training.csv").write_bytes(b"update,stage,epoch,seconds,loss,norm,lr,validation,remark\n" + rows)
    write_json(tmp_path / "training.json", {"format": 1, **facts})
    if says is None:
        assert draw_training(tmp_path).exists()
        return
    with pytest.raises(InvalidInput, match=says):
        draw_training(tmp_path)
