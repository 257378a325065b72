"""What we say when something asked for cannot be done: one sentence, before the first iteration."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, SupportsFloat, SupportsIndex

QUOTE = 80
"""Characters of a value that a message quotes: what stands in somebody's file may be as long as the file."""
KNOWN = 250
"""Characters of a list of what would have been right."""
LARGEST = (1 << 63) - 1
"""Whole numbers beyond this are no size of anything."""


class InvalidInput(ValueError):
    """What was asked, why it cannot be, what to do. The command line prints it without a traceback."""

    def __init__(self, sentence: str, *remedies: str) -> None:
        """`remedies` name the settings that would mend it ("resume", "out"); the command line adds its options of that name."""
        super().__init__(sentence)
        self.remedies = remedies


class Stopped(Exception):
    """This process ends because another one did; `said` tells whether somebody on this host has already said why."""

    def __init__(self, sentence: str, said: bool = False) -> None:
        super().__init__(sentence)
        self.said = said


class FaultyNode(Stopped):
    """A node sends, or computes, what cannot be; the fit of all sites would be wrong, and ends."""

    def __init__(self, node: int, why: str) -> None:
        super().__init__(f"node {node} {why}")
        self.node, self.why = node, why

    def at(self, site: str) -> str:
        """The sentence, with a name for the node that its user knows."""
        return f"{site} {self.why}"


def shortened(text: object, limit: int = QUOTE) -> str:
    """A text on one line, without its middle if it is long."""
    return _without_middle(" ".join(str(text).split()), limit)


def quoted(value: object, limit: int = QUOTE) -> str:
    """A value as Python writes it, without its middle if that is long."""
    if isinstance(value, str | bytes):  # of a text as long as a file only the ends are looked at
        ends: Any = value
        return _without_middle(repr(ends if len(ends) <= 2 * limit else ends[:limit] + ends[-limit:]), limit)
    try:
        return shortened(repr(value), limit)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists within lists within lists
        return f"a very long {type(value).__name__}"


def _without_middle(line: str, limit: int) -> str:
    head = (limit - 3) * 2 // 3
    return line if len(line) <= limit else f"{line[:head]}...{line[len(line) - (limit - 3 - head) :]}"


def unknown(kind: str, word: str, known: Iterable[str]) -> InvalidInput:
    """An error for a name nobody registered, with the nearest one that exists."""
    known = sorted(known)
    near = difflib.get_close_matches(str(word)[:QUOTE].lower(), known, n=1, cutoff=0.5)
    hint = f"Did you mean {quoted(near[0])}?" if near else f"Known: {shortened(', '.join(known), KNOWN)}."
    return InvalidInput(f"unknown {kind} {quoted(word)}. {hint}")


def whole(what: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """The value, if it is a whole number from `least` to `most`; True and 2.0 are none."""
    number = _index(value)
    if number is None or number < least:
        raise InvalidInput(f"{what} is {quoted(value)}, but it must be a whole number >= {least}.")
    if most is not None and number > most:
        raise InvalidInput(f"{what} is {quoted(number)}, but it must be at most {most}.")
    return number


def _index(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return value.__index__()
    except TypeError:  # arrays and tensors have an index only if they hold one whole number
        return None


def as_float(value: Any) -> float | None:
    """The value as a float, infinite or not; None if it is no number, or none that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array of several numbers, a whole number beyond 1e308
        return None
