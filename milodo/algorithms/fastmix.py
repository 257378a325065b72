"""FastMix: several rounds of mixing, accelerated by momentum (Liu and Morse 2011)."""

from __future__ import annotations

import math

import numpy as np
import torch

from milodo.errors import InvalidInput
from milodo.network import Network
from milodo.types import NodeTensor


def momentum(net: Network) -> float:
    """η_w."""
    root = math.sqrt(1 - net.contraction**2)
    return (1 - root) / (1 + root)


def fastmix(x: NodeTensor, net: Network, K: int) -> NodeTensor:
    """X⁻¹ = X⁰,  X^{k+1} = (1 + η_w) W X^k - η_w X^{k-1},  η_w = (1 - √(1 - λ²)) / (1 + √(1 - λ²)),  λ = net.contraction.

    Keeps the mean over nodes; K rounds. With K = 1 it is not W X: an eigenvalue ω of W becomes (1 + η_w) ω - η_w, which is
    below -1 where ω is near -λ. Weights without large negative eigenvalues (metropolis, lazy) suit it; `fastest` on a sparse
    graph needs a large K.
    """
    eta, last = momentum(net), x
    for _ in range(K):
        x, last = torch.lerp(last, net.mix(x), 1 + eta), x  # lerp(a, b, t) = a + t (b - a)
    return x


LEFT = 0.3
"""What `enough_rounds` leaves of disagreement, at most."""
MOST = 1000


def enough_rounds(net: Network) -> int:
    """The smallest K with which FastMix leaves no more than LEFT of any disagreement on these weights; hardly more than that on
    a large graph, of whose eigenvalues only the extreme ones are known."""
    eta, w = momentum(net), 1 - net.mixing.probes(4 * MOST)
    now, last = np.ones_like(w), np.ones_like(w)
    for K in range(1, MOST):
        now, last = (1 + eta) * w * now - eta * last, now
        if np.abs(now).max(initial=0.0) <= LEFT * math.cos(math.pi * K / 2 / (4 * MOST)):
            return K
    raise InvalidInput(f"FastMix would need more than {MOST} rounds on {net.topology}. Use another method, or better weights.")
