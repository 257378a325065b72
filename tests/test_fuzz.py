"""Files that nobody wrote on purpose: thousands of damaged ones, each read or refused in one sentence, and nothing else.

What is damaged, and how, depends on fixed seeds alone (tests/mutations.py). A damaged file may still be a valid one.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from mutations import mutated_bytes, mutated_text, mutated_tree
from rich.console import Console

from milodo.bench.benchmark import Benchmark
from milodo.bench.merge import merge_runs
from milodo.bench.run_file import RunFile
from milodo.cli.experiments import loaded_experiment
from milodo.cli.tables import run_tables, tuning_table
from milodo.config import Experiment, parse_experiment
from milodo.errors import InvalidInput
from milodo.fit.sites import classes_here, indicator, numeric_target, two_classes
from milodo.fit.tables import read_site
from milodo.learned import BaseRules, LPGExtra, MiLoDo
from milodo.learned.checkpoint import load_optimizer, save_optimizer
from milodo.paper.reproduction import first_panel
from milodo.report import html
from milodo.report.html import write_report
from milodo.report.run import Run
from milodo.topology import topology

LONGEST = 600
"""Characters of a message: a longer one is not read."""
EXPERIMENTS = sorted((Path(__file__).parent.parent / "experiments").glob("*/*.toml"))
TABLES = (
    "a,b,y\n1,2,3\n4,5,6\n-7.5,8e-1,0\n",
    '"size, kg";"size, cm";y\n1.5;2;3\n4;5;6\n',
    "a\tb\ty\n1\t2\tyes\n3\t4\tno\n",
    "\ufeffage,bmi,y\n50,21.5,0\n60,33,1\n70,20,1\n",
)


def refused(seen: Any, do: Callable[[], object]) -> bool:
    """Whether it was refused, which takes one short sentence; anything else that goes wrong is a bug, shown with what was read."""
    try:
        do()
    except InvalidInput as error:
        said = str(error)
        assert len(said) <= LONGEST and "\n" not in said, f"{len(said)} characters for {seen!r:.1000}: {said[:3000]}"
        return True
    except Exception as error:
        error.add_note(f"read: {seen!r:.3000}")
        raise
    return False


def some_of_both(outcomes: Iterable[bool]) -> bool:
    """Damage that is always refused, or never, tests little."""
    return {*outcomes} == {True, False}


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def test_2000_damaged_experiments(tmp_path):
    texts = [path.read_text(encoding="utf-8") for path in EXPERIMENTS]
    trees = [{"name": "mine", **tomllib.loads(text)} for text in texts]
    file, outcomes = tmp_path / "mine.toml", []
    for seed in range(1000):
        rng = random.Random(seed)
        tree, text = mutated_tree(rng, rng.choice(trees)), mutated_text(rng, rng.choice(texts))
        given = rng.choice(({}, {"seed": 3}, {"dtype": "float32"}, {"device": "cpu"}))
        file.write_bytes(as_bytes(text))
        outcomes.append(refused(tree, lambda tree=tree: parse_experiment(first_panel(tree, "mine.toml"), "mine.toml")))
        outcomes.append(refused(text, lambda given=given: loaded_experiment(file, **given)))
    assert some_of_both(outcomes)


def test_500_damaged_tables(tmp_path):
    file, outcomes = tmp_path / "site.csv", []

    def as_numbers() -> None:
        numeric_target(read_site(file, "y"), "y")

    def as_classes() -> None:
        site = read_site(file, "y")
        indicator(site, two_classes([classes_here(site, "y")], "y"))

    for seed in range(500):
        rng = random.Random(seed)
        text = rng.choice(TABLES)
        file.write_bytes(mutated_bytes(rng, text.encode()) if seed % 3 == 0 else as_bytes(mutated_text(rng, text)))
        outcomes += [refused(file.read_bytes(), read) for read in (as_numbers, as_classes)]
    assert some_of_both(outcomes)


def test_300_damaged_optimizers(tmp_path):
    made = []
    for kind, optimizer in (
        ("a", MiLoDo("star(4)", hidden=3)),
        ("b", LPGExtra("star(4)", layers=4)),
        ("c", BaseRules("star(4)", d=2, hidden=2)),
    ):
        save_optimizer(optimizer, tmp_path / f"{kind}.safetensors", good_for="tests", training={"updates": 1})
        made.append([(tmp_path / f"{kind}.{ending}").read_bytes() for ending in ("safetensors", "json")])
    file, outcomes = tmp_path / "damaged.safetensors", []
    for seed in range(300):
        rng = random.Random(seed)
        weights, text = rng.choice(made)
        card = json.loads(text)
        if seed % 2:
            card = mutated_tree(rng, card)
        else:  # with a card that vouches for the damage: the checks behind the checksum must hold
            head = 8 + int.from_bytes(weights[:8], "little")
            weights = mutated_bytes(rng, weights[:head]) + weights[head:] if rng.random() < 0.7 else mutated_bytes(rng, weights)
            card["weights"]["sha256"] = hashlib.sha256(weights).hexdigest()
        file.write_bytes(weights)
        text = json.dumps(card).encode()
        file.with_suffix(".json").write_bytes(mutated_bytes(rng, text) if seed % 10 == 9 else text)
        outcomes.append(refused(card if seed % 2 else weights[:300], lambda: load_optimizer(file)))
    assert some_of_both(outcomes)


def test_300_damaged_graphs(tmp_path):
    nx.write_graphml(nx.cycle_graph(5), tmp_path / "a.graphml")
    xml, links = (tmp_path / "a.graphml").read_text(encoding="utf-8"), "# links\n0 1\n1 2\nrome, oslo\noslo,0\n"
    outcomes = []
    for seed in range(300):
        file = tmp_path / ("b.graphml" if seed % 2 else "b.txt")
        file.write_bytes(as_bytes(mutated_text(random.Random(seed), xml if seed % 2 else links)))
        outcomes.append(refused(file.read_bytes(), lambda file=file: topology(file)))
    assert some_of_both(outcomes)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path]:
    """A tiny experiment with a tuned, a given and a learned method, and the folder of its run."""
    folder = tmp_path_factory.mktemp("small")
    save_optimizer(MiLoDo("ring(3)", hidden=2), folder / "mine.safetensors", good_for="tests", training={})
    experiment = parse_experiment(
        {
            "name": "small",
            "problem": {"family": "lasso", "n": 3, "d": 2, "N": 4},
            "network": {"topology": "ring(3)"},
            "run": {"iterations": 8, "instances": 2, "samples_per_decade": 5},
            "tuning": {"instances": 1, "iterations": 10, "points": 3, "refinements": 0},
            "methods": [
                {"name": "prox-ed"},
                {"name": "dapg", "use": "given", "parameters": {"eta": 0.1, "alpha": 0.2}},
                {"name": "milodo", "weights": str(folder / "mine")},
            ],
        },
        "small",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILODO_CACHE", str(folder / "cache"))
        return experiment, Benchmark(experiment, folder / "run").run()


def damage(run: Path, folder: Path, seed: int) -> Path:
    """A copy of a run with damaged facts or damaged records."""
    rng = random.Random(seed)
    facts, records = json.loads((run / "run.json").read_text(encoding="utf-8")), (run / "records.csv").read_bytes()
    if seed % 3:
        facts = mutated_tree(rng, facts)
    else:
        records = mutated_bytes(rng, records) if rng.random() < 0.3 else as_bytes(mutated_text(rng, records.decode()))
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "records.csv").write_bytes(records)
    return folder


def test_500_damaged_runs(small, tmp_path, monkeypatch):
    """All that a page and a terminal say of a run; the pictures are drawn of a few below."""
    monkeypatch.setattr(html, "charts_script", lambda: "")  # a megabyte that no damage changes
    terminal, run = Console(file=io.StringIO(), width=120), small[1]

    def show(folder: Path) -> None:
        html._render(Run(folder), [])
        terminal.print(*run_tables(Run(folder)), tuning_table(RunFile.read(folder)))

    outcomes = []
    for seed in range(500):
        folder = damage(run, tmp_path / "damaged", seed)
        seen = (folder / ("run.json" if seed % 3 else "records.csv")).read_bytes()
        outcomes.append(refused(seen, lambda folder=folder: show(folder)))
        if seed % 5 == 0:
            refused(seen, lambda folder=folder, seed=seed: merge_runs([run, folder], tmp_path / f"merged-{seed}"))
    assert some_of_both(outcomes)


def test_100_damaged_runs_are_resumed_or_refused(small, tmp_path, monkeypatch):
    experiment, run = small
    monkeypatch.setenv("MILODO_CACHE", str(run.parent / "cache"))
    outcomes = []
    for seed in range(100):
        folder = damage(run, tmp_path / str(seed), seed)
        seen = (folder / ("run.json" if seed % 3 else "records.csv")).read_bytes()
        outcomes.append(refused(seen, lambda folder=folder: Benchmark(experiment, folder).run(resume=True)))
    assert some_of_both(outcomes)


@pytest.mark.parametrize("seed", [0, 3, 8])
@pytest.mark.filterwarnings("ignore")  # matplotlib warns of letters it has no picture of
@pytest.mark.usefixtures("drawn_once")
def test_a_damaged_run_has_its_pictures_or_is_refused(small, tmp_path, seed):
    refused(seed, lambda: write_report(Run(damage(small[1], tmp_path / "damaged", seed))))
