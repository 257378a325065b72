"""The shape of the package, read from its syntax trees: imports point down, and each concern stays in its room."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

import milodo
from milodo.cli.main import app

PACKAGE = Path(milodo.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(file.relative_to(PACKAGE)) for file in FILES]

LEVELS = (
    {"errors", "status", "tree", "types", "version", "words"},
    {"files", "memory", "provenance"},
    {"folder", "secret", "shipped"},
    {"topology"},
    {"network"},
    {"solvers"},
    {"problems"},
    {"metrics"},
    {"checks"},
    {"stopping"},
    {"algorithms"},
    {"learned"},
    {"synchronise"},
    {"loop", "extensions"},
    {"config"},
    {"training", "bench", "fit", "testing"},
    {"report"},
    {"paper"},
    {"runtime"},
    {"torch_loop", "sklearn"},
    {"cli"},
    {"__main__", "__init__"},
)
"""From the bottom up; a room may import what lies below it. The package itself, `import milodo`, lies above all of them."""
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

LONGEST = 400
"""Lines of a file."""


def room(name: str) -> str:
    """problems/base.py -> problems, loop.py -> loop."""
    return Path(name).parts[0].removesuffix(".py")


@cache
def tree(name: str) -> ast.Module:
    return ast.parse((PACKAGE / name).read_text())


@cache
def imported(name: str) -> set[str]:
    """Every module a file imports, wherever in the file, by its absolute name; `from a import b` counts as a and a.b.

    `from milodo import b` counts as b alone: it is the room b, or no room at all.
    """
    here = ["milodo", *Path(name).with_suffix("").parts]
    found = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*here[: -node.level], *([node.module] if node.module else [])]) if node.level else str(node.module)
            found |= ({base} - {"milodo"}) | {f"{base}.{alias.name}" for alias in node.names}
    return found


def modules(name: str) -> set[str]:
    """What a file is called when it is imported."""
    return {".".join(["milodo", *Path(name).with_suffix("").parts]).removesuffix(".__init__")}


@cache
def attributes(name: str) -> set[str]:
    """Every dotted name a file reads, such as torch.load."""
    return {ast.unparse(node) for node in ast.walk(tree(name)) if isinstance(node, ast.Attribute)}


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("name", NAMES)
def test_imports_point_down(name):
    own = room(name)
    assert own in LEVEL, f"{own} is a new room: say in LEVELS where it stands"
    for module in imported(name):
        other = module.split(".")[1] if "." in module else "__init__"
        if within(module, "milodo") and other != own:
            assert other in LEVEL, f"{name} imports {module}, which is no room"
            assert LEVEL[other] < LEVEL[own], f"{name} imports {module}, which does not lie below it"


@pytest.mark.parametrize("name", [name for name in NAMES if room(name) not in ("paper", "cli")])
def test_only_its_own_room_and_the_command_line_know_the_figures_of_the_paper(name):
    assert not [module for module in imported(name) if within(module, "milodo.paper")]
    words = (node.value for node in ast.walk(tree(name)) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    assert not [word for word in words if re.search(r"reproduc(e|tion)\b|\bfig-|\btable-", word)]


def promised() -> dict[str, str]:
    """Public name -> where type checkers look for it."""
    imports = [
        node for node in ast.walk(tree("__init__.py")) if isinstance(node, ast.ImportFrom) and "milodo" in str(node.module)
    ]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.name != "__version__"}


def test_every_public_name_is_what_type_checkers_see():
    assert sorted(promised()) == sorted(milodo.__all__)
    for name, module in promised().items():
        assert getattr(milodo, name) is getattr(import_module(module), name), name
    with pytest.raises(AttributeError, match="no attribute 'Laso'"):
        milodo.Laso  # noqa: B018


LAZILY = """
import sys
import milodo
assert set(milodo.__all__) <= set(dir(milodo))
assert milodo.topology.topology("ring(3)") == milodo.Topology.from_edges([(0, 1), (1, 2), (2, 0)])
assert issubclass(milodo.InvalidInput, ValueError) and milodo.__version__
assert "torch" not in sys.modules
import milodo.loop  # as a method of one's own may do
import milodo.bench.recorder
from milodo import Lasso, solve
assert solve is milodo.solve is milodo.loop.solve
"""


def test_a_name_is_imported_when_it_is_asked_for_and_solve_is_always_the_function():
    done = subprocess.run([sys.executable, "-c", LAZILY], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_no_two_files_of_the_command_line_import_each_other():
    below = {
        name: {other for other in NAMES if name != other and modules(other) & imported(name)}
        for name in NAMES
        if room(name) == "cli"
    }
    while below:
        lowest = {name for name in below if not below[name] & set(below)}
        assert lowest, f"a circle among {sorted(below)}"
        below = {name: below[name] for name in set(below) - lowest}


@pytest.mark.parametrize("name", [name for name in NAMES if room(name) != "cli"])
def test_only_the_command_line_speaks_of_flags(name):
    """Sentences say what to do; how to ask for it is the caller's."""
    texts = (node for node in ast.walk(tree(name)) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    assert not [f"{node.lineno}: {node.value}" for node in texts if re.search(r"(?<![\w-])--[a-z]", node.value)]


def test_every_remedy_is_an_option_of_the_command_line():
    calls = (node for name in NAMES for node in ast.walk(tree(name)) if isinstance(node, ast.Call))
    raised = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "InvalidInput"]
    remedies = {word.value for call in raised for word in call.args[1:] if isinstance(word, ast.Constant)}
    options = {
        option for command in get_command(app).commands.values() for parameter in command.params for option in parameter.opts
    }
    assert {"resume", "overwrite", "out"} <= remedies
    assert {f"--{word}" for word in remedies} <= options


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


def test_one_line_in_the_package_calls_step():
    """A method's `step` takes a state, a problem and a network; torch's optimizers take nothing. A method made of another calls
    its step, too, and there is none."""
    names = [name for name in NAMES if room(name) != "testing"]  # where laws call it to see what it does to its arguments
    calls = [(name, node) for name in names for node in ast.walk(tree(name)) if isinstance(node, ast.Call)]
    found = [
        f"{name}:{node.lineno}"
        for name, node in calls
        if isinstance(node.func, ast.Attribute) and node.func.attr == "step" and len(node.args) + len(node.keywords) >= 3
    ]
    passed_on = [f"{name}:{node.lineno}" for name, node in calls for word in node.args if ast.unparse(word).endswith(".step")]
    callers = [word.split(":")[0] for word in found]
    assert sorted(callers) == ["loop.py"] and not passed_on, found + passed_on


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
    if name not in ("open", "fdopen", "read_text", "write_text"):
        return True
    if ast.unparse(call.func) in ("os.open", "tarfile.open", "Image.open"):  # never text
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


def test_the_page_about_the_architecture_lists_every_room_in_order():
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", page, re.M)
    assert set(listed) == set(LEVEL) - {"version", "__main__", "__init__"}
    assert [LEVEL[name] for name in listed] == sorted(LEVEL[name] for name in listed)
