"""Methods and problems from outside: beside an experiment, installed as a package, known to every command and every process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import real

from milodo.algorithms import METHODS, ProxED
from milodo.bench.records import read_records
from milodo.config import load_experiment, parse_experiment
from milodo.config.template import TEMPLATE, template
from milodo.errors import InvalidInput
from milodo.extensions import import_modules, register_learned, register_method, register_penalty, register_problem
from milodo.learned import MiLoDo
from milodo.problems import FAMILIES, L1, REGULARIZERS, Lasso

MODULE = '''
"""A method and a family of problems that milodo does not have."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import milodo
from milodo.algorithms import StepSize
from milodo.extensions import register_method, register_problem
from milodo.types import NodeTensor, Step


class State(NamedTuple):
    x: NodeTensor


@register_method("half-step")
@dataclass(frozen=True, kw_only=True)
class HalfStep(milodo.Algorithm):
    """Half a step of decentralised gradient descent."""

    gamma: Step
    label: ClassVar[str] = "Half step"
    exact: ClassVar[bool] = False
    space: ClassVar = {"gamma": StepSize(1 / 64, 4)}
    State = State

    def init(self, x0, problem, net):
        return State(x0)

    def step(self, state, problem, net):
        return State(problem.prox(net.mix(state.x) - self.gamma / 2 * problem.grad(state.x), self.gamma / 2))


@register_problem("heavy-tails")
@dataclass(frozen=True)
class HeavyTails(milodo.Lasso):
    """LASSO whose noise has no variance."""

    def labels(self, u, rng):
        return u + 0.1 * rng.standard_t(2, size=len(u))
