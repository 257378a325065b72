"""docs/penalty.md, executed as it stands in one empty folder."""

from __future__ import annotations

import re
from pathlib import Path

from real import milodo
from test_tutorials import BLOCK, run_console, run_python

PAGE = Path(__file__).parent.parent / "docs" / "penalty.md"


def test_the_page_about_penalties_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks, names = BLOCK.findall(PAGE.read_text(encoding="utf-8")), {}
    assert [kind for kind, _ in blocks] == ["python", "console", "python", "python", "python", "python"]
    for kind, source in blocks:
        if kind == "python":
            run_python(source, PAGE.name, names)
        else:
            run_console(source, tmp_path)
    assert (tmp_path / "runs" / "fit" / "path.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "runs" / "fit" / "path.csv").read_text().startswith("penalty,mean loss,standard error")


def test_every_option_of_the_page_exists():
    named = set(re.findall(r"`(--[a-z0-9-]+)", PAGE.read_text(encoding="utf-8")))
    shown = milodo("solve", "--help", COLUMNS="200").out
    assert named and all(option in shown for option in named), named
