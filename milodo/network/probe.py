"""How fast links are: measured between neighbours, in a few rounds before the start."""

from __future__ import annotations

import time

import torch

from milodo.network.base import Network
from milodo.network.consensus import maximum

SMALL, LARGE = 1, 1 << 15
"""Numbers of a message that measures latency, and of one that measures bandwidth."""
TIMES = 5
"""Of each; the median counts."""


def probe(net: Network) -> tuple[float, float]:
    """(latency in seconds, bandwidth in bytes a second) of the slowest link, the same at every node."""
    took = []
    for numbers in (SMALL, LARGE):
        message = torch.zeros(net.n, numbers, dtype=net.dtype)
        net.pull(message)  # connections are made by the first message
        seconds = []
        for _ in range(TIMES):
            start = time.perf_counter()
            net.pull(message)
            seconds.append(time.perf_counter() - start)
        took.append(sorted(seconds)[TIMES // 2])
    worst = maximum(net, torch.tensor(took, dtype=net.dtype).expand(net.n, 2))
    latency, large = (float(each) for each in worst[0])
    return latency, (LARGE - SMALL) * net.dtype.itemsize / max(large - latency, 1e-9)
