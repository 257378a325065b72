"""Weights on the edges of a graph, and what a round of mixing with them does to disagreement: found only when somebody asks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from milodo.errors import InvalidInput
from milodo.memory import need_memory
from milodo.topology.graph import Topology

DENSE = 2000
"""Nodes up to which all eigenvalues are found, from a dense matrix; beyond, the two extreme ones alone."""
MATRICES = 4
"""Of one size, held at a time while eigenvalues are found or a Newton system is solved."""


@dataclass(frozen=True, eq=False)
class Mixing:
    """W with one weight w_ij = w_ji on each undirected edge, in the order of Topology.edges; w_ii = 1 - Σ_j w_ij remains.

    `low` and `high` are the smallest and the largest eigenvalue of I - W beside the 0 of consensus; both are 0 for a single node.
    Beyond DENSE nodes they are bounds, as close as `spectrum.NEAR` says.
    """

    topology: Topology
    w: np.ndarray

    @cached_property
    def eigenvalues(self) -> np.ndarray:
        """All n - 1 of I - W beside the 0 of consensus, in ascending order."""
        n = self.topology.n
        if n > DENSE:
            raise InvalidInput(
                f"all eigenvalues of I - W are asked for on {self.topology}, but beyond {DENSE} nodes only the extreme ones are "
                "found. Use those (low and high), or a smaller graph."
            )
        others = np.linalg.eigvalsh(dense(self.topology, self.w) - np.full((n, n), 1 / n))
        # Consensus has eigenvalue 0 here instead of 1; one such is taken out.
        return np.sort(1 - np.delete(others, int(np.abs(others).argmin())))

    @cached_property
    def _extremes(self) -> tuple[float, float]:
        if 1 < self.topology.n <= DENSE:
            return float(self.eigenvalues[0]), float(self.eigenvalues[-1])
        from milodo.topology.spectrum import extremes  # imports scipy, which small graphs need not wait for

        return extremes(self.topology, self.w) if self.topology.n > 1 else (0.0, 0.0)

    @property
    def low(self) -> float:
        return self._extremes[0]

    @property
    def high(self) -> float:
        return self._extremes[1]

    @property
    def contraction(self) -> float:
        """λ = max_{i >= 2} |λ_i(W)|: by how much one round of mixing shrinks disagreement. The spectral gap is 1 - λ."""
        return max(1 - self.low, self.high - 1) if self.topology.n > 1 else 0.0

    def probes(self, count: int) -> np.ndarray:
        """Where to look at a polynomial to know it on all eigenvalues: at these themselves, or at `count` points of [low, high].

        Nowhere in between is a polynomial of degree K larger than 1 / cos(πK / 2 count) times the largest value it has at those
        points, which are Chebyshev's (Ehlich and Zeller 1964).
        """
        if self.topology.n <= DENSE:
            return self.eigenvalues
        return (self.low + self.high) / 2 + (self.high - self.low) / 2 * np.cos(np.pi * (np.arange(count) + 0.5) / count)


@dataclass(frozen=True, eq=False)
class Uneven(Mixing):
    """Of nodes whose steps are τ_i times as long as others': a_ij = w_ij 2τ_i/(τ_i + τ_j), which is W where all τ are one.

    τ_i⁻¹ a_ij = τ_j⁻¹ a_ji, so with D = Diag(τ) I - A is D^½ P D^-½, P symmetric, P_ij = -w_ij 2√(τ_i τ_j)/(τ_i + τ_j), and has
    its eigenvalues: 0 on consensus, the others positive and at most 2 max_i Σ_j w_ij, since each edge adds
    2 w_ij (√τ_i u_i - √τ_j u_j)²/(τ_i + τ_j) <= 2 w_ij (u_i² + u_j²) to u'Pu. Σ_i τ_i⁻¹ (x - A x)_i = 0.
    """

    tau: np.ndarray

    def over(self, i: np.ndarray, j: np.ndarray, w: np.ndarray) -> np.ndarray:
        """a_ij, from w_ij."""
        return w * 2 * self.tau[i] / (self.tau[i] + self.tau[j])

    @cached_property
    def eigenvalues(self) -> np.ndarray:
        n, (i, j) = self.topology.n, self.topology.ends
        if n > DENSE:
            raise InvalidInput(
                f"steps that differ from node to node need all eigenvalues, and {self.topology} has too many nodes."
            )
        need_memory(8 * MATRICES * n**2, f"the mixing matrix of {self.topology}", "Ask for a smaller graph.")
        P = np.zeros((n, n))
        P[i, j] = P[j, i] = -2 * self.w * np.sqrt(self.tau[i] * self.tau[j]) / (self.tau[i] + self.tau[j])
        np.add.at(P, (i, i), self.over(i, j, self.w))
        np.add.at(P, (j, j), self.over(j, i, self.w))
        return np.linalg.eigvalsh(P)[1:]  # the lowest is that of consensus


@lru_cache(maxsize=64)
def uneven(mixing: Mixing, tau: tuple[float, ...]) -> Uneven:
    """The same weights, for steps that differ."""
    return Uneven(mixing.topology, mixing.w, np.array(tau))


@lru_cache(maxsize=64)
def walk(topology: Topology) -> tuple[float, float]:
    """The least and the largest eigenvalue of I - D⁻¹Adj beside the 0 of consensus, in nine digits: nodes decide by them, and
    their machines may find others. Beyond DENSE nodes bounds: of I - W, whose weights are no larger than 1/d_i, and 2."""
    n, (i, j) = topology.n, topology.ends
    degrees = np.array(topology.degrees, dtype=np.float64)
    if n > DENSE:
        return float(f"{Mixing(topology, 1 / (1 + np.maximum(degrees[i], degrees[j]))).low:.9g}"), 2.0
    need_memory(8 * MATRICES * n**2, f"the matrix of {topology}", "Ask for a smaller graph.")
    P = np.eye(n)
    P[i, j] = P[j, i] = -1 / np.sqrt(degrees[i] * degrees[j])
    found = np.linalg.eigvalsh(P)
    return float(f"{found[1]:.9g}"), float(f"{found[-1]:.9g}")


def dense(topology: Topology, w: np.ndarray) -> np.ndarray:
    """W as a matrix [n, n]."""
    need_memory(8 * MATRICES * topology.n**2, f"the mixing matrix of {topology}", "Ask for a smaller graph.")
    W, (i, j) = np.zeros((topology.n, topology.n)), topology.ends
    W[i, j] = W[j, i] = w
    np.fill_diagonal(W, 1 - W.sum(1))
    return W
