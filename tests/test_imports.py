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
    {"errors", "process", "provenance", "status", "types", "words"},
    {"files", "memory"},
    {"topology", "folder"},
    {"network"},
    {"problems"},
    {"algorithms"},
    {"learned"},
    {"solve"},
    {"config"},
    {"training", "bench", "fit"},
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


def names_its_encoding(call: ast.Call) -> bool:
    """Whether a call that opens a text file says how it is written; without, a file depends on the locale of who wrote it."""
    name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""
    keywords = {word.arg: word.value for word in call.keywords}
    if name in ("run", "Popen", "check_output"):  # of subprocess; bytes unless text is asked for
        return "encoding" in keywords or not {"text", "universal_newlines"} & set(keywords)
    if name not in ("open", "fdopen", "read_text", "write_text") or ast.unparse(call.func) == "os.open":
        return True
    words = [word.value for word in (*call.args, keywords.get("mode")) if isinstance(word, ast.Constant)]
    binary = name in ("open", "fdopen") and any(isinstance(word, str) and "b" in word and len(word) <= 3 for word in words)
    return binary or "encoding" in keywords


@pytest.mark.parametrize("name", NAMES)
def test_every_text_file_is_opened_with_its_encoding(name):
    calls = (node for node in ast.walk(tree(name)) if isinstance(node, ast.Call))
    assert not [node.lineno for node in calls if not names_its_encoding(node)]


@pytest.mark.parametrize(
    ("call", "fine"),
    [
        ("open(path)", False),
        ("path.open('w', newline='')", False),
        ("path.read_text()", False),
        ("path.write_text('b')", False),
        ("subprocess.run(words, text=True)", False),
        ("open(path, 'rb')", True),
        ("path.open(mode='xb')", True),
        ("path.read_text(encoding='utf-8')", True),
        ("self.run(resume=True)", True),
    ],
)
def test_an_encoding_that_is_missing_would_be_found(call, fine):
    node = ast.parse(call).body[0]
    assert isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    assert names_its_encoding(node.value) is fine
