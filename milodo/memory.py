"""What this machine can hold, asked before something large is allocated: an allocation too large is a kill, not an error."""

from __future__ import annotations

import os
from pathlib import Path

from milodo.errors import InvalidInput
from milodo.words import amount

MEMINFO = Path("/proc/meminfo")
CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux says what a container may use."""
ALWAYS_THERE = 1 << 26
"""Bytes that are allocated without asking."""


def free_memory() -> int | None:
    """Bytes that can still be had, swap included; None where the machine does not say."""
    said = [bytes for bytes in (_available(), *map(_limit, CGROUPS)) if bytes is not None]
    return min(said, default=None)


def need_memory(needed: int, what: str, advice: str) -> None:
    """Refuses what cannot fit, with how much it would need and how much there is."""
    free = free_memory() if needed > ALWAYS_THERE else None
    if free is not None and needed > free:
        raise InvalidInput(f"{what} would need {amount(needed)} of memory, but this machine has {amount(free)} free. {advice}")


def _available() -> int | None:
    try:
        rows = dict(line.split(":") for line in MEMINFO.read_text(encoding="ascii").splitlines())
        return sum(int(rows[key].split()[0]) * 1024 for key in ("MemAvailable", "SwapFree"))
    except (OSError, ValueError, KeyError):
        return _physical()


def _physical() -> int | None:
    """All there is, where nobody says how much of it is free."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return None
