"""Docstrings as they are written here: plain text, `code`, indented equations, doctests. Nothing in them is markup but that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx

CODE = re.compile(r"(`+)(.+?)\1", re.S)
SPECIAL = re.compile(r"([\\*|_`])")


def text(paragraph: str) -> str:
    """Stars, bars and underscores mean themselves; `code` stays code."""
    parts, at = [], 0
    for found in CODE.finditer(paragraph):
        parts += [SPECIAL.sub(r"\\\1", paragraph[at : found.start()]), f"``{found[2].strip()}``"]
        # A literal must be followed by what is no letter.
        at = found.end()
        if paragraph[at : at + 1].isalnum():
            parts.append("\\ ")
    return "".join([*parts, SPECIAL.sub(r"\\\1", paragraph[at:])])


def blocks(lines: list[str]) -> Iterator[list[str]]:
    for filled, block in groupby(lines, key=lambda line: bool(line.strip())):
        if filled:
            yield list(block)


def markup(lines: list[str]) -> Iterator[str]:
    """reStructuredText of a docstring."""
    for block in blocks(lines):
        first = block[0]
        if first.lstrip().startswith(">>>"):
            yield from block
        elif first.startswith(" ") or any(line.startswith(("- ", "  ")) for line in block):
            # Equations, a list, or columns: kept as they are set.
            yield from ("::", "", *(f"    {line}" for line in block))
        else:
            yield from (text("\n".join(block))).split("\n")
        yield ""


def process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = list(markup(lines))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
