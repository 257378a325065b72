"""Facts about all nodes that every node can learn by talking to its neighbours alone."""

from __future__ import annotations

import math

from milodo.network.base import Network
from milodo.types import NodeTensor

ROUNDING = 1e-17
"""By how much disagreement shrinks in `average`: to rounding."""


def average_rounds(net: Network) -> int:
    """Rounds after which `average` is at rounding."""
    if net.topology.n == 1:
        return 0
    if net.contraction < ROUNDING:
        return 1
    rate = net.contraction / (1 + math.sqrt(1 - net.contraction**2))
    return max(1, math.ceil(math.log(ROUNDING / 2) / math.log(rate)))


def average(net: Network, x: NodeTensor) -> NodeTensor:
    """(1/n) Σ_j x_j at every node, to rounding.

    Chebyshev's iteration on the mixing weights, whose contraction λ every node knows: x^{k+1} = ω_k (W x^k - x^{k-1}) + x^{k-1}
    with ω_1 = 1, ω_2 = 1 / (1 - λ²/2), ω_{k+1} = 1 / (1 - λ² ω_k / 4).
    """
    before, omega = x, 1.0
    for k in range(average_rounds(net)):
        mixed = net.mix(x)
        if k > 0:
            omega = 1 / (1 - net.contraction**2 / 2) if k == 1 else 1 / (1 - net.contraction**2 * omega / 4)
            mixed = omega * (mixed - before) + before
        before, x = x, mixed
    return x


def maximum(net: Network, x: NodeTensor) -> NodeTensor:
    """max_j x_j at every node, exactly: after as many rounds as the graph is wide everybody has heard of it."""
    for _ in range(net.topology.diameter):
        heard = net.pull(x)
        for row, node in enumerate(net.nodes):
            rows = [k for k, (i, _) in enumerate(net.arcs) if i == node]
            x = x.clone()
            x[..., row, :] = heard[..., rows, :].amax(-2).maximum(x[..., row, :])
    return x
