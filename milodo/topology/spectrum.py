"""The two ends of the spectrum of I - W on a large graph, without a dense matrix."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import LinearOperator, eigsh, splu

from milodo.errors import InvalidInput
from milodo.topology.graph import Topology

NEAR = 1e-5
"""By how much, relative to itself, the smallest eigenvalue may be said too small and the largest too large."""
FILL = 1 << 25
"""Entries up to which a factorisation of I - W is worth its memory."""
FIRST, MOST = 64, 16384
"""Lanczos' method is looked at after so many steps, twice as many, and so on; and ends."""


def extremes(topology: Topology, w: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of I - W beside the 0 of consensus.

    Both by Lanczos' method; what it still gained in the last half of its steps is added, for eigenvalues that crowd together are
    approached like 1/k² only: on ring(20000) scipy's eigsh does not end within minutes, though it is faster where they lie apart.
    The smallest eigenvalue of a long and thin graph takes for ever: it comes from a factorisation.
    """
    M, (i, j) = laplacian(topology, w), topology.ends
    sizes = M.diagonal()
    bound = float((sizes[i] + sizes[j]).max()) if (w >= 0).all() else np.inf  # Anderson and Morley 1985
    factor = fill(M, topology) <= FILL
    last = np.inf, 0.0
    for low, high in ritz(M, topology.n):
        lost, gained = (0.0 if factor else last[0] - low), min(high - last[1], bound - high)
        if lost <= NEAR * low and gained <= NEAR * high:
            return smallest(M, topology.n) if factor else low - lost, high + gained
        last = low, high
    raise InvalidInput(
        f"the spectrum of {topology} could not be found: it mixes too slowly for its size. Use a method that needs none, such as "
        "Prox-ED, or a graph that mixes faster."
    )


def laplacian(topology: Topology, w: np.ndarray) -> csr_array:
    """I - W."""
    (i, j), nodes = topology.ends, np.arange(topology.n)
    rows, columns, twice = np.append(i, j), np.append(j, i), np.append(w, w)
    sums = np.bincount(rows, weights=twice, minlength=topology.n)
    return csr_array((np.append(sums, -twice), (np.append(nodes, rows), np.append(nodes, columns))))


def ritz(M: csr_array, n: int) -> Iterator[tuple[float, float]]:
    """The extreme Ritz values of ever more steps of Lanczos' method, orthogonal to consensus: none lies outside the spectrum.

    Rounding makes copies of Ritz values and moves none (Paige 1980), so that no vector but the last two is kept.
    """
    v = np.random.default_rng(0).standard_normal(n)
    u, before, diagonal, beside = v, np.zeros_like(v), list[float](), list[float]()
    while len(diagonal) < MOST:
        u = u - u.mean()
        size = float(np.linalg.norm(u))
        if diagonal and size <= 1e-13 * diagonal[0]:  # all that the start can reach
            yield from [ends(diagonal, beside)] * 2
            return
        if diagonal:
            beside.append(size)
        before, v = v, u / size
        u = M @ v - (size * before if beside else 0)
        diagonal.append(float(u @ v))
        u -= diagonal[-1] * v
        if len(diagonal) >= FIRST and len(diagonal).bit_count() == 1:
            yield ends(diagonal, beside)


def ends(diagonal: list[float], beside: list[float]) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of a symmetric tridiagonal matrix."""
    low, high = (eigvalsh_tridiagonal(diagonal, beside, select="i", select_range=(k, k))[0] for k in (0, len(diagonal) - 1))
    return float(low), float(high)


def fill(M: csr_array, topology: Topology) -> float:
    """A bound of the entries of a factor of I - W, from how wide the graph is, or from how many cycles it has.

    A node with one or two neighbours is eliminated for nothing; of c independent cycles no more than 2c others remain.
    """
    place = np.argsort(reverse_cuthill_mckee(M, symmetric_mode=True))
    i, j = topology.ends
    cycles = len(topology.edges) - topology.n + 1
    return min(topology.n * int(np.abs(place[i] - place[j]).max()), 2 * cycles**2)


def smallest(M: csr_array, n: int) -> float:
    """From I - W with one node grounded, which has an inverse: on the others' disagreement it is that of I - W."""
    grounded = splu(M[1:, 1:].tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})

    def solve(b: np.ndarray) -> np.ndarray:
        x = np.append(0.0, grounded.solve(b.ravel()[1:] - b.mean()))
        return x - x.mean()

    inverse = LinearOperator(M.shape, matvec=solve, dtype=np.float64)  # type: ignore[call-arg]
    start = np.random.default_rng(0).standard_normal(n)
    return 1 / float(eigsh(inverse, k=1, which="LA", v0=start, return_eigenvectors=False)[0])
