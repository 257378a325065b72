"""Mixing weights on the edges: symmetric W with rows that sum to 1.

A rule gives one weight w_ij = w_ji to each undirected edge; w_ii = 1 - Σ_j w_ij is what remains.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from milodo.errors import InvalidInput, quoted, unknown
from milodo.memory import need_memory
from milodo.topology.graph import Topology
from milodo.topology.mixing import MATRICES, Mixing, dense

Weights = np.ndarray
"""[number of undirected edges], in the order of Topology.edges."""


def metropolis(topology: Topology) -> Weights:
    """w_ij = 1 / (1 + max(deg i, deg j)). On a ring this is the paper's 1/3."""
    return 1 / (1 + np.array(topology.degrees)[topology.ends].max(0))


def max_degree(topology: Topology) -> Weights:
    """w_ij = 1 / (1 + max degree of the graph)."""
    return np.full(len(topology.edges), 1 / (1 + max(topology.degrees, default=0)))


def lazy(topology: Topology) -> Weights:
    """(I + W) / 2 for the Metropolis W: every eigenvalue is non-negative."""
    return metropolis(topology) / 2


def third(topology: Topology) -> Weights:
    """w_ij = 1/3, the paper's choice on the ring; elsewhere rows would not be stochastic."""
    if any(degree != 2 for degree in topology.degrees):
        raise InvalidInput(
            f"weights 'third' are for a ring, and {topology} is not one. Use 'metropolis', which equals 1/3 on a ring."
        )
    return np.full(len(topology.edges), 1 / 3)


def fastest(topology: Topology, *, tolerance: float = 1e-7) -> Weights:
    """The fastest mixing chain (Boyd, Diaconis, Xiao 2004): minimise λ(w) = max_{i >= 2} |λ_i(W)| over w >= 0, W stochastic.

    With a_ij = e_i - e_j, W = I - Σ w_ij a_ij a_ijᵀ, this is the semidefinite programme
        min t   s.t.   S₊ = tI - (W - 11ᵀ/n) ≻ 0,   S₋ = tI + (W - 11ᵀ/n) ≻ 0,   w >= 0,   Σ_j w_ij <= 1,
    solved by Newton's method on τt - Σ log det - Σ log for growing τ. The distance to the optimum is below
    (number of constraints) / τ, which is the stopping rule. Hessian blocks are (AᵀS⁻¹A)∘(AᵀS⁻¹A).
    """
    if topology.n == 1:
        return np.zeros(0)
    n, count = topology.n, len(topology.edges)
    need_memory(8 * MATRICES * count * (n + count), f"'fastest' weights of {topology}", "Use 'metropolis' weights.")
    programme = _Barrier(topology)
    w = metropolis(topology) * 0.99
    t = Mixing(topology, w).contraction + 0.1
    constraints = 2 * n + count + n
    tau = float(constraints)
    while True:
        w, t = programme.minimised(w, t, tau)
        if constraints / tau < tolerance:
            return w
        tau *= 10


