"""Documentation that can be wrong is checked: line numbers, links, examples, the promises of the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from real import Process, environment, finish

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.md")]
ROWS = re.findall(
    r"^\|[^|]*\|[^|]*\| \[(\S+):(\d+)\]\(\.\./(\S+)#L(\d+)\) \| `(.*)` \|$", (ROOT / "docs" / "equations.md").read_text(), re.M
)


def test_the_map_of_equations_is_not_empty():
    assert len(ROWS) > 30


@pytest.mark.parametrize(("file", "line", "link", "anchor", "code"), ROWS, ids=[f"{row[0]}:{row[1]}" for row in ROWS])
def test_every_equation_is_where_the_map_says(file, line, link, anchor, code):
    lines = (ROOT / file).read_text().splitlines()
    found = [number for number, text in enumerate(lines, 1) if code.replace("\\|", "|") in text]
    assert int(line) in found, f"docs/equations.md says {file}:{line}, but the code stands at {found}"
    assert (link, anchor) == (file, line)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            leads = page.parent / target
            assert leads.is_dir() or leads.stat().st_size > 0, f"{page.name} links to {target}"


STARTED = ("cifar_on_a_graph.py",)
"""With several processes, by a test of its own (test_torch_loop.py)."""
ALONE = sorted(script for script in (ROOT / "examples").glob("*.py") if script.name not in STARTED)


@pytest.mark.parametrize("script", ALONE, ids=lambda p: p.stem)
def test_every_example_runs(script, tmp_path):
    (done,) = finish([Process([str(script)], environment(), tmp_path)])
    assert done.code == 0, done.err
    assert done.out


def test_versions_agree():
    import milodo

    assert f"version: {milodo.__version__}" in (ROOT / "CITATION.cff").read_text()
    pinned = (ROOT / "constraints.txt").read_text()
    assert re.search(r"^torch==\d+\.\d+\.\d+$", pinned, re.M)
