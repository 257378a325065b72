"""How fast links and nodes are: measured in a few rounds before the start."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from milodo.network.base import Network
from milodo.network.consensus import maximum

SMALL, LARGE = 1, 1 << 12
"""Numbers of a message that measures latency, and of one that measures bandwidth: large enough to tell, small enough not to take
longer than what they are measured for."""
TIMES = 4
"""Rounds of each, measured together: one alone may find its message there already, and the next wait twice as long."""

REPEATS = 2
"""Of local work."""


def probe(net: Network) -> tuple[float, float]:
    """(latency in seconds, bandwidth in bytes a second) of the slowest link, the same at every node."""
    took = []
    for numbers in (SMALL, LARGE):
        message = torch.zeros(net.n, numbers, dtype=net.dtype)
        net.pull(message)  # connections are made, and widened, by the first message
        start = time.perf_counter()
        for _ in range(TIMES):
            net.pull(message)
        took.append((time.perf_counter() - start) / TIMES)
    worst = maximum(net, torch.tensor(took, dtype=net.dtype).expand(net.n, 2))
    latency, large = (float(each) for each in worst[0])
    return latency, (LARGE - SMALL) * net.dtype.itemsize / max(large - latency, 1e-9)


def slowest(net: Network, work: Callable[[], object]) -> float:
    """Seconds that a piece of local work takes at the slowest node, the same at every node."""
    work()
    start = time.perf_counter()
    for _ in range(REPEATS):
        work()
    own = torch.full((net.n, 1), (time.perf_counter() - start) / REPEATS, dtype=net.dtype)
    return float(maximum(net, own)[0])
