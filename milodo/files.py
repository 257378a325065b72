"""Files that are whole or absent."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import re
import socket
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from milodo.errors import InvalidInput, quoted, shortened

FORMAT = 1
"""Of the files milodo writes; one with a larger number was written by a newer milodo."""
DEEPEST = 50
"""Levels of lists and tables within each other; what we write has fewer than ten."""
LOCK = ".lock"
"""Of a folder that is being written to; gone when nobody does."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LARGEST_TOML, MOST_PARTS = 1 << 20, 30
"""Bytes of a TOML file, and parts of a dotted key in it; experiments have a few thousand, and three."""
PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
DOTTED = re.compile(rf"(?<![A-Za-z0-9_.\\-]){PART}(?:[ \t]*\.[ \t]*{PART}){{{MOST_PARTS}}}")
"""A key of more parts than that, wherever it stands: the memory that the parser takes grows with the square of their number."""
PATIENCE = 1.0
"""Seconds before a folder is refused: a process that was just killed may not have let go yet."""


def is_file(path: str | Path) -> bool:
    """Whether there is such a file. A name that no file can have (too long, with a NUL in it) is the name of none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Whether there is such a folder; otherwise as is_file."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def cache_folder() -> Path:
    """What can be made or fetched again: $MILODO_CACHE, else the user's cache folder."""
    if own := os.environ.get("MILODO_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "milodo"


class atomic:
    """A path to write to that replaces the real one only when all went well: no half-written file ever carries the name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        os.close(handle)
        self.part = Path(name)
        self.part.unlink()
        return self.part

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if kind is None:
            self.part.replace(self.path)
            return
        self.part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(self.part)):
            error.filename = str(self.path)  # the name that people know


def is_full(error: BaseException) -> bool:
    """Whether something could not be written because there is no room for it, on the disk or for this user."""
    return isinstance(error, OSError) and error.errno in FULL


def write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic(path) as part:
        part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    with atomic(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def read_csv(path: Path, again: str) -> list[list[str]]:
    """All lines; `again` says how to make the file anew."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read ({shortened(error)}). The file was damaged; {again} again.") from error


def read_versioned_json(path: Path, newest: int = FORMAT) -> dict[str, Any]:
    """A JSON object with a format number that this milodo can read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: not readable as JSON ({shortened(error)}).") from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise InvalidInput(f"{path}: not written by milodo (no format number).")
    if content["format"] > newest:
        raise InvalidInput(
            f"{path}: format {quoted(content['format'])} is newer than this milodo reads ({newest}). Update milodo."
        )
    if not _is_sane(content, DEEPEST):
        raise InvalidInput(f"{path}: lists within lists more than {DEEPEST} deep, or text that is none. The file was damaged.")
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says; one that would fill the memory is refused before it is parsed."""
    try:
        if path.stat().st_size > LARGEST_TOML:
            raise InvalidInput(f"{path}: larger than {LARGEST_TOML >> 20} MiB, which no such file is.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read ({shortened(error)}).") from error
    if long := DOTTED.search(text):
        line = text.count("\n", 0, long.start()) + 1
        raise InvalidInput(
            f"{path}, line {line}: a key of more than {MOST_PARTS} parts, {quoted(long[0], 30)}. Tables need three."
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: not valid TOML: {shortened(error)}.") from error


def _is_sane(value: Any, deepest: int) -> bool:
    """Neither deeper than anything we write, nor with halves of characters in its texts, which no file can hold."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return not isinstance(value, list) or (deepest > 0 and all(_is_sane(entry, deepest - 1) for entry in value))


def make_writable(folder: Path) -> None:
    """Makes the folder if need be, and fails in one sentence if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{os.getpid()}"  # others may be asking the same
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InvalidInput(
            f"cannot write to {quoted(str(folder), 200)} ({error.strerror}). Choose another folder.", "out"
        ) from error


class locked:
    """The folder is this process's to write to, and a second process that wants it is refused.

    The kernel lets go when the process ends, however it does. Where there are no locks (some network drives), nobody is refused.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LOCK

    def __enter__(self) -> None:
        self.made = not is_folder(self.folder)
        make_writable(self.folder)
        self.lock = FileLock(self.path)
        try:
            self.lock.acquire(timeout=PATIENCE)
            self.path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        except Timeout as error:
            raise InvalidInput(
                f"another milodo is writing to {quoted(str(self.folder), 200)} ({self._holder()}). Wait until it has ended, or "
                "choose another folder.",
                "out",
            ) from error
        except OSError:  # it cannot be locked here
            pass

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()  # while it is still ours: who opened it meanwhile sees that it has gone
        with contextlib.suppress(OSError):
            self.lock.release()
        if self.made:
            with contextlib.suppress(OSError):  # only if nothing was written
                self.folder.rmdir()

    def _holder(self) -> str:
        try:
            return shortened(self.path.read_text(encoding="utf-8", errors="replace")) or "which one is not known"
        except OSError:
            return "which one is not known"
