"""Experiments by name: files of one's own, and those that come with milodo."""

from __future__ import annotations

import difflib
from pathlib import Path

from milodo.errors import QUOTE, InvalidInput, quoted, unknown
from milodo.files import is_file, is_folder


def find_experiment(name: str | Path) -> Path:
    """A path as it is; a bare name such as 'demo' is looked up among the shipped experiments."""
    path = Path(name)
    if is_file(path):
        return path
    if path.suffix or len(path.parts) != 1:
        others = [p.name for p in path.parent.glob("*.toml")] if is_folder(path.parent) else []
        near = difflib.get_close_matches(path.name[:QUOTE], others, n=1)
        hint = f"Did you mean {quoted(str(path.parent / near[0]))}?" if near else "See experiments/ for some to start from."
        raise InvalidInput(f"no experiment {quoted(str(path))}. {hint}")
    shipped = shipped_experiments()
    if str(name) not in shipped:
        raise unknown("experiment", str(name), shipped)
    return shipped[str(name)]


def shipped_experiments() -> dict[str, Path]:
    """Every shipped experiment by its name, whichever folder it is in: demo/, paper/, training/ or selection/."""
    package = Path(__file__).resolve().parent
    folders = [package / "experiments", package.parent / "experiments"]  # installed; in a source tree
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*/*.toml"))}
