"""Tuning is deterministic, so its results are kept and found again by everything they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from milodo.files import cache_folder, write_json

NUMERICS = 4
"""Raised when a change of the library may change what tuning finds; older results are then forgotten."""


def cache_path(key: dict[str, Any]) -> Path:
    text = json.dumps({**key, "numerics": NUMERICS}, sort_keys=True)
    return cache_folder() / "tuning" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def load(key: dict[str, Any], notice: Callable[[str], None] = lambda said: None) -> dict[str, Any] | None:
    """What was stored under this key; None if nothing, or something else by now, which `notice` is told."""
    path = cache_path(key)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return None
    except (ValueError, RecursionError):
        content = {}
    if isinstance(content, dict) and content.keys() == {"key", "result"}:  # of an earlier milodo, which kept no digest
        return None
    whole = isinstance(content, dict) and content.keys() == {"key", "result", "digest"} and content["key"] == key
    if whole and isinstance(content["result"], dict) and content["digest"] == digest(content["result"]):
        return content["result"]
    notice(f"{path} was damaged or altered: tuned again")
    return None


def digest(result: dict[str, Any]) -> str:
    """Of a result, so that a value that was altered is noticed."""
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


def store(key: dict[str, Any], result: dict[str, Any]) -> None:
    """A cache that cannot be written costs time later, not the result now."""
    path = cache_path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"key": key, "result": result, "digest": digest(result)})
    except OSError:
        return
