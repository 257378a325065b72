"""Results that took long, kept in a file: what is there is not computed again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from milodo.files import write_json


class Kept:
    """By name; written whole after each. `asked` is what they depend on: a trial's results are not taken for a full run's."""

    def __init__(self, path: Path, asked: dict[str, Any]) -> None:
        self.path, self.since = path, time.perf_counter()
        self.content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"asked": asked}
        if self.content["asked"] != asked:
            sys.exit(f"{path} was computed with {self.content['asked']}, and now {asked} is asked for. Give another --out.")

    def get(self, name: str, compute: Callable[[], Any]) -> Any:
        if name not in self.content:
            self.say(f"{name} ...")
            self.content[name] = compute()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, self.content)
        return self.content[name]

    def say(self, what: str) -> None:
        """Progress, beside the table."""
        print(f"[{time.perf_counter() - self.since:6.0f} s] {self.path.parent.name}: {what}", file=sys.stderr, flush=True)
