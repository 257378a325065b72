"""The paper, reproduced by name: its files, their two sizes, small runs of them, and verdicts on records made up for it."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from milodo.bench.plan import Planner
from milodo.bench.records import Record, read_records, write_records
from milodo.bench.run_file import MethodFacts, RunFile
from milodo.cli.experiments import loaded_experiment
from milodo.cli.main import run as milodo
from milodo.config import load_experiment
from milodo.config.experiment import parse_experiment, read_content
from milodo.errors import InvalidInput
from milodo.network.stacked import CommonMixingNetwork
from milodo.paper import reproduction as reproductions
from milodo.paper.claims import ExpectTable
from milodo.paper.drawing import LARGEST, draw_paper, draw_small
from milodo.paper.reproducer import Reproducer
from milodo.paper.reproduction import NAMES, first_panel, load_reproduction
from milodo.paper.results_page import replaced, section
from milodo.paper.step_sizes import STEP_SIZES, published
from milodo.paper.verdict import Finding, Level, Verdict, consensus_over, judged, verdict
from milodo.report.run import Run
from milodo.shipped import shipped_experiments
from milodo.status import Status

PG_EXTRA = '{ name = "pg-extra", iterations = 60 }'
EXPERIMENTS = Path(__file__).parent.parent / "experiments"
TINY = """
title = "Tiny"
methods = [
    { name = "prox-ed", use = "published", parameters = { gamma = 0.02 } }, { name = "prox-ed" },
    { name = "pg-extra", iterations = 60 },
]

[problem]
family = "lasso"
n = 5
d = 6
N = 10

[network]
topology = "ring(5)"

[run]
iterations = 80
instances = 2

[tuning]
instances = 1
iterations = 30
points = 3
refinements = 0

[report]
gaps = [1.0, 1e-1]

[reproduction]
claim = "PG-EXTRA is not slower than Prox-ED."
figure = "Fig. 0"
minutes = [0, 1]
expect = { method = "pg-extra", over = "prox-ed", gap = 1e-1, speedup = 1e-3, consensus = 1e-3 }

[[reproduction.panels]]
name = "ring"

[[reproduction.panels]]
name = "star"
network = { topology = "star(5)" }
problem = { d = 4 }
without = ["pg-extra"]
methods = [{ name = "prox-atc" }]
expect = { method = "prox-atc" }
paper = { problem = { d = 7 } }

[reproduction.paper]
run = { iterations = 90 }
methods = [{ name = "prox-ed", use = "published", parameters = { gamma = 0.03 } }]
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def command(*words: object) -> int:
    """Its exit code."""
    try:
        return milodo([str(word) for word in words])
    except SystemExit as ended:
        return int(ended.code or 0)


def test_there_is_a_file_for_every_name_and_no_other():
    assert sorted(NAMES) == sorted(path.stem for path in (EXPERIMENTS / "paper").glob("*.toml"))
    assert len(NAMES) == 18


@pytest.mark.parametrize("size", ["laptop", "paper"])
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_and_table_is_valid_in_both_sizes_without_data(name, size, tmp_path, monkeypatch):
    monkeypatch.setenv("MILODO_DATA", str(tmp_path / "nothing"))
    loaded = load_reproduction(name, size)
    assert loaded.name == name and loaded.title and loaded.description and loaded.about.claim.endswith(".")
    assert loaded.about.minutes[0] <= 15 and loaded.about.minutes[0] <= loaded.about.minutes[1]
    for panel in loaded.panels:
        races = {method.key for method in panel.experiment.methods}
        expect = panel.expect
        assert {*expect.converge, *expect.fail} <= races
        if expect.speedup or expect.consensus:
            assert expect.method in races and {f"{expect.over} (published)", f"{expect.over} (safe)"} & races
            assert expect.over in races
        asked = panel.experiment.report.gaps
        assert expect.gap is None or expect.gap in asked or not loaded.panels[0].expect.speedup, (
            "the verdict's gap is in no table"
        )


def test_the_first_panel_at_laptop_size_is_an_ordinary_experiment(tiny):
    first, loaded = parse_experiment(first_panel(read_content(tiny), "tiny"), "tiny"), load_reproduction(tiny)
    assert first == loaded.panels[0].experiment and first.name == "tiny-ring"


