"""Where a result came from: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from milodo.version import __version__


def provenance() -> dict[str, Any]:
    return {
        "milodo": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """Of the source tree milodo runs from, with '+' if it has uncommitted changes; None for an installed package."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        return _git(root, "rev-parse", "HEAD")[:12] + ("+" if _git(root, "status", "-s", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, check=True, encoding="utf-8", errors="replace").stdout.strip()
