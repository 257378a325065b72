"""The planted bugs of tests/tools/planted_bugs.py can still be planted: each line stands where it says, once."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import milodo

sys.path.insert(0, str(Path(__file__).parent / "tools"))
from planted_bugs import BUGS, MAY_SURVIVE, Bug

PACKAGE = Path(milodo.__file__).parent


def test_there_are_at_least_forty_of_which_all_but_two_must_be_caught():
    assert len(set(BUGS)) == len(BUGS) >= 40 and MAY_SURVIVE <= 2


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_every_planted_bug_can_be_planted(bug: Bug):
    text = (PACKAGE / bug.file).read_text(encoding="utf-8")
    assert text.count(bug.line) == 1 and "\n" not in bug.line
    ast.parse(text.replace(bug.line, bug.instead))  # a bug, not a misprint that any import would notice
    for word in bug.tests.split():
        assert not word.endswith(".py") or (Path(__file__).parent / word).is_file()