def test_panels_and_sizes_change_what_they_name_and_nothing_else(tiny):
    ring, star = load_reproduction(tiny).panels
    assert [method.key for method in ring.experiment.methods] == ["prox-ed (published)", "prox-ed", "pg-extra"]
    assert [method.key for method in star.experiment.methods] == ["prox-ed (published)", "prox-ed", "prox-atc"]
    assert (star.experiment.problem.d, star.experiment.problem.N, star.experiment.network.topology) == (4, 10, "star(5)")
    assert (ring.expect.method, star.expect.method) == ("pg-extra", "prox-atc") and ring.expect.speedup == star.expect.speedup
    large, larger = load_reproduction(tiny, "paper").panels
    assert (large.experiment.problem.d, larger.experiment.problem.d) == (6, 7)
    assert large.experiment.run.iterations == 90 and large.experiment.run.instances == 2
    assert large.experiment.methods[0].parameters == {"gamma": 0.03}
    assert ring.experiment.methods[2].iterations == 60 and large.experiment.methods[2].iterations is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('name = "star"', 'name = "ring"'), "the panel 'ring' is there twice"),
        (('without = ["pg-extra"]', 'without = ["pg"]'), "without names 'pg', which does not race"),
        (("minutes = [0, 1]", "minute = [0, 1]"), r"unknown key 'minute' in \[reproduction\]. Did you mean 'minutes'"),
        (("speedup = 1e-3, ", "speedup = 0, "), r"'speedup' in \[reproduction.expect\] is 0"),
        (("gap = 1e-1, speedup", "converge = ['pg-extra'], speedup"), "needs 'gap'"),
        (('network = { topology = "star(5)" }', 'network = { topolgy = "star(5)" }'), "unknown key 'topolgy'"),
        (("gamma = 0.02", "gama = 0.02"), "unknown parameter 'gama'"),
        (("gamma = 0.02", "gamma = -1.0"), "gamma is -1, but a step size must be"),
    ],
)
def test_mistakes_get_a_sentence(tiny, change, says):
    assert change[0] in TINY
    tiny.write_text(TINY.replace(*change))
    with pytest.raises(InvalidInput, match=says):
        load_reproduction(tiny)


def test_published_numbers_of_another_size_are_held_and_the_rest_is_tuned(tiny):
    text = TINY.replace(PG_EXTRA, '{ name = "dapg", use = "published", parameters = { eta = 0.02 } }')
    tiny.write_text(text.partition("[[reproduction.panels]]")[0])
    experiment = load_reproduction(tiny).panels[0].experiment
    planner = Planner(experiment, experiment.network.network(seed=0), lambda *_: None)
    for method in experiment.methods:
        facts, tuning = planner.plan(method)
        held = {"prox-ed (published)": {"gamma": 0.02}, "dapg (published)": {"eta": 0.02}}.get(method.key, {})
        assert facts.parameters is not None and held.items() <= facts.parameters.items()
        assert (tuning is None) == (method.key == "prox-ed (published)")


def test_published_step_sizes_are_those_of_the_papers_table(tiny):
    """Filled in where a figure says only that they are the published ones; elsewhere experiments repeat them."""
    shape = "n = 10\nd = 300\nN = 10\nlam = 0.1"
    text = TINY.replace("n = 5\nd = 6\nN = 10", shape).replace("ring(5)", "ring(10)").replace("star(5)", "star(10)")
    tiny.write_text(text.replace(", parameters = { gamma = 0.02 } }, {", " }, {").replace("problem = { d = 4 }\n", ""))
    for panel in load_reproduction(tiny).panels:
        assert panel.experiment.methods[0].parameters == {"gamma": 0.03}
    tiny.write_text(text.replace(", parameters = { gamma = 0.02 } }, {", " }, {"))  # with d = 4 there is no such number
    with pytest.raises(InvalidInput, match="publishes no step size for 'prox-ed' on lasso"):
        load_reproduction(tiny)
    said = 0
    for name in shipped_experiments():
        experiment = loaded_experiment(Path(name))
        steps = STEP_SIZES.get(experiment.problem.build(), {})
        for method in experiment.methods:
            if method.use == "published" and method.name in steps:
                assert method.parameters == published(method.name, experiment.problem.build()), (name, method.name)
                said += 1
    assert said > 40


def test_common_mixing_is_for_simulation(tiny):
    tiny.write_text(TINY.replace('topology = "ring(5)"', 'topology = "ring(5)"\nmixing = "common"'))
    table = load_reproduction(tiny).panels[0].experiment.network
    assert isinstance(table.network(seed=0), CommonMixingNetwork)
    with pytest.raises(InvalidInput, match="in simulation only"):
        table.network(seed=0, make=CommonMixingNetwork)


