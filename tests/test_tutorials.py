"""Tutorials are run as they stand: Python as doctests, commands in a shell, one after the other in one folder."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.M | re.S)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def run_python(source: str, name: str, names: dict[str, object]) -> None:
    test = doctest.DocTestParser().get_doctest(source, names, name, name, 0)
    test.globs = names  # what one block defines, the next may use
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append, clear_globs=False)
    assert not said, "".join(said)


def run_console(source: str, folder: Path) -> None:
    """Every line under a command must be found in what it says, in this order."""
    for block in re.split(r"^\$ ", source, flags=re.M)[1:]:
        command, *lines = block.strip().splitlines()
        words = re.sub(r"^milodo\b", f"'{sys.executable}' -m milodo", command)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, shell=True, cwd=folder, capture_output=True, encoding="utf-8", timeout=300, env=environment)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        pattern = ".*".join(re.escape(line.strip()) for line in lines)
        assert re.search(pattern, done.stdout, re.S), f"{command} says\n{done.stdout}"


@pytest.mark.parametrize("name", ["statistician"])
def test_a_tutorial_runs_as_it_stands(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    blocks, names = BLOCK.findall(page), {}
    assert len(blocks) > 5
    for kind, source in blocks:
        if kind == "python":
            run_python(source, name, names)
        else:
            run_console(source, tmp_path)


def test_what_is_wrong_in_a_tutorial_is_found(tmp_path):
    with pytest.raises(AssertionError, match="Expected"):
        run_python(">>> 1 + 1\n3\n", "wrong", {})
    run_console("$ echo one two\none\n", tmp_path)
    with pytest.raises(AssertionError, match="says"):
        run_console("$ echo one\ntwo\n", tmp_path)
    with pytest.raises(AssertionError, match="false"):
        run_console("$ false\n", tmp_path)


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_links_of_a_tutorial_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target
