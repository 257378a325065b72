"""What reaches the terminal: no control character out of somebody's file, no exception for a letter it lacks, no end half way."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import warnings
from typing import Any

from rich.console import Console
from rich.errors import MarkupError
from rich.text import Text

HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters but the end of a line, and those that turn the direction of writing: they would steer the terminal."""


def visible(text: str) -> str:
    r"""Control characters as Python writes them: an escape sequence shows as \x1b[31m and colours nothing."""
    return HIDDEN.sub(lambda found: repr(found[0])[1:-1], text)


def as_written(text: str) -> str:
    """A word of the command line as it was typed, in UTF-8, also where the locale knows ASCII only; files are in UTF-8 too."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


class Terminal(Console):
    """A Console through which every text, also a table's, passes once before it is laid out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        shown = visible(as_written(text)).encode(self.encoding, "backslashreplace").decode(self.encoding)
        try:
            return super().render_str(shown, **options)
        except MarkupError:  # a name that looks like the end of a style
            return super().render_str(shown, **{**options, "markup": False})

    def on_broken_pipe(self) -> None:
        """Nobody reads on (`| head`): goes on in silence, for what is computed is still to be saved."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


console = Terminal()
complaints = Terminal(stderr=True)


def say(where: Console, text: str) -> None:
    """Plain text: paths may hold what rich would take for markup."""
    where.print(text, markup=False, soft_wrap=True)


def print_whatever_comes() -> None:
    """A letter that the terminal, or the file the output goes to, cannot show becomes an escape instead of an exception.

    Warnings of libraries quote names too.
    """
    written = warnings.formatwarning
    warnings.formatwarning = lambda *args, **kwargs: visible(written(*args, **kwargs))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None, or something else, where a program embeds us
            stream.reconfigure(errors="backslashreplace")


def end(code: int) -> None:
    """Ends the program; at once if a thread still waits in torch's C++, which Python's own way out would abort."""
    meeting = sys.modules.get("milodo.runtime.meeting")
    if meeting is None or not meeting.still_waiting():
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
