"""What we say when something asked for cannot be done: one sentence, before the first iteration."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InvalidInput(ValueError):
    """What was asked, why it cannot be, what to do. The command line prints it without a traceback."""


def unknown(kind: str, word: str, known: Iterable[str]) -> InvalidInput:
    """An error for a name nobody registered, with the nearest one that exists."""
    known = sorted(known)
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
    return InvalidInput(f"unknown {kind} {word!r}. {hint}")
