"""The tutorial for researchers, and the page on extending, are programs."""

from __future__ import annotations

from pathlib import Path

from follow import blocks, follow

from milodo.algorithms import METHODS
from milodo.problems import FAMILIES
from milodo.report.run import Run

DOCS = Path(__file__).parent.parent / "docs"


def test_the_tutorial_for_researchers_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(METHODS, "my-tracking", None)  # forgotten again when the page is done
    del METHODS["my-tracking"]
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "cache"))
    page = DOCS / "tutorials" / "researcher.md"
    assert follow(page, tmp_path) == len(blocks(page)) >= 8
    assert "Gradient tracking" in Run(tmp_path / "runs" / "mine").labels.values()
    for name in ("race", "mine"):
        assert (tmp_path / "runs" / name / "report.html").stat().st_size > 1e6


def test_the_examples_of_the_page_on_extending_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.setitem(FAMILIES, "heavy-tails", None)
    del FAMILIES["heavy-tails"]
    assert follow(DOCS / "extending.md", tmp_path) == 3
