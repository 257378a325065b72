"""Rewrites the line numbers in docs/equations.md after code has moved: python tests/tools/equation_lines.py

A row whose code stands nowhere in its file, or in several places none of which is the old one, is printed and left alone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "equations.md"
ROW = re.compile(r"\[(milodo/[\w/]+\.py):(\d+)\]\(\.\./\1#L\2\) \| `(.+)` \|$")


def moved(row: str) -> str:
    found = ROW.search(row)
    if found is None:
        return row
    file, line, code = found.groups()
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    places = [number for number, text in enumerate(lines, 1) if code.replace("\\|", "|") in text]
    if int(line) in places:
        return row
    if len(places) != 1:
        print(f"{file}:{line}: {code!r} stands at {places}")
        return row
    return row.replace(f"{file}:{line}]", f"{file}:{places[0]}]").replace(f"{file}#L{line})", f"{file}#L{places[0]})")


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8")
    after = "\n".join(map(moved, before.split("\n")))
    PAGE.write_text(after, encoding="utf-8")
    sys.exit(0)
