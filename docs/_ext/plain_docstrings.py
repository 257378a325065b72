"""Docstrings as they are written here: plain text, `code`, indented equations, doctests. Nothing in them is markup but that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx

CODE = re.compile(r"(`+)(.+?)\1", re.S)
SPECIAL = re.compile(r"([\\*|_`])")
RULE = re.compile(r"\s*([-=~])\1{2,}\s*")
"""Under a heading, as some docstrings of scikit-learn have it."""
UNTOLD = re.compile(r"set_\w+_request|State")
"""Members that scikit-learn adds to every estimator; and the states of methods, which two of them may share."""


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
        if block[0].lstrip().startswith(">>>"):
            yield from block
        elif any(line.startswith(("- ", " ")) or RULE.fullmatch(line) for line in block):
            # Equations, a list, or columns: kept as they are set.
            yield from ("::", "", *(f"    {line}" for line in block))
        else:
            yield from (text("\n".join(block))).split("\n")
        yield ""


def process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = list(markup(lines))


def skip(app: Sphinx, what: str, name: str, obj: object, skipped: bool, options: object) -> bool | None:
    return True if UNTOLD.fullmatch(name) else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-skip-member", skip)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
