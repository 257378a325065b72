"""Polynomials of a mixing matrix: what K rounds of gossip leave of disagreement, and what they make of errors in messages.

Each is a symmetric matrix A over the nodes that leaves consensus alone and shrinks disagreement: its other eigenvalues lie in
[least, θ]. M = I - W has eigenvalue 0 on consensus and others in [l2, lmax]; all of them are known to everybody before the start.

    FastMix      W with momentum (Liu and Morse 2011)
    Chebyshev    a polynomial of M, the smallest in [0, θ] on the whole of [l2, lmax]
    Minimax      a polynomial of M, the smallest in [0, θ] on the eigenvalues there are; exact where K reaches the number of
                 different ones
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from milodo.errors import InvalidInput, unknown
from milodo.topology.mixing import DENSE, Mixing

ALIKE = 1e-9
"""Eigenvalues closer than this, relative to the largest, are one."""
DIGITS = 12
"""Behind the point, to which numbers are rounded that nodes decide by and find out each on its own machine."""
PROBES = 4000
"""Points at which a polynomial is looked at where not all eigenvalues are known."""


class Filter(ABC):
    """A polynomial of degree K, on one network's weights."""

    mixing: Mixing
    K: int

    @cached_property
    def contraction(self) -> float:
        """θ: what one application leaves of disagreement, at most, in magnitude. Rounded to DIGITS: nodes decide by it, and their
        machines may find the spectrum to other last digits."""
        return round(self._contraction, DIGITS)

    @cached_property
    def noise_gain(self) -> float:
        """How large errors of size one in every message can arrive in the result; rounded likewise."""
        return round(self._noise_gain, DIGITS)

    @property
    @abstractmethod
    def _contraction(self) -> float: ...

    @property
    @abstractmethod
    def _noise_gain(self) -> float: ...

    @cached_property
    def _spectrum(self) -> np.ndarray:
        """Eigenvalues of M beside 0, or where to look in their stead."""
        return self.mixing.probes(PROBES) if self.mixing.topology.n > 1 else np.zeros(0)


@dataclass(frozen=True)
class FastMix(Filter):
    """X⁻¹ = X⁰,  X^{k+1} = (1 + η_w) W X^k - η_w X^{k-1},  η_w = (1 - √(1 - λ²)) / (1 + √(1 - λ²)),  λ the contraction of W.

    Keeps the mean over nodes; K rounds. With K = 1 it is not W X: an eigenvalue ω of W becomes (1 + η_w) ω - η_w, which is
    below -1 where ω is near -λ. Weights without large negative eigenvalues (metropolis, lazy) suit it; `fastest` on a sparse
    graph needs a large K.
    """

    mixing: Mixing
    K: int

    @cached_property
    def momentum(self) -> float:
        """η_w."""
        root = math.sqrt(1 - self.mixing.contraction**2)
        return (1 - root) / (1 + root)

    @property
    def _contraction(self) -> float:
        between = 1.0 if self.mixing.topology.n <= DENSE else math.cos(math.pi * self.K / 2 / PROBES)  # `Mixing.probes`
        return float(np.abs(self._response).max(initial=0.0)) / between

    @property
    def _noise_gain(self) -> float:
        # An error in round k is mixed by the rounds after it.
        gains = [np.abs((1 + self.momentum) * self._spectrum * U).max(initial=0.0) for U in self._impulses]
        return float(sum(gains))

    @cached_property
    def _response(self) -> np.ndarray:
        """What K rounds leave of disagreement along each eigenvector."""
        w, eta = 1 - self._spectrum, self.momentum
        now, last = np.ones_like(w), np.ones_like(w)
        for _ in range(self.K):
            now, last = (1 + eta) * w * now - eta * last, now
        return now

    @cached_property
    def _impulses(self) -> list[np.ndarray]:
        """Of a disturbance after round k in the last round, k = K .. 1."""
        w, eta = 1 - self._spectrum, self.momentum
        now, last, seen = np.ones_like(w), np.zeros_like(w), list[np.ndarray]()
        for _ in range(self.K):
            seen.append(now)
            now, last = (1 + eta) * w * now - eta * last, now
        return seen


class Series(Filter):
    """A = Σ_k c_k T_k(U) with Chebyshev's T_k and U = I - 2M/lmax. c is scaled so that A is 1 on consensus.

    x - T_k(U) x = d_k by d_0 = 0, d_1 = 2Mx/lmax, d_{k+1} = 2 d_1 + 2 U d_k - d_{k-1}: the differences are carried alone, so that
    consensus is left alone in any precision, and each of them sums to zero over the nodes.
    """

    K: int

    @property
    @abstractmethod
    def coefficients(self) -> tuple[float, ...]:
        """c_0 .. c_K."""

    @property
    def _contraction(self) -> float:
        values = self.values(self._spectrum)
        largest = float(np.abs(values).max(initial=0.0))
        return 0.0 if largest < ALIKE else largest

    def values(self, eigenvalues: np.ndarray) -> np.ndarray:
        """Of A where M has these."""
        if self.mixing.high == 0:
            return np.zeros_like(eigenvalues)
        return np.polynomial.chebyshev.chebval(1 - 2 * eigenvalues / self.mixing.high, self.coefficients)

    @property
    def _noise_gain(self) -> float:
        # An error in what is sent in round k is M times it, and goes through what comes after like a polynomial of degree K - k.
        high = self.mixing.high
        if high == 0:
            return 0.0
        U, total = 1 - 2 * self._spectrum / high, 0.0
        for k in range(self.K):
            # d_{k+1} is disturbed by e = (2 or 4) M/lmax; d_{k+2} by 2 U e, ...: Chebyshev's second kind.
            now, last, arrived = np.ones_like(U), np.zeros_like(U), np.zeros_like(U)
            for j in range(k + 1, self.K + 1):
                arrived = arrived + self.coefficients[j] * now
                now, last = 2 * U * now - last, now
            total += float(np.abs((2 if k == 0 else 4) * self._spectrum / high * arrived).max(initial=0.0))
        return total


