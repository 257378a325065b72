"""The scripts of benchmarks/: few, each with parts that its own text, the Makefile and the docs call by their names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if not path.name.startswith("_"))
MOST, LONGEST = 12, 400
"""Scripts, and lines of one of them."""
COMMAND = re.compile(r"python benchmarks/(\w+)\.py((?: +[\w.-]+)*)")


def parts(script: Path) -> set[str]:
    """What `python benchmarks/SCRIPT.py` takes as its first word; nothing where it takes options only."""
    found = [node for node in ast.parse(script.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    tables = [node.value for node in found if ast.unparse(node).startswith("PARTS") and isinstance(node.value, ast.Dict)]
    return {key.value for table in tables for key in table.keys if isinstance(key, ast.Constant)}


def commands() -> list[tuple[str, str, str]]:
    """(file, script, first word behind it) of every command that a page or a script names."""
    pages = [*SCRIPTS, ROOT / "Makefile", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = []
    for page in pages:
        for script, words in COMMAND.findall(page.read_text(encoding="utf-8")):
            found.append((page.name, script, (words.split() or [""])[0]))
    return found


def test_there_are_few_and_none_is_long():
    assert 0 < len(SCRIPTS) <= MOST
    assert not [path.name for path in SCRIPTS if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST]


@pytest.mark.parametrize(("page", "script", "word"), sorted(set(commands())))
def test_every_command_that_is_named_can_be_given(page, script, word):
    path = ROOT / "benchmarks" / f"{script}.py"
    assert path in SCRIPTS, f"{page} names {path.name}"
    if word and not word.startswith("-") and (known := parts(path)):
        assert word in known, f"{page} names {script}.py {word}, which has {sorted(known)}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_how_it_is_started(script):
    assert script.stem in {named for page, named, _ in commands() if page == script.name}
