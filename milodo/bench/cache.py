"""Tuning is deterministic, so its results are kept and found again by everything they depend on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from milodo.files import cache_folder, write_json

NUMERICS = 4
"""Raised when a change of the library may change what tuning finds; older results are then forgotten."""


def cache_path(key: dict[str, Any]) -> Path:
    text = json.dumps({**key, "numerics": NUMERICS}, sort_keys=True)
    return cache_folder() / "tuning" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def load(key: dict[str, Any]) -> dict[str, Any] | None:
    """What was stored under this key; None if nothing, or something that cannot be it."""
    try:
        content = json.loads(cache_path(key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content["result"] if isinstance(content, dict) and content.get("key") == key and "result" in content else None


def store(key: dict[str, Any], result: dict[str, Any]) -> None:
    """A cache that cannot be written costs time later, not the result now."""
    path = cache_path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"key": key, "result": result})
    except OSError:
        return
