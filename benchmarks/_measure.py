"""Shared by the benchmarks: medians of interleaved runs, so that a noisy machine disturbs both sides of a ratio alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def medians(
    tasks: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    inner: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of one call of each task, by the clock; the tasks take turns."""
    for task in tasks.values():
        task()
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            start = clock()
            for _ in range(inner):
                task()
            seconds[name].append((clock() - start) / inner)
    return {name: statistics.median(values) for name, values in seconds.items()}


def verdict(ok: bool) -> str:
    return "ok" if ok else "MISSED"
