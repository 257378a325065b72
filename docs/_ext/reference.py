"""Pages that are made from the code at every build, below docs/reference/: public names by room, and every command."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import typer
from sphinx.application import Sphinx

import milodo
from milodo.cli.main import app as commands

TITLES = {
    "errors": "Errors", "status": "How a run ended", "topology": "Graphs", "network": "Networks, messages and observers",
    "problems": "Problems and regularizers", "algorithms": "Methods", "algorithms.auto": "The choice by price",
    "learned": "Learned methods", "learned.checkpoint": "Shipped and saved optimizers", "loop": "Solving",
    "torch_loop": "Training loops", "gossip": "Training loops",
}  # fmt: skip
DOORS = {"sklearn": "Estimators: milodo.sklearn"}
"""Modules with names of their own beside milodo's."""


def entry(name: str, thing: object) -> str:
    kind = "autoclass" if inspect.isclass(thing) else "autofunction" if inspect.isroutine(thing) else "autodata"
    options = {"autoclass": "   :members:\n   :show-inheritance:\n", "autodata": "   :no-value:\n"}.get(kind, "")
    return f".. {kind}:: {name}\n{options}"


def page(title: str, text: str, entries: list[str]) -> str:
    return "\n".join([title, "=" * len(title), "", text, "", *entries])


def rooms() -> dict[str, str]:
    """File name -> its text: each public name under the first room that has it."""
    left, made = list(milodo.__all__), {}
    for room in milodo.ROOMS:
        module = importlib.import_module(f"milodo.{room}")
        here = [name for name in left if name in vars(module)]
        left = [name for name in left if name not in here]
        entries = [entry(f"milodo.{name}", getattr(milodo, name)) for name in here]
        made[room] = page(TITLES.get(room, room), "", entries)
    assert not left, f"public names without a room: {left}"
    for door, title in DOORS.items():
        if Path(milodo.__file__).with_name(f"{door}.py").exists() or Path(milodo.__file__).with_name(door).is_dir():
            module = importlib.import_module(f"milodo.{door}")
            names = getattr(module, "__all__", None) or [n for n, o in vars(module).items() if _own(n, o, module)]
            made[f"door-{door}"] = page(title, "", [entry(f"milodo.{door}.{name}", getattr(module, name)) for name in names])
    order = ["loop", "problems", "topology", "network", "algorithms", "algorithms.auto", *made]
    tree = [".. toctree::", "   :maxdepth: 1", "", *(f"   {name}" for name in dict.fromkeys([*doors(made), *order]))]
    text = "Everything ``milodo`` exports, by the room it lives in; and the modules that are doors of their own."
    return {**made, "index": page("Public names", text, tree)}


def doors(made: dict[str, str]) -> list[str]:
    return [name for name in made if name.startswith("door-")]


def _own(name: str, thing: object, module: object) -> bool:
    named = inspect.isclass(thing) or inspect.isfunction(thing)
    return named and not name.startswith("_") and getattr(thing, "__module__", "") == getattr(module, "__name__", "")


def command_page() -> str:
    """`milodo COMMAND --help` of every command, as definitions."""
    group = typer.main.get_command(commands)
    lines = ["# Commands", "", "What `milodo COMMAND --help` says, in one place.", ""]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        arguments = [f"{p.name.upper()}" for p in command.params if p.param_type_name == "argument"]
        lines += [f"## milodo {name}", "", f"    milodo {' '.join([name, *arguments, '[OPTIONS]'])}", ""]
        lines += [inspect.cleandoc(command.help or "").replace("\f", ""), ""]
        shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
        lines += ["| | |", "|---|---|"] if shown else []
        for p in shown:
            said = (getattr(p, "help", None) or "").replace("|", "\\|").replace("\n", " ")
            lines.append(f"| `{', '.join(p.opts) if p.param_type_name == 'option' else p.name.upper()}` | {said} |")
        lines.append("")
    return "\n".join(lines)


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    files = {f"{room}.rst": text for room, text in rooms().items()} | {"commands.md": command_page()}
    for old in folder.iterdir():
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # so that an unchanged page is not built again
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