def lines_of(path: Path) -> list[list[str]]:
    """Records without their seconds, which no two runs have in common."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    at = rows[0].index("seconds")
    return [row[:at] + row[at + 1 :] for row in rows]


def test_a_reproduction_runs_resumes_and_draws(tiny, capsys, undrawn):
    assert command("reproduce", tiny, "--out", "out") == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("tiny  holds: ring ")
    once = {panel: lines_of(Path("out", panel, "records.csv")) for panel in ("ring", "star")}
    for wanted in (
        "report.html",
        "figures/paper.png",
        "figures/paper.svg",
        "reproduction.json",
        "ring/report.html",
        "star/run.json",
    ):
        assert Path("out", wanted).exists(), wanted
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert 'href="star/report.html"' in page and "PG-EXTRA is not slower" in page and "holds" in page
    # Stopped in its second panel: the last method is not there, and a line of another is cut.
    records = Path("out/star/records.csv")
    kept = [row for row in read_records(records) if row.method != "prox-atc"]
    write_records(records, kept)
    records.write_text(records.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    untouched = Path("out/ring/records.csv").read_bytes()
    assert command("reproduce", tiny, "--out", "out") == 0
    assert "race" not in "".join(line for line in capsys.readouterr().out.splitlines() if line.startswith("ring:"))
    assert Path("out/ring/records.csv").read_bytes() == untouched
    assert sorted(lines_of(records)) == sorted(once["star"])
    # Another experiment under the same name is refused, unless asked to begin anew.
    tiny.write_text(TINY.replace("iterations = 80", "iterations = 70"))
    assert command("reproduce", tiny, "--out", "out") == 2
    assert "(--overwrite, --out)" in capsys.readouterr().err
    assert command("reproduce", tiny, "--out", "out", "--overwrite") == 0


def test_missing_weights_are_said_before_anything_runs(tiny, capsys):
    tiny.write_text(TINY.replace(PG_EXTRA, PG_EXTRA + ', { name = "milodo", weights = "milodo-nowhere" }'))
    assert command("reproduce", tiny, "--out", "out") == 2
    assert "unknown optimizer 'milodo-nowhere'" in capsys.readouterr().err and not Path("out").exists()


def test_optimizers_are_trained_first_if_asked_to(tiny, monkeypatch, undrawn):
    training = tiny.with_name("lpg.toml")
    shape = TINY.partition("[run]")[0].partition("]\n\n")[2]
    training.write_text(
        f"{shape}\n[training]\ninstances = 2\nvalidation_instances = 1\nvalidation_iterations = 2\n"
        '[training.optimizer]\nkind = "lpg-extra"\nlayers = 2\n'
        "[[training.stages]]\nK_T = 2\nK = 2\nepochs = 1\nlr = 1e-3\nbatch = 2\n"
    )
    text = TINY.partition("[[reproduction.panels]]")[0]
    tiny.write_text(text.replace(PG_EXTRA, PG_EXTRA + ', { name = "lpg-extra", weights = "lpg" }'))
    monkeypatch.setattr("milodo.paper.reproducer.load_experiment", lambda name: load_experiment(training))
    assert command("reproduce", tiny, "--train") == 0
    out = Path("runs/tiny-trained")
    used = RunFile.read(out).methods["lpg-extra"].weights
    assert used and used.name == "lpg" and (out / "training" / "lpg" / "lpg.safetensors").exists()
    assert {row.method for row in read_records(out / "records.csv")} >= {"lpg-extra", "pg-extra"}


def test_all_prints_a_line_each_whatever_happens_to_some(tiny, capsys, monkeypatch, undrawn):
    tiny.write_text(TINY.partition("[[reproduction.panels]]")[0])

    def load(name, size="laptop"):
        if name == "no-data":
            raise InvalidInput("there is no 'images' here.")
        if name == "a-bug":
            raise ZeroDivisionError("division\nby zero")
        return load_reproduction(tiny, size)

    names = ("no-data", "tiny", "a-bug")
    monkeypatch.setattr(reproductions, "NAMES", names)
    monkeypatch.setattr(reproductions, "load_reproduction", load)
    assert command("reproduce", "all") == 1
    lines = capsys.readouterr().out.splitlines()[-len(names) :]
    assert [line.split()[0] for line in lines] == list(names)
    assert "not run: there is no 'images' here." in lines[0] and "holds" in lines[1] and "ZeroDivisionError" in lines[2]
    assert Path("runs/tiny/report.html").exists()


def test_the_list_needs_neither_data_nor_weights(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MILODO_DATA", str(tmp_path / "before"))
    monkeypatch.setenv("COLUMNS", "300")
    assert command("reproduce", "--list", "--data-dir", tmp_path / "data") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in NAMES) and "mnist" in said and "(missing)" in said
    assert str(tmp_path / "data") in said


@pytest.mark.parametrize(
    ("words", "says"),
    [(("reproduce",), "which figure?"), (("reproduce", "fig-lasso-30"), "Did you mean 'fig-lasso-300'"),
     (("reproduce", "all", "--size", "labtop"), "unknown size 'labtop'. Did you mean 'laptop'")],
)  # fmt: skip
def test_what_cannot_be_reproduced_is_said(words, says, capsys):
    assert command(*words) == 2
    assert says in capsys.readouterr().err


# Verdicts, on runs whose costs are known: the gap of a method is 10^(-k / decade).

LAST = 1000


def made_up(folder: Path, decades: dict[str, float], *, instances: int = 3, loss: bool = False, last: int = LAST) -> Run:
    rows = []
    for method, decade in decades.items():
        for instance in range(instances):
            for k in range(0, last + 1, 10):
                gap = 10 ** (-k / decade)
                # Nodes begin in agreement, part, and agree again as the gap closes.
                consensus, end = (0.0 if k == 0 else gap), Status.STEPS if k == last else Status.RUNNING
                counts = {name: k for name in ("rounds", "messages", "floats", "bytes")}
                known = math.nan if loss else gap
                row = {"k": k, **counts, "seconds": 2.0 * k, "loss": 1 + gap, "gap": known, "consensus": consensus, "status": end}
                rows.append(Record(method=method, instance=instance, seed=instance, **row))
    folder.mkdir(parents=True, exist_ok=True)
    write_records(folder / "records.csv", rows)
    facts = {key: MethodFacts(label=key, how="learned" if key == "milodo" else "tuned", parameters={}) for key in decades}
    RunFile(name="made-up", problem="p", methods=facts, gaps=[1e-1, 1e-2]).write(folder)
    return Run(folder)


RACE = {"milodo": 50, "prox-ed (published)": 150, "prox-ed": 100, "dapg": 10}
"""MiLoDo is three times as fast as Prox-ED published, and twice as fast as it tuned."""


@pytest.mark.parametrize("check", ["speedup", "consensus"])
@pytest.mark.parametrize("gap", [1e-2, None])
@pytest.mark.parametrize(
    ("claimed", "level"), [(1.9, Level.HOLDS), (2.5, Level.UNTUNED_ONLY), (2.9, Level.UNTUNED_ONLY), (3.2, Level.FAILS)]
)
def test_a_claim_is_held_against_published_and_tuned_step_sizes(tmp_path, check, gap, claimed, level):
    run = made_up(tmp_path, RACE, loss=gap is None)
    (finding,) = judged(run, ExpectTable.model_validate({"gap": gap, check: claimed}))
    assert finding.level is level
    assert "3×" in finding.said.replace("2.9×", "3×").replace("3.1×", "3×") and "2×" in finding.said


def test_a_claim_that_no_run_was_long_enough_for_is_not_decided(tmp_path):
    run = made_up(tmp_path, RACE)
    far = 10 ** (-LAST / 120)  # MiLoDo gets there, tuned Prox-ED does, the published one not
    (finding,) = judged(run, ExpectTable(gap=far, speedup=5.0))
    assert finding.level is Level.UNDECIDED
    (finding,) = judged(run, ExpectTable(gap=far, speedup=1.5))
    assert finding.level is Level.HOLDS
    (finding,) = judged(made_up(tmp_path / "x", {"prox-ed": 10}), ExpectTable(gap=1e-1, speedup=1.0))
    assert finding.level is Level.UNDECIDED and "milodo" in finding.said


def test_a_consensus_error_that_both_reach_is_compared_also_between_runs_of_unlike_length(tmp_path):
    long, short = made_up(tmp_path / "long", RACE), made_up(tmp_path / "short", {"milodo": 50}, last=200)
    long.records = [row for row in long.records if row.method != "milodo"] + short.records
    assert consensus_over(long, "milodo", "prox-ed").least == pytest.approx(2, rel=0.1)
    assert consensus_over(long, "prox-ed", "milodo").least == pytest.approx(1 / 2, rel=0.1)


def test_time_is_compared_where_it_is_what_counts(tmp_path):
    run = made_up(tmp_path, RACE)
    run.records = [row if row.method != "milodo" else replace(row, seconds=5 * row.seconds) for row in run.records]
    in_time, in_steps = (judged(run, ExpectTable(gap=1e-2, speedup=1.5, axis=axis))[0].level for axis in ("seconds", "k"))
    assert (in_time, in_steps) == (Level.FAILS, Level.HOLDS)


def test_the_time_of_an_iteration_is_compared(tmp_path):
    run = made_up(tmp_path, RACE)
    run.records = [row if row.method != "milodo" else replace(row, seconds=1.2 * row.seconds) for row in run.records]
    for most, level in ((0.25, Level.HOLDS), (0.184, Level.FAILS)):
        (finding,) = judged(run, ExpectTable(overhead=most))
        assert finding.level is level and "+20%" in finding.said


def test_who_must_converge_and_who_must_not(tmp_path):
    run = made_up(tmp_path, RACE)
    for gap, level in ((1e-15, Level.HOLDS), (1e-30, Level.FAILS)):
        assert [finding.level for finding in judged(run, ExpectTable(gap=gap, converge=["milodo"]))] == [level]
    for gap, level in ((1e-30, Level.HOLDS), (1e-15, Level.FAILS)):
        assert [finding.level for finding in judged(run, ExpectTable(gap=gap, fail=["milodo"]))] == [level]


def test_who_drifts_away_again_has_not_converged(tmp_path):
    run = made_up(tmp_path, {"prox-ed": 50})
    run.records = [replace(row, gap=1e-3) if row.k > LAST / 2 else row for row in run.records]
    converged, failed = judged(run, ExpectTable(gap=1e-6, converge=["prox-ed"], fail=["prox-ed"]))
    assert (converged.level, failed.level) == (Level.FAILS, Level.HOLDS)


def test_published_step_sizes_are_optimal_if_tuning_gains_little(tmp_path):
    run = made_up(tmp_path, RACE)
    for factor, level in ((1.6, Level.HOLDS), (1.3, Level.FAILS)):
        (finding,) = judged(run, ExpectTable(gap=1e-2, optimal=factor))
        assert finding.level is level


def test_panels_are_alike_if_the_first_needs_little_more_than_the_best(tmp_path):
    expect = ExpectTable(method="prox-ed", gap=1e-2, alike=1.3)
    runs = {
        name: made_up(tmp_path / name, {"prox-ed": decade}) for name, decade in (("third", 60), ("fastest", 50), ("lazy", 90))
    }
    panels = {name: (run, ExpectTable()) for name, run in runs.items()}
    assert verdict(expect, panels).level is Level.HOLDS
    assert verdict(expect.model_copy(update={"alike": 1.1}), panels).level is Level.FAILS


def test_the_worst_panel_decides():
    good, bad = (Finding(level, "1×", "something") for level in (Level.HOLDS, Level.FAILS))
    assert Verdict({"a": [good], "b": [bad]}).level is Level.FAILS and Verdict({"a": [good]}).level is Level.HOLDS
    assert Verdict({}).level is Level.UNDECIDED


def test_the_figure_and_the_section_come_from_records(tiny, tmp_path):
    loaded = load_reproduction(tiny)
    whole = Reproducer(loaded, tmp_path / "out")
    whole.runs = {  # type: ignore[method-assign]
        "ring": made_up(tmp_path / "ring", RACE | {"pg-extra": 80}), "star": made_up(tmp_path / "star", RACE | {"prox-atc": 30}),
    }  # fmt: skip
    png, svg = draw_paper(whole.runs, tmp_path)
    assert png.stat().st_size > 10_000 and "pg-extra" in svg.read_text(encoding="utf-8")
    small = draw_small(whole.runs, tmp_path / "figures" / "tiny.png", overlay=True)
    assert 1000 < small.stat().st_size <= LARGEST
    text = section(loaded, whole.runs, whole.verdict, command="milodo reproduce tiny", took="61 s", figure="figures/tiny.png")
    for wanted in (
        "## tiny: Tiny",
        "PG-EXTRA is not slower",
        "milodo reproduce tiny",
        "**Holds.**",
        "figures/tiny.png",
        "over prox-ed tuned",
    ):
        assert wanted in text, wanted
    assert "| milodo |" in text and "100 (100 – 100)" in text  # 10^(-100/50) = 1e-2


def test_a_section_takes_the_place_of_its_predecessor():
    page = replaced(replaced("# Results\n", "a", "## a\nold\n"), "b", "## b\n")
    assert replaced(page, "a", "## a\nnew\n") == page.replace("old", "new")
    assert page.startswith("# Results\n") and replaced(page, "b", "## b\n") == page
