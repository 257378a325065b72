"""Pages that are programs: their blocks are run in order, as they stand."""

from __future__ import annotations

import doctest
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

from real import LIMIT, environment

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.S | re.M)


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """Language, text and first line of every block that can be run."""
    text = page.read_text(encoding="utf-8")
    return [(found[1], found[2], text.count("\n", 0, found.start(2))) for found in BLOCK.finditer(text)]


def follow(page: Path, folder: Path) -> int:
    """Does what a page says, in a folder; returns the number of blocks. Python blocks share their names, as in one session."""
    commands = folder / "bin"
    commands.mkdir()
    command = commands / "milodo"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m milodo "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IEXEC)
    paths = os.pathsep.join(filter(None, sys.path))  # the very milodo that is tested here
    env = environment(PATH=f"{commands}{os.pathsep}{os.environ['PATH']}", PYTHONPATH=paths, MILODO_CACHE=str(folder / "cache"))
    names: dict[str, object] = {"__name__": "tutorial"}
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    found = blocks(page)
    for language, text, line in found:
        where = f"{page.name}, line {line + 1}"
        if language == "sh":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT
            )
            assert done.returncode == 0, f"{where}: {done.stdout}{done.stderr}"
            continue
        said: list[str] = []
        test = parser.get_doctest(text, names, page.name, str(page), line)
        assert test.examples, f"{where}: a block of Python without a prompt"
        failed = runner.run(test, out=said.append, clear_globs=False).failed
        names.update(test.globs)
        assert not failed, "".join(said)
    return len(found)
