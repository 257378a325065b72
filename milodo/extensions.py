"""Methods, problems and penalties from outside of milodo: registered by a decorator, installed as entry points, or imported by an
experiment (`imports = ["my_module"]`)."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from milodo.algorithms import METHODS, Algorithm
from milodo.errors import InvalidInput, quoted, shortened
from milodo.learned import LEARNED, Learned
from milodo.problems import FAMILIES, REGULARIZERS, Family, Regularizer

Class = TypeVar("Class", bound=type)
NAME = re.compile(r"[a-z][a-z0-9_+-]{0,59}", re.ASCII)
"""What may be registered: a word of experiments, records and file names."""
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*", re.ASCII)
RESERVED = ("auto",)
"""Not a method, but the choice of one."""


@dataclass(frozen=True)
class Kind:
    """One kind of thing that may be registered."""

    word: str
    table: dict[str, Any]
    """Where experiments look it up by its name."""
    base: type
    """Of which it is a subclass."""
    taken: tuple[dict[str, Any], ...] = ()
    """Other tables, whose names it must not have."""


KINDS = {
    "milodo.methods": Kind("method", METHODS, Algorithm, (LEARNED,)),
    "milodo.learned": Kind("learned method", LEARNED, Learned, (METHODS,)),
    "milodo.problems": Kind("problem family", FAMILIES, Family),
    "milodo.penalties": Kind("penalty", REGULARIZERS, Regularizer),
}
"""By the group of entry points in which an installed package announces them."""


def register_method(name: str) -> Callable[[Class], Class]:
    """@register_method("my-method") above a subclass of milodo.Algorithm makes it a name for [[methods]]."""
    return _registering("milodo.methods", name)


def register_learned(name: str) -> Callable[[Class], Class]:
    """@register_learned("my-kind") above a subclass of milodo.Learned, whose `kind` is that name."""
    return _registering("milodo.learned", name)


def register_problem(name: str) -> Callable[[Class], Class]:
    """@register_problem("my-family") above a subclass of milodo.Family makes it a name for [problem] family."""
    return _registering("milodo.problems", name)


def register_penalty(name: str) -> Callable[[Class], Class]:
    """@register_penalty("my-penalty") above a subclass of milodo.Regularizer makes it a kind of [problem.regularizer]."""
    return _registering("milodo.penalties", name)


def _registering(group: str, name: str) -> Callable[[Class], Class]:
    kind = KINDS[group]

    def register(cls: Class) -> Class:
        _check(kind, name, cls)
        kind.table[name] = cls
        return cls

    return register


def _check(kind: Kind, name: str, cls: Any) -> None:
    """One sentence for what cannot be registered."""
    what = f"{quoted(name)} cannot be registered as a {kind.word}:"
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in RESERVED or any(name in other for other in kind.taken):
        raise InvalidInput(f"{what} the name is taken or none. Choose another one, of small letters, digits and hyphens.")
    if not (isinstance(cls, type) and issubclass(cls, kind.base)):
        raise InvalidInput(f"{what} {quoted(cls)} is no subclass of {kind.base.__name__}. Derive it from that class.")
    if not (is_dataclass(cls) or issubclass(cls, Learned)):
        raise InvalidInput(f"{what} its parameters are fields of a dataclass. Write @dataclass(frozen=True) above it.")
    if issubclass(cls, Learned) and cls.kind != name:
        raise InvalidInput(f"{what} its kind is {quoted(cls.kind)}. Give both the same name.")
    known = kind.table.get(name)
    if known is not None and _origin(known) != _origin(cls):
        raise InvalidInput(f"{what} {'.'.join(_origin(known))} has this name already. Choose another one.")


def _origin(cls: type) -> tuple[str, str]:
    """Where a class is defined; one whose module is loaded again replaces its predecessor."""
    return cls.__module__, cls.__qualname__


@cache
def load_installed() -> None:
    """Registers what installed packages announce, once. A package that fails is named in a warning, and the others stay."""
    for group in KINDS:
        for found in entry_points(group=group):
            try:
                _registering(group, found.name)(found.load())
            except Exception as error:  # of somebody else's code
                warnings.warn(f"{found.value} of the entry points {group} cannot be used: {shortened(error)}", stacklevel=2)


def import_modules(names: Sequence[str], folder: Path) -> None:
    """Imports the modules that an experiment in this folder names: installed ones, or files beside it."""
    for name in names:
        if not MODULE.fullmatch(name):
            raise InvalidInput(f"imports names {quoted(name)}, which is no name of a module. Write it without '.py'.")
        beside = folder.resolve() / Path(*name.split(".")).with_suffix(".py")
        if str(folder.resolve()) not in sys.path:
            sys.path.append(str(folder.resolve()))  # last, so that it hides nothing
        try:
            module = importlib.import_module(name)
        except Exception as error:  # of somebody else's code
            raise InvalidInput(
                f"imports names {quoted(name)}, which cannot be imported ({type(error).__name__}: {shortened(error)}). "
                "It must be installed or lie beside the experiment."
            ) from error
        file = getattr(module, "__file__", None)
        if beside.is_file() and (file is None or Path(file).resolve() != beside):
            raise InvalidInput(
                f"imports names {quoted(name)}, but another module of this name is loaded already ({file or 'a built-in one'}). "
                f"Rename {beside.name}."
            )
