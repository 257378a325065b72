"""What this machine can hold, asked before something large is allocated: an allocation too large is a kill, not an error."""

from __future__ import annotations

from pathlib import Path

import psutil

from milodo.errors import InvalidInput
from milodo.words import amount

CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux says what a container may use; psutil speaks of the machine alone."""
ALWAYS_THERE = 1 << 26
"""Bytes that are allocated without asking."""


def free_memory() -> int:
    """Bytes that can still be had, swap included."""
    machine = psutil.virtual_memory().available + psutil.swap_memory().free
    return min([machine, *(limit for limit in map(_limit, CGROUPS) if limit is not None)])


def need_memory(needed: int, what: str, advice: str) -> None:
    """Refuses what cannot fit, with how much it would need and how much there is."""
    if needed > ALWAYS_THERE and needed > (free := free_memory()):
        raise InvalidInput(f"{what} would need {amount(needed)} of memory, but this machine has {amount(free)} free. {advice}")


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return None