class _Barrier:
    """The semidefinite programme of `fastest`, as τt - Σ log det S - Σ log of the other slacks."""

    def __init__(self, topology: Topology) -> None:
        n, self.count = topology.n, len(topology.edges)
        self.A, (i, j) = np.zeros((n, self.count)), topology.ends
        self.A[i, range(self.count)], self.A[j, range(self.count)] = 1, -1
        self.incidence, self.eye, self.mean = np.abs(self.A), np.eye(n), np.full((n, n), 1 / n)

    def slacks(self, w: np.ndarray, t: float) -> tuple[np.ndarray, ...]:
        M = self.eye - (self.A * w) @ self.A.T - self.mean
        return t * self.eye - M, t * self.eye + M, w, 1 - self.incidence @ w

    def value(self, w: np.ndarray, t: float, tau: float) -> float:
        plus, minus, positive, spare = self.slacks(w, t)
        if min(positive.min(), spare.min()) <= 0:
            return np.inf
        try:
            logdet = 2 * sum(np.log(np.diag(np.linalg.cholesky(S))).sum() for S in (plus, minus))
        except np.linalg.LinAlgError:
            return np.inf
        return tau * t - logdet - np.log(positive).sum() - np.log(spare).sum()

    def newton(self, w: np.ndarray, t: float, tau: float) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and step in (w, t)."""
        A, count, (plus, minus, positive, spare) = self.A, self.count, self.slacks(w, t)
        P, Q = np.linalg.inv(plus), np.linalg.inv(minus)
        P_edges, Q_edges = A.T @ P @ A, A.T @ Q @ A
        PP_edges, QQ_edges = A.T @ (P @ P) @ A, A.T @ (Q @ Q) @ A
        # dS₊/dw_e = + a_e a_eᵀ, dS₋/dw_e = - a_e a_eᵀ
        own = np.diag(Q_edges) - np.diag(P_edges) - 1 / positive + self.incidence.T @ (1 / spare)
        gradient = np.append(own, tau - np.trace(P) - np.trace(Q))
        H = np.empty((count + 1, count + 1))
        H[:count, :count] = P_edges**2 + Q_edges**2 + np.diag(positive**-2.0) + (self.incidence.T * spare**-2.0) @ self.incidence
        H[:count, count] = H[count, :count] = np.diag(PP_edges) - np.diag(QQ_edges)
        H[count, count] = np.trace(P @ P) + np.trace(Q @ Q)
        return gradient, -np.linalg.solve(H, gradient)

    def minimised(self, w: np.ndarray, t: float, tau: float) -> tuple[np.ndarray, float]:
        """From (w, t), by steps that are halved until they descend."""
        for _ in range(50):
            gradient, step = self.newton(w, t, tau)
            decrement = -gradient @ step
            if decrement < 1e-9:
                break
            scale, here = 1.0, self.value(w, t, tau)
            while self.value(w + scale * step[:-1], t + scale * step[-1], tau) > here - 0.1 * scale * decrement:
                scale /= 2
                if scale < 1e-12:
                    break
            w, t = w + scale * step[:-1], t + scale * step[-1]
        return w, t


WEIGHTS: dict[str, Callable[[Topology], Weights]] = {f.__name__: f for f in (metropolis, max_degree, lazy, third, fastest)}


def weights(topology: Topology, rule: str | np.ndarray = "metropolis") -> Weights:
    """Weights by a rule's name, or from a matrix W [n, n], which is checked."""
    if isinstance(rule, str):
        if rule not in WEIGHTS:
            raise unknown("weights", rule, WEIGHTS)
        return WEIGHTS[rule](topology)
    try:
        W = np.asarray(rule, dtype=float)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"weights are {quoted(rule)}. Give one of {', '.join(WEIGHTS)}, or a matrix of numbers.") from error
    n = topology.n
    if W.shape != (n, n):
        raise InvalidInput(f"the mixing matrix is {W.shape}, but {topology} has {n} nodes. Give an {n} x {n} matrix.")
    allowed = dense(topology, np.ones(len(topology.edges))) != 0
    np.fill_diagonal(allowed, True)
    if not np.isfinite(W).all() or np.abs(W - W.T).max() > 1e-9 or np.abs(W.sum(1) - 1).max() > 1e-9:
        raise InvalidInput("the mixing matrix must be finite and symmetric with rows that sum to 1.")
    if (np.abs(W) > 1e-12)[~allowed].any():
        raise InvalidInput(f"the mixing matrix has weight on a pair that {topology} does not join.")
    w = W[*topology.ends]
    if n > 1 and np.sort(np.abs(np.linalg.eigvalsh(dense(topology, w))))[-2] >= 1 - 1e-12:
        raise InvalidInput("the mixing matrix does not mix: its second largest |eigenvalue| is 1.")
    return w
