"""docs/penalty.md, executed: its Python as doctests, its command lines in order, in one empty folder."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

from real import milodo

PAGE = Path(__file__).parent.parent / "docs" / "penalty.md"
PARTS = re.compile(r"^```python\n(?P<python>.*?)^```$|^    milodo (?P<words>.*)$", re.S | re.M)
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def test_the_page_about_penalties_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    commands = blocks = 0
    for part in PARTS.finditer(PAGE.read_text()):
        if part["words"]:
            ended = milodo(*shlex.split(part["words"]), folder=tmp_path)
            assert ended.code == 0, ended.err
            commands += 1
            continue
        test = doctest.DocTestParser().get_doctest(part["python"], names, "penalty.md", "penalty.md", 0)
        runner, said = doctest.DocTestRunner(optionflags=OPTIONS), list[str]()
        assert runner.run(test, out=said.append, clear_globs=False).failed == 0, "".join(said)
        names = test.globs
        blocks += 1
    assert commands == 1 and blocks == 5
    assert {file.name for file in (tmp_path / "runs" / "fit").iterdir()} >= {"fit.json", "path.json", "path.csv", "path.png"}


def test_every_option_of_the_page_exists():
    named = set(re.findall(r"`(--[a-z0-9-]+)", PAGE.read_text()))
    shown = milodo("solve", "--help", COLUMNS="200").out
    assert named and all(option in shown for option in named), named
