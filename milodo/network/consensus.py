"""Facts about all nodes that every node can learn by talking to its neighbours alone."""

from __future__ import annotations

import math

import numpy as np
import torch

from milodo.network.base import Network
from milodo.network.channels import Cast
from milodo.topology.mixing import DENSE
from milodo.types import NodeTensor

ROUNDING = 1e-17
"""By how much disagreement shrinks in `average`: to rounding."""


DIGITS = 9
"""Behind the point, to which two numbers have to differ to be taken for different."""
GROWTH = 10.0
"""By how much rounding may grow on the way of an exact average."""


def exact_steps(net: Network) -> list[float] | None:
    """Eigenvalues λ of I - W, each once, in an order in which Π (1 - M/λ) stays small on the way; None if there is none, or if
    the graph is too large to know them all."""
    if net.topology.n > DENSE:
        return None
    left = [float(value) for k, value in enumerate(net.eigenvalues) if k == 0 or value - net.eigenvalues[k - 1] > 1e-9]
    order, product, largest = list[float](), np.ones(len(left)), 1.0
    values = np.array(left)
    while left:
        # What is largest is removed next; of those that differ by rounding the largest value, on every machine alike.
        best = max(left, key=lambda value: (round(product[values == value].item(), DIGITS), value))
        left.remove(best)
        order.append(best)
        product = np.abs(product * (1 - values / best))
        largest = max(largest, float(product.max(initial=0.0)))
    return order if largest <= GROWTH else None


def average_rounds(net: Network) -> int:
    """Rounds after which `average` is at rounding."""
    if net.topology.n == 1:
        return 0
    rate = net.contraction / (1 + math.sqrt(1 - net.contraction**2))
    chebyshev = max(1, math.ceil(math.log(ROUNDING / 2) / math.log(rate))) if net.contraction > ROUNDING else 1
    steps = exact_steps(net)
    return chebyshev if steps is None else min(chebyshev, len(steps))


def average(net: Network, x: NodeTensor) -> NodeTensor:
    """(1/n) Σ_j x_j at every node, to rounding.

    Where I - W has few eigenvalues λ, one round x - lap(x)/λ for each of them is exact. Else Chebyshev's iteration on the mixing
    weights, whose contraction every node knows: x^{k+1} = ω_k (W x^k - x^{k-1}) + x^{k-1} with ω_1 = 1, ω_2 = 1 / (1 - λ²/2),
    ω_{k+1} = 1 / (1 - λ² ω_k / 4).
    """
    rounds, steps = average_rounds(net), exact_steps(net)
    if steps is not None and len(steps) == rounds:
        for value in steps:
            x = x - net.lap(x) / value
        return x
    before, omega = x, 1.0
    for k in range(rounds):
        mixed = net.mix(x)
        if k > 0:
            omega = 1 / (1 - net.contraction**2 / 2) if k == 1 else 1 / (1 - net.contraction**2 * omega / 4)
            mixed = omega * (mixed - before) + before
        before, x = x, mixed
    return x


PATIENCE = 20
"""Messages more than there are hops, and three times the root of their number, after which a word that may be lost on each has
arrived for all but certain."""


def maximum_rounds(net: Network) -> int:
    """As many as the graph is wide; where links fail as many more as it takes."""
    return patient(net, net.topology.reach)


def patient(net: Network, hops: int) -> int:
    """Rounds for so many hops; where links fail as many more as it takes."""
    return hops if net.outage is None or not hops else math.ceil((hops + 3 * math.sqrt(hops) + PATIENCE) / (1 - net.outage.p))


def maximum(net: Network, x: NodeTensor) -> NodeTensor:
    """max_j x_j at every node, exactly: after so many rounds everybody has heard of it."""
    for _ in range(maximum_rounds(net)):
        x = x.maximum(net.max(net.pull(x)))
    return x


OCTAVE = 2.0 ** (np.arange(32) / 32)
"""Steps of `roughly_maximum` within a factor of two: 2.2 % each, and whole numbers of 16 bits reach from 1e-308 to 1e308."""


def roughly_maximum(net: Network, x: NodeTensor) -> NodeTensor:
    """max_j x_j of positive numbers at every node, the same at each, at most 2.2 % too large: two bytes a number, which counts
    where links fail and words must be repeated. In units of another power of two it says the same."""
    share, power = np.frexp(x.cpu().numpy())
    step = len(OCTAVE) * (power - 1) + np.searchsorted(OCTAVE, 2 * share)  # the next step upwards; no logarithm, which may round
    largest = maximum(net.through(Cast(torch.int16)), torch.from_numpy(step).to(x)).cpu().numpy().astype(np.int64)
    return torch.from_numpy(np.ldexp(OCTAVE[largest % len(OCTAVE)], largest // len(OCTAVE))).to(x)
