"""Polynomials of the Laplacian: K rounds that bring the nodes together faster than K rounds of mixing.

M = I - W has eigenvalue 0 on consensus and others in [l2, lmax]. With X = ((lmax + l2) I - 2M)/(lmax - l2), which maps them into
[-1, 1] and 0 to x0 = (lmax + l2)/(lmax - l2), and Chebyshev's T_K,

    A = m (I + T_K(X)),   q = 1/T_K(x0),   m = q/(1 + q):   1 on consensus, between 0 and θ = 2q/(1 + q) elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from milodo.network.base import Network
from milodo.types import NodeTensor

ALIKE = 1e-9
"""Eigenvalues closer than this, relative to their size, are one: A = I - M/lmax is exact then."""


@dataclass(frozen=True)
class Polynomial:
    """A of degree K on one network's weights."""

    K: int
    low: float
    high: float

    @classmethod
    def of(cls, net: Network, K: int) -> Self:
        return cls(K, net.mixing.low, net.mixing.high)

    @classmethod
    def enough(cls, net: Network, contraction: float) -> Self:
        """The lowest degree whose θ is at most this."""
        K = 1
        while cls.of(net, K).contraction > contraction:
            K += 1
        return cls.of(net, K)

    @property
    def exact(self) -> bool:
        return self.high - self.low <= ALIKE * self.high

    @property
    def q(self) -> float:
        return 1 / math.cosh(self.K * math.acosh((self.high + self.low) / (self.high - self.low)))

    @property
    def contraction(self) -> float:
        """θ: what one application leaves of disagreement, at most."""
        return 0.0 if self.exact else 2 * self.q / (1 + self.q)

    def defect(self, x: NodeTensor, net: Network) -> NodeTensor:
        """x - A x. K rounds. Sums to zero over the nodes, because every term of A but the identity does."""
        if self.exact:
            defect = net.lap(x) / self.high if self.high else net.lap(x)
            for _ in range(self.K - 1):  # one round was enough; a method that asked for K has K
                net.lap(x)
            return defect
        # T_k(X) x = T_k(x0) x - d_k, with d_0 = 0 and the differences carried alone: consensus is left alone in any precision.
        span = self.high - self.low
        x0, m = (self.high + self.low) / span, self.q / (1 + self.q)
        before, d, T_before, T = x * 0, 2 * net.lap(x) / span, 1.0, x0
        for _ in range(self.K - 1):
            lap = net.lap(T * x - d)
            before, d = d, 2 * (x0 * d + 2 * lap / span) - before
            T_before, T = T, 2 * x0 * T - T_before
        return m * d
