"""Files that are whole or absent."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from milodo.errors import InvalidInput


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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.part.replace(self.path)
        else:
            self.part.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic(path) as part:
        part.write_text(json.dumps(content, indent=2) + "\n")


def read_versioned_json(path: Path, newest: int) -> dict[str, Any]:
    """A JSON object with a format number that this milodo can read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: not readable as JSON ({error}).") from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise InvalidInput(f"{path}: not written by milodo (no format number).")
    if content["format"] > newest:
        raise InvalidInput(f"{path}: format {content['format']} is newer than this milodo reads ({newest}). Update milodo.")
    return content


def make_writable(folder: Path) -> None:
    """Makes the folder if need be, and fails in one sentence if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{os.getpid()}"  # others may be asking the same
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InvalidInput(f"cannot write to {str(folder)!r} ({error.strerror}). Choose another folder with --out.") from error
