"""How methods are drawn: one colour a method, in every figure and on every page, from one table."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass

MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P", "x": "X", "star": "*", "pentagon": "p"}
"""plotly's name -> matplotlib's."""
DASHES: tuple[tuple[float, ...], ...] = ((), (8, 3), (9, 3, 2, 3), (14, 4), (12, 3, 2, 3, 2, 3))
VARIANTS: tuple[tuple[float, ...], ...] = ((2, 3), (5, 3), (5, 3, 1.5, 3), (2, 3, 2, 6), (9, 2))
"""Dashes of a method's second entry and of further ones: with other step sizes, or other messages."""


@dataclass(frozen=True)
class Style:
    """Entries of one method share its colour, and are told apart by dashes and markers."""

    light: str
    dark: str
    """The same on a dark page."""
    dash: tuple[float, ...]
    marker: str
    """A key of MARKERS."""
    variant: bool = False
    """Whether the method has an entry before this one."""


# Okabe and Ito's colour-blind-safe palette without its yellow (unreadable on white) first; `dark` is lighter.
PALETTE = (
    ("#0072b2", "#4ea8e6"), ("#d55e00", "#f58344"), ("#009e73", "#2fc79c"), ("#b0508a", "#e39ac6"),
    ("#3b4252", "#d5dbe5"), ("#c98a00", "#f0b73c"), ("#3a9fd6", "#93d3f5"), ("#6a4c93", "#b79fdb"), ("#6b7a00", "#b9c94a"),
    ("#8c3d2b", "#d98f7c"),
)  # fmt: skip
"""Of what is no method: features, sites, settings side by side, and methods that the table below does not know."""

METHOD_COLOURS: dict[str, tuple[str, str]] = {
    # The paper's, which meet in most figures.
    "prox-ed": ("#0072b2", "#4ea8e6"), "pg-extra": ("#d55e00", "#f58344"), "prox-atc": ("#009e73", "#2fc79c"),
    "prox-dgd": ("#b0508a", "#e39ac6"), "dapg": ("#3b4252", "#d5dbe5"), "odapg": ("#c98a00", "#f0b73c"),
    "milodo": ("#8c3d2b", "#d98f7c"), "lpg-extra": ("#6b7a00", "#b9c94a"), "base-rules": ("#00707c", "#45c3d0"),
    # Ours, and rivals.
    "auto": ("#c8102e", "#ff7385"), "accelerated-ed": ("#3a9fd6", "#93d3f5"), "tree-apg": ("#6a4c93", "#b79fdb"),
    "plus": ("#4d9a1f", "#a2e06f"), "apapc": ("#e05fb5", "#ff9edd"), "lepdo": ("#1d3f9e", "#7f9bff"),
    "admm": ("#7b818a", "#a9b0ba"),
    "tree-newton": ("#9c27b0", "#dd85ee"), "flood-apg": ("#4a36c4", "#a193ff"),
    "primal-dual": ("#5f4b32", "#c4a77d"),
    # Of networks.
    "d-psgd": ("#a65a00", "#e8a04f"), "dsgdm": ("#2e7d32", "#76c97a"), "qg-dsgdm": ("#ad1457", "#f06fa4"),
    "decentlam": ("#5e35b1", "#a98bf0"), "gradient-tracking": ("#455a64", "#9fb6c1"), "shared": ("#b8740a", "#ffc078"),
}  # fmt: skip
"""By the name that experiments give a method -> on white, on dark. A law asks for an entry of everything registered, and for
colours that differ where methods meet in an experiment."""


def name_of(entry: str) -> str:
    """'prox-ed' of 'prox-ed (published)'."""
    return entry.split(" (")[0]


def base_of(method: str, methods: Container[str]) -> str:
    """'prox-ed' for 'prox-ed (published)' if both are there, else the method itself."""
    base = name_of(method)
    return base if base in methods else method


def styled(entries: Sequence[str]) -> dict[str, Style]:
    """Of every entry of a run. A name that the table does not have gets a colour of the palette by its letters: the same
    everywhere, unless another of the run has it already."""
    names = list(dict.fromkeys(_names(entries).values()))
    colours = {name: METHOD_COLOURS[name] for name in names if name in METHOD_COLOURS}
    for name in names:
        colours.setdefault(name, _free(name, list(colours.values())))
    styles: dict[str, Style] = {}
    shapes, known = list(MARKERS), list(METHOD_COLOURS)
    count = dict.fromkeys(names, 0)
    for entry, name in sorted(_names(entries).items(), key=lambda pair: pair[0] != pair[1]):  # the plain one first
        at = known.index(name) if name in METHOD_COLOURS else _number(name)
        again, dash = count[name], DASHES[(at + at // len(shapes)) % len(DASHES)]
        dash = dash if again == 0 else VARIANTS[(again - 1) % len(VARIANTS)]
        styles[entry] = Style(*colours[name], dash, shapes[(at + again) % len(shapes)], variant=again > 0)
        count[name] += 1
    return {entry: styles[entry] for entry in entries}


def _names(entries: Sequence[str]) -> dict[str, str]:
    """Of each entry, the method it is of: only what the table has, or what is there without brackets, has variants."""
    return {each: name if (name := name_of(each)) in METHOD_COLOURS else base_of(each, entries) for each in entries}


def _free(name: str, taken: list[tuple[str, str]]) -> tuple[str, str]:
    first = _number(name)
    order = [PALETTE[(first + k) % len(PALETTE)] for k in range(len(PALETTE))]
    return min(order, key=taken.count)


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