'''
EXPERIMENT = """
imports = ["elsewhere"]
methods = [{ name = "half-step" }, { name = "prox-ed", use = "given", parameters = { gamma = 0.02 } }]

[problem]
family = "heavy-tails"
n = 3
d = 4
N = 6
lam = 0.1

[network]
topology = "ring(3)"

[run]
iterations = 20
instances = 2

[tuning]
instances = 1
iterations = 10
points = 3
refinements = 0
"""
SIMPLER = EXPERIMENT.replace('imports = ["elsewhere"]', "")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment with its module beside it; what is registered here is forgotten afterwards."""
    (tmp_path / "elsewhere.py").write_text(MODULE)
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    for table in (METHODS, FAMILIES, REGULARIZERS):
        for name in ("half-step", "heavy-tails", "mine"):
            monkeypatch.setitem(table, name, None)
            del table[name]
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "elsewhere", raising=False)
    return tmp_path


@pytest.mark.parametrize("command", [["tune"], ["bench"], ["run"], ["run", "--processes", 2]], ids=str)
def test_what_an_experiment_imports_is_known_to_every_command_and_process(here, command):
    first, *options = command
    cache = str(here / "cache")
    done = real.milodo(first, here / "mine.toml", *options, "--out", here / "out", folder=here.parent, MILODO_CACHE=cache)
    assert done.code == 0, done.err
    if first != "tune":
        last = [row for row in read_records(here / "out" / "records.csv") if row.method == "half-step" and row.k == 20]
        assert len(last) == 2 and all(row.rounds == 20 for row in last)


def installed(folder: Path, announced: str) -> dict[str, str]:
    """The environment of a process in which the module is an installed package with these entry points."""
    about = folder / "elsewhere-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(announced)
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return real.environment(PYTHONPATH=path, MILODO_CACHE=str(folder / "cache"))


def test_what_a_package_announces_is_known_without_being_asked_for(here):
    env = installed(
        here,
        "[milodo.methods]\nhalf-step = elsewhere:HalfStep\nno-step = elsewhere:Missing\n"
        "[milodo.problems]\nheavy-tails = elsewhere:HeavyTails\n",
    )
    (here / "mine.toml").write_text(SIMPLER)
    words = [sys.executable, "-m", "milodo"]
    listed = subprocess.run([*words, "methods"], cwd=here, env=env, capture_output=True, text=True, timeout=real.LIMIT)
    assert listed.returncode == 0 and "Half a step of decentralised gradient descent" in listed.stdout
    assert "elsewhere:Missing of the entry points milodo.methods cannot be used" in listed.stderr
    done = subprocess.run([*words, "tune", "mine.toml"], cwd=here, env=env, capture_output=True, text=True, timeout=real.LIMIT)
    assert done.returncode == 0 and "half-step" in (here / "runs" / "mine" / "run.json").read_text(), done.stderr


def test_what_is_registered_is_read_from_experiments_of_this_process(here):
    experiment = load_experiment(here / "mine.toml")
    assert type(experiment.family).__name__ == "HeavyTails" and METHODS["half-step"].label == "Half step"
    assert load_experiment(here / "mine.toml") == experiment  # a module is imported once


@dataclass(frozen=True, kw_only=True)
class Mine(ProxED):
    """Another name for Prox-ED."""


@pytest.mark.parametrize(
    ("register", "what", "says"),
    [
        (register_method("auto"), Mine, "the name is taken or none"),
        (register_method("milodo"), Mine, "the name is taken or none"),
        (register_method("My Method"), Mine, "the name is taken or none"),
        (register_method("prox-ed"), Mine, "milodo.algorithms.prox_ed.ProxED has this name already"),
        (register_method("mine"), Lasso, "is no subclass of Algorithm"),
        (register_method("mine"), type("Bare", (ProxED.__mro__[-3],), {}), "are fields of a dataclass"),
        (register_problem("mine"), Mine, "is no subclass of Family"),
        (register_penalty("mine"), Lasso, "is no subclass of Regularizer"),
        (register_learned("mine"), MiLoDo, "its kind is 'milodo'. Give both the same name"),
    ],
)
def test_what_cannot_be_registered_gets_a_sentence(register, what, says):
    with pytest.raises(InvalidInput, match=says):
        register(what)


def test_a_class_may_be_registered_again_and_is_handed_back(here):
    assert register_method("mine")(Mine) is register_method("mine")(Mine) is METHODS["mine"]
    assert register_penalty("mine")(L1) is REGULARIZERS["mine"] is L1


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["no_such_module"], "cannot be imported .ModuleNotFoundError"),
        (["../elsewhere"], "is no name of a module"),
        (["divides"], "cannot be imported .ZeroDivisionError"),
        (["colorsys"], "another module of this name is loaded already"),
    ],
)
def test_what_cannot_be_imported_gets_a_sentence(here, names, says):
    (here / "divides.py").write_text("1 / 0")
    (here / "colorsys.py").write_text("")
    with pytest.raises(InvalidInput, match=says):
        import_modules(names, here)


@pytest.mark.parametrize("names", ['"elsewhere"', "[1]"])
def test_imports_are_a_list_of_names(here, names):
    (here / "mine.toml").write_text(EXPERIMENT.replace('["elsewhere"]', names))
    with pytest.raises(InvalidInput, match="'imports' in the file's first lines is"):
        load_experiment(here / "mine.toml")


def test_the_experiment_that_init_writes_runs_as_it_stands(tmp_path):
    begun = real.milodo("init", "begin.toml", folder=tmp_path)
    assert begun.code == 0 and "milodo bench begin.toml" in begun.out
    done = real.milodo("bench", "begin.toml", folder=tmp_path, MILODO_CACHE=str(tmp_path / "cache"))
    assert done.code == 0, done.err
    assert {row.method for row in read_records(tmp_path / "runs" / "begin" / "records.csv")} == {
        "prox-ed", "pg-extra", "accelerated-ed (safe)", "auto (bytes)", "milodo",
    }  # fmt: skip
    again = real.milodo("init", "begin.toml", folder=tmp_path)
    assert again.code == 2 and "is there already" in again.err and "--overwrite" in again.err
    assert real.milodo("init", "begin.toml", "--overwrite", folder=tmp_path).code == 0
    assert real.milodo("init", "begin", folder=tmp_path).code == 2


def test_every_alternative_in_that_experiment_is_valid():
    text = template(Path("begin.toml"))
    lines = text.splitlines()
    assert "@" not in text and len(TEMPLATE.read_text(encoding="utf-8").splitlines()) == len(lines)
    keys = [line for line in lines if line.startswith("# ") and " = " in line]
    alone = [line for line in keys if line.split()[1] in ("seed", "weights", "outage")]
    for line in alone:
        parse_experiment({"name": "begin", **tomllib.loads(text.replace(line, line[2:], 1))}, "begin.toml")
    penalty = next(line for line in lines if line.startswith("lam = "))
    words = r"\[problem\.reg|kind|lam|mu|\[\[methods|name|label|use|parameters"
    other = re.sub(rf"^# (?={words})", "", text.replace(penalty, ""), flags=re.MULTILINE)
    found = parse_experiment({"name": "begin", **tomllib.loads(other)}, "begin.toml")
    assert found.problem.regularizer is not None and "prox-ed (mine)" in [each.key for each in found.methods]
    assert len(alone) == 3 and len(keys) == 3 + 1 + 3 + 4  # imports, a penalty, a method
