"""FastMix: several rounds of mixing, accelerated by momentum (Liu and Morse 2011)."""

from __future__ import annotations

import math

import torch

from milodo.network import Network
from milodo.types import NodeTensor


def fastmix(x: NodeTensor, net: Network, K: int) -> NodeTensor:
    """X⁻¹ = X⁰,  X^{k+1} = (1 + η_w) W X^k - η_w X^{k-1},  η_w = (1 - √(1 - λ²)) / (1 + √(1 - λ²)),  λ = net.contraction.

    Keeps the mean over nodes; K rounds. With K = 1 it is not W X: an eigenvalue ω of W becomes (1 + η_w) ω - η_w, which is
    below -1 where ω is near -λ. Weights without large negative eigenvalues (metropolis, lazy) suit it; `fastest` on a sparse
    graph needs a large K.
    """
    root = math.sqrt(1 - net.contraction**2)
    eta = (1 - root) / (1 + root)
    last = x
    for _ in range(K):
        x, last = torch.lerp(last, net.mix(x), 1 + eta), x  # lerp(a, b, t) = a + t (b - a)
    return x
