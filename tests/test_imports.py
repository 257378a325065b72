"""The shape of the package, read from its syntax trees: imports point down, and each concern stays in its room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import milodo

PACKAGE = Path(milodo.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(file.relative_to(PACKAGE)) for file in FILES]

LEVELS = (
    {"errors", "process", "provenance", "types"},
    {"files"},
    {"topology"},
    {"network"},
    {"problems"},
    {"algorithms"},
    {"learned"},
    {"solve"},
    {"config"},
    {"training", "bench"},
    {"report"},
    {"runtime"},
    {"cli"},
    {"__main__"},
)
"""From the bottom up; a room may import what lies below it."""
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

LONGEST = 420
"""Lines of a file."""


def room(name: str) -> str:
    """problems/base.py -> problems, solve.py -> solve."""
    return Path(name).parts[0].removesuffix(".py")


def tree(name: str) -> ast.Module:
    return ast.parse((PACKAGE / name).read_text())


def imported(name: str) -> set[str]:
    """Every module a file imports, wherever in the file, by its absolute name; `from a import b` counts as a and a.b."""
    here = ["milodo", *Path(name).with_suffix("").parts]
    found = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*here[: -node.level], *([node.module] if node.module else [])]) if node.level else str(node.module)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def attributes(name: str) -> set[str]:
    """Every dotted name a file reads, such as torch.load."""
    return {ast.unparse(node) for node in ast.walk(tree(name)) if isinstance(node, ast.Attribute)}


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__init__.py"])
def test_imports_point_down(name):
    own = room(name)
    assert own in LEVEL, f"{own} is a new room: say in LEVELS where it stands"
    for module in imported(name):
        parts = module.split(".")
        if parts[0] != "milodo" or len(parts) == 1 or parts[1] in (own, "__version__"):
            continue
        assert parts[1] in LEVEL, f"{name} imports {module}, which is no room"
        assert LEVEL[parts[1]] < LEVEL[own], f"{name} imports {module}, which does not lie below it"


@pytest.mark.parametrize("name", NAMES)
def test_processes_talk_only_in_their_rooms(name):
    if name in ("network/distributed.py", "network/observer.py") or room(name) == "runtime":
        return
    assert not [
        module for module in imported(name) | attributes(name) if within(module, "torch.distributed", "torch.multiprocessing")
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if room(name) not in ("cli", "__main__")])
def test_only_the_command_line_prints(name):
    calls = (node for node in ast.walk(tree(name)) if isinstance(node, ast.Call))
    assert not [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]


@pytest.mark.parametrize("name", NAMES)
def test_no_file_is_read_that_could_run_code(name):
    dangerous = ("pickle", "cPickle", "dill", "shelve", "marshal", "joblib", "torch.load")
    assert not [module for module in imported(name) | attributes(name) if within(module, *dangerous)]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_read_in_one_sitting(name):
    assert len((PACKAGE / name).read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("name", [name for name in NAMES if room(name) in ("algorithms", "learned")])
def test_a_method_sees_no_average_over_all_nodes(name):
    assert not [module for module in imported(name) if "bserver" in module]
