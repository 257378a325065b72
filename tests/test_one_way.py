"""One way through a command: a file is found, read and validated once; what it describes is built once; records are read once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from milodo.bench.records import read_records
from milodo.bench.run_file import RunFile
from milodo.cli.main import run as milodo
from milodo.config.experiment import parse_experiment
from milodo.config.tables import NetworkTable, ProblemTable
from milodo.files import read_toml
from milodo.learned.checkpoint import load_optimizer
from milodo.shipped import find_experiment

EXPERIMENT = """
title = "Small"
methods = [
    { name = "auto" }, { name = "prox-ed", use = "published", parameters = { gamma = 0.02 } }, { name = "prox-ed" },
    { name = "accelerated-ed", use = "safe" }, { name = "milodo", weights = "milodo-lasso-ring10" },
]

[problem]
family = "lasso"
n = 10
d = 6
N = 4

[network]
topology = "ring(10)"

[run]
iterations = 20
instances = 2

[tuning]
instances = 1
iterations = 10
points = 3
refinements = 0
"""
FIGURE = """
[reproduction]
claim = "MiLoDo is not slower than Prox-ED."
figure = "Fig. 0"
minutes = [0, 1]
expect = { gap = 1e-1, speedup = 1e-3 }
"""
TRAINING = """
[training]
instances = 2
validation_instances = 1
validation_iterations = 2
[training.optimizer]
kind = "lpg-extra"
layers = 2
[[training.stages]]
K_T = 2
K = 2
epochs = 1
lr = 1e-3
batch = 2
"""
READ = {"experiments found": find_experiment, "files read": read_toml, "experiments validated": parse_experiment}
BUILT = {
    "problems built": ProblemTable.build, "graphs built": NetworkTable.build, "networks connected": NetworkTable.network,
    "weights loaded": load_optimizer,
}  # fmt: skip
RECORDS = {"records read": read_records, "run files read": RunFile.read}


@contextmanager
def counted(functions: dict[str, Callable[..., Any]]) -> Iterator[Counter[str]]:
    """How often each of them is called, under whatever name it was imported."""
    names = {getattr(function, "__func__", function).__code__: name for name, function in functions.items()}
    found: Counter[str] = Counter()

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in names:
            found[names[frame.f_code]] += 1

    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(EXPERIMENT)
    return path


def ends_well(*words: object) -> None:
    try:
        code = milodo([str(word) for word in words])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 0


@pytest.mark.usefixtures("undrawn")
def test_a_benchmark_reads_and_builds_everything_once(file):
    with counted(READ | BUILT | RECORDS) as found:
        ends_well("bench", file, "--out", "run")
    assert found == dict.fromkeys(READ | BUILT | RECORDS, 1)
    with counted(READ | BUILT | RECORDS) as found:
        ends_well("report", "run")
    assert found == dict.fromkeys(RECORDS, 1)


@pytest.mark.usefixtures("undrawn")
def test_so_does_a_figure_of_the_paper(file):
    file.write_text(EXPERIMENT + FIGURE)
    with counted(READ | BUILT | RECORDS) as found:
        ends_well("reproduce", file, "--out", "run")
    assert found == dict.fromkeys(READ | BUILT | RECORDS, 1)


@pytest.mark.usefixtures("undrawn")
def test_a_training_reads_its_experiment_once(file):
    file.write_text(EXPERIMENT + TRAINING)
    with counted(READ) as found:
        ends_well("train", file, "--out", "run")
    assert found == dict.fromkeys(READ, 1)
