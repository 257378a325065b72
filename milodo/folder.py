"""The folder of a run, be it a race or a training: begun once, resumed with what it began with, replaced only if asked to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milodo.errors import InvalidInput
from milodo.files import make_writable


@dataclass(frozen=True)
class RunFolder:
    """Holds a run as soon as the file with its facts is there."""

    path: Path
    what: str
    """As messages call it: a run, a training."""
    facts: str
    """Name of the file that says what was asked."""
    leaves: tuple[str, ...]
    """Patterns of the other files of a run, which the next one must not find."""

    @property
    def file(self) -> Path:
        return self.path / self.facts

    def begin(self, *, resume: bool, overwrite: bool) -> bool:
        """Whether the run that is here goes on; if not, a new one may begin, and nothing of an old one is left."""
        if resume and overwrite:
            raise InvalidInput(f"a {self.what} is resumed or overwritten, but not both. Choose one of them.")
        make_writable(self.path)
        if self.file.exists() and not overwrite:
            if not resume:
                said = f"{str(self.path)!r} already holds a {self.what}. Resume it, overwrite it, or write to another folder."
                raise InvalidInput(said, "resume", "overwrite", "out")
            return True
        for stale in (path for pattern in self.leaves for path in self.path.glob(pattern)):
            stale.unlink(missing_ok=True)
        return False

    def check_same(self, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Before a run goes on: what it was begun with, by name, is what is asked for now."""
        for what, asked in now.items():
            if begun.get(what) != asked:
                raise InvalidInput(
                    f"{str(self.path)!r} was made with another {what}; going on would mix the two. "
                    "Overwrite it, or write to another folder.",
                    "overwrite", "out",
                )  # fmt: skip