@dataclass(frozen=True)
class Chebyshev(Series):
    """A = m (I + T_K(X)), X = ((lmax + l2) I - 2M)/(lmax - l2), q = 1/T_K((lmax + l2)/(lmax - l2)), m = q/(1 + q).

    θ = 2q/(1 + q). Where all eigenvalues are one, A = I - M/lmax is exact.
    """

    mixing: Mixing
    K: int

    @cached_property
    def coefficients(self) -> tuple[float, ...]:
        low, high = self.mixing.low, self.mixing.high
        if self.K == 1 or high - low <= ALIKE * high:  # I - M/lmax, which is exact where all eigenvalues are one
            return (0.5, 0.5, *[0.0] * (self.K - 1))
        q = self._q

        def A(u: np.ndarray) -> np.ndarray:
            X = (low + high * u) / (high - low)  # M = lmax (1 - u)/2
            T = np.polynomial.chebyshev.chebval(X, [0.0] * self.K + [1.0])
            return q / (1 + q) * (1 + T)

        return tuple(np.polynomial.chebyshev.chebinterpolate(A, self.K).tolist())  # type: ignore[arg-type]  # takes arrays

    @property
    def _contraction(self) -> float:
        low, high = self.mixing.low, self.mixing.high
        return 0.0 if high - low <= ALIKE * high else 2 * self._q / (1 + self._q)

    @property
    def _q(self) -> float:
        low, high = max(0.0, self.mixing.low), self.mixing.high  # where parts of a graph are apart low is 0, or rounds below it
        return 1 / math.cosh(self.K * math.acosh((high + low) / (high - low)))


@dataclass(frozen=True)
class Minimax(Series):
    """The A of degree K with A(0) = 1 and A >= 0 that is smallest on the eigenvalues there are: a linear programme."""

    mixing: Mixing
    K: int

    @cached_property
    def coefficients(self) -> tuple[float, ...]:
        return _minimax(self.mixing, self.K)

    @property
    def _contraction(self) -> float:
        known = self.mixing.topology.n <= DENSE
        return super()._contraction if known else Chebyshev(self.mixing, self.K).contraction


@lru_cache(maxsize=256)
def _minimax(mixing: Mixing, K: int) -> tuple[float, ...]:
    chebyshev = Chebyshev(mixing, K)
    if mixing.topology.n > DENSE or mixing.high == 0 or K == 1:  # of degree one I - M/lmax is the best there is
        return chebyshev.coefficients
    values = different(mixing)
    if len(values) <= K:  # zero on all of them
        return _product(values, mixing.high, K)
    from scipy.optimize import linprog  # takes long to import

    # T_k(u) - 1 at the eigenvalues: with A = 1 + Σ_{k >= 1} c_k (T_k - 1) nothing else keeps consensus.
    basis = np.polynomial.chebyshev.chebvander(1 - 2 * values / mixing.high, K)[:, 1:] - 1
    theta = np.ones((len(values), 1))
    found = linprog(
        [*[0.0] * K, 1.0],
        A_ub=np.block([[basis, -theta], [-basis, 0 * theta]]),
        b_ub=np.concatenate((-np.ones(len(values)), np.ones(len(values)))),
        bounds=[(None, None)] * K + [(0, None)],
    )
    if found.status != 0 or found.x[-1] >= chebyshev.contraction:
        return chebyshev.coefficients
    c = found.x[:-1]
    return (float(1 - c.sum()), *map(float, c))


def different(mixing: Mixing) -> np.ndarray:
    """The eigenvalues of M beside 0, each once."""
    every = mixing.eigenvalues
    return every[np.concatenate(([True], np.diff(every) > ALIKE * mixing.high))]


def _product(values: np.ndarray, high: float, K: int) -> tuple[float, ...]:
    """Π (1 - M/λ) over these eigenvalues, in Chebyshev's basis."""

    def A(u: np.ndarray) -> np.ndarray:
        return np.prod(1 - high * (1 - u[:, None]) / 2 / values, axis=1)

    c = np.polynomial.chebyshev.chebinterpolate(A, len(values))  # type: ignore[arg-type]  # takes arrays
    return (*c.tolist(), *[0.0] * (K - len(values)))


FILTERS: dict[str, type[Filter]] = {"fastmix": FastMix, "chebyshev": Chebyshev, "minimax": Minimax}
"""By the name that experiments give them."""


@lru_cache(maxsize=256)
def polynomial(kind: str, mixing: Mixing, K: int) -> Filter:
    """One of FILTERS on these weights, of degree K."""
    if kind not in FILTERS:
        raise unknown("polynomial", kind, FILTERS)
    if K < 1:
        raise InvalidInput(f"K is {K}, but a polynomial of the mixing matrix has at least degree one.")
    return FILTERS[kind](mixing, K)  # type: ignore[call-arg]  # all of them are dataclasses of these two


MOST = 1000
"""Rounds that `enough` tries."""


def enough(kind: str, mixing: Mixing, contraction: float) -> int:
    """The fewest rounds of a polynomial whose θ is at most this."""
    for K in range(1, MOST):
        if polynomial(kind, mixing, K).contraction <= contraction:
            return K
    raise InvalidInput(
        f"{kind} would need more than {MOST} rounds on {mixing.topology}. Use sums over a tree, or better weights."
    )
