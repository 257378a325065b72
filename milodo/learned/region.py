"""The weights with which the rule with momentum is stable: what its networks put out is mapped into them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network import Network
from milodo.topology import Topology

DEEPEST = 1.26
"""Largest eigenvalue of I - A unless given: the lowest of A is -0.26."""
SMALLEST_DEEPEST = 0.1
"""Of what may be given."""
MARGIN = 0.9
"""Of the largest σ that the lowest eigenvalue of A bears, and that one near 1 bears without curvature."""
USED = 1 / 3
"""Of the smallest eigenvalue of M: what weights that differ leave of it."""
STEEPEST = 2.0
"""σ is at most so many times 1 - β, and at most half of it, unless given."""
MOST_STEEP = 3.6
"""STEEPEST at most: σ < 2 where mixing leaves nothing, with a margin."""
LEAST_STEP = 1 / 4
"""p_i at least, of what it is at most."""
SPREAD = 4.0
"""How many times smaller than at most D_i may be, and p_ij,2 where both ends have one D."""
INSIDE = 1e-6
"""How near to the edges of the region constants may lie: there a sigmoid is flat."""


def mixing_bound(graph: Topology, deepest: float = DEEPEST) -> Tensor:
    """How much of z_i - z_j node i may take, at most [m, 1]: b_ij = 1/max(degree_i, degree_j) times what brings the largest
    eigenvalue of their Laplacian to `deepest`.

    >>> from milodo.topology import topology
    >>> mixing_bound(topology("ring(4)")).max().round(decimals=6).item()
    0.315
    """
    b, _ = _bounds(graph, deepest)
    return torch.tensor([[b[i, j]] for i, j in graph.arcs], dtype=torch.float64)


def mixing_bound_of(net: Network, deepest: float = DEEPEST) -> Tensor:
    """The same for the arcs of the nodes held here, in the network's precision."""
    row = {arc: k for k, arc in enumerate(net.topology.arcs)}
    return mixing_bound(net.topology, deepest)[[row[arc] for arc in net.arcs]].to(net.device, net.dtype)


def mixing_gap(graph: Topology, deepest: float = DEEPEST) -> float:
    """The smallest eigenvalue of that Laplacian but 0."""
    return _bounds(graph, deepest)[1]


@lru_cache(maxsize=64)
def _bounds(graph: Topology, deepest: float) -> tuple[np.ndarray, float]:
    """b_ij, and the smallest eigenvalue of their Laplacian but 0."""
    b = np.zeros((graph.n, graph.n))
    for i, j in graph.edges:
        b[i, j] = b[j, i] = 1 / max(graph.degrees[i], graph.degrees[j])
    values = np.linalg.eigvalsh(np.diag(b.sum(1)) - b)
    return b * deepest / values[-1], float(values[1] * deepest / values[-1])


@dataclass(frozen=True)
class Region:
    """β, p_i, p_ij,1 and p_ij,2 so that the recurrence is stable for quadratic f and r = 0.

    Node i has a number D_i > 0, and p_ij,2 = D_i p_ij,1. In x = D^½ x̃, y = D^-½ ỹ, with M = D^½ Lap(p_1) D^½, the rule is

        z̃ = ẽ - Σ(D^½ H D^½ ẽ + ỹ),   ỹ⁺ = ỹ + M z̃,   x̃⁺ = (I - M) z̃,   Σ_i = p_i/D_i

    M is symmetric, whatever the weights of nodes and coordinates, and p_ij,1 = min(b_ij/D_i, b_ji/D_j) keeps its eigenvalues
    within [0, m] (exactly where the graph has two colours). Where Σ and β are the same everywhere and A = I - M is not negative,
    an eigenvector of the recurrence has numbers a in [0, 1] and t in [0, p L a] and evolves by

        (ξ - 1)(ξ² - c₁ξ + c₀) + σ(1 - a)ξ²,   c₁ = (1 + β)a - (1 + hβ)t,   c₀ = β(a - ht)

    with h in [0, 1], the lookahead. By Schur and Cohn its roots lie in the unit disc if and only if |c₀| < 1,

        σ(1 - a) < 2(1 + c₁ + c₀)   and   σ(1 - a) c₀ < (1 - c₀)(1 - a + t),

    because 1 + c₀ - c₁ = 1 - a + t. With p L < 2(1 + β)/(1 + 2hβ), which for all β together is the lesser of 2 and 4/(1 + 2h),
    the first bears σ < 2 where a >= 0, and at a = 1 - m < 0, t = 0

        m σ < 2(1 - (m - 1)(1 + 2β)).

    The second is hardest at t = 0: σ < 1/(βa) - 1, with a = 1 - g, g the smallest eigenvalue of M but 0. So D_i >= p_i, and
    1 - β_i is at least what σ_i needs for both, at every node and coordinate by itself, with margins; and p_i <= reach/L_i with
    reach < 2 for h <= 1/2, and 4/3 for Nesterov's h = 1. Where weights differ, in space or in time, this is tested, not proved
    (tests/laws/test_region_laws.py). The larger `steepest`, the larger may σ be: up to 1.8 where m <= 1.
    Where mixing levels curvatures out, as between nodes whose data are unlike, a larger reach is stable, too, if weights on edges
    stay near their largest values: a small spread. How large is to be tested on the problems at hand.

    All of s are in [0, 1]. Steps are on logarithmic scales.
    """

    most: float
    """1 - most is the smallest σ_i where p_i is largest."""
    reach: float
    """p_i at most, in its unit, as are all p and D here."""
    spread: float = SPREAD
    gap: float = 0.0
    """The smallest eigenvalue of M but 0 that the graph leaves, whatever the weights."""
    deepest: float = DEEPEST
    """m."""
    steepest: float = STEEPEST
    """σ_i is at most so many times 1 - β_i, and at most half of it."""

    def __post_init__(self) -> None:
        if not 0 < self.most < 1:
            raise InvalidInput(f"momentum is {self.most:g}, but β lies between 0 and 1. Give its largest value, as 0.98.")
        if not 1 < self.spread < math.inf:
            raise InvalidInput(f"spread is {self.spread:g}, but it says how many times smaller weights may be: a number > 1.")
        if not 0 < self.reach < math.inf:
            raise InvalidInput(f"reach is {self.reach:g}, but the largest p_i must be a finite number > 0.")
        if not SMALLEST_DEEPEST <= self.deepest <= 1.3:
            raise InvalidInput(f"deepest is {self.deepest:g}, but the largest eigenvalue of I - A must lie between 0.1 and 1.3.")
        if not STEEPEST <= self.steepest <= MOST_STEEP:
            raise InvalidInput(f"steepest is {self.steepest:g}, but it must lie between {STEEPEST:g} and {MOST_STEEP:g}.")
        if self.steepest > STEEPEST and self.deepest > 1:
            raise InvalidInput(
                f"steepest is {self.steepest:g} with deepest = {self.deepest:g}: dual steps so large are stable only where "
                "mixing overshoots nowhere. Give deepest = 1 or less."
            )

    @property
    def largest(self) -> float:
        """σ_i at most."""
        return self.steepest / 2

    @property
    def _ratios(self) -> tuple[float, float]:
        """D_i at least, and at most: as much as the largest p_i and the largest β need together."""
        most = self.reach / (1 - self.most)
        return most / self.spread, most

    def step_size(self, s: Tensor, D: Tensor, share: float = 1.0) -> Tensor:
        """p_i, at most D_i times the largest σ; a share of the reach may be all that is allowed."""
        return torch.minimum(share * _between(s, LEAST_STEP * self.reach, self.reach), self.largest * D)

    def ratio(self, s: Tensor) -> Tensor:
        """D_i."""
        return _between(s, *self._ratios)

    def mixing(self, s: Tensor) -> Tensor:
        """D_i p̃_ij,1, as a share of its bound."""
        return _between(s, 1 / self.spread, 1.0)

    def momentum(self, s: Tensor, sigma: Tensor) -> Tensor:
        """β_i: 0 at s = 0, and the largest at s = 1."""
        return 1 - self.least_alpha(sigma.clamp(max=self.largest)) ** s

    def least_alpha(self, sigma: Tensor) -> Tensor:
        """1 - β at least, for σ as large as it may be."""
        near_one = 1 - 1 / (1 - USED * self.gap) / (1 + sigma / MARGIN)
        least = torch.maximum(near_one, sigma / self.steepest)
        if self.deepest > 1:
            below = 1 - (2 - self.deepest - self.deepest / (2 * MARGIN) * sigma) / (2 * (self.deepest - 1))
            least = torch.maximum(least, below)
        return least.clamp(max=1.0)

    def constants(self, gamma: float, alpha: float, sigma: float, mixing: Tensor) -> tuple[float, float, float, Tensor]:
        """s of p, of β, of D and of p_2 for LEPDO's constants, σ = c_s/c_u; `mixing` is c_u w_ij/2 as a share of its bound."""
        D = gamma / sigma
        low, high = self._ratios
        lowest = float(self.least_alpha(torch.tensor(min(sigma, self.largest), dtype=torch.float64)))
        for what, value, least, most in (
            ("gamma", gamma, LEAST_STEP * self.reach, min(self.reach, self.largest * D)),
            ("gamma c_u / c_s", D, low, high),
            ("c_u w_ij / 2, as a share of its largest value,", float(mixing.max()), 1 / self.spread, 1.0),
            ("c_u w_ij / 2, as a share of its largest value,", float(mixing.min()), 1 / self.spread, 1.0),
            ("alpha", alpha, lowest, 1.0),
        ):
            if not least * (1 - 1e-9) <= value <= most * (1 + 1e-9):
                raise InvalidInput(
                    f"special initialisation: {what} is {value:.4g}, and the region of stable weights has {least:.4g} to "
                    f"{most:.4g} (milodo/learned/region.py). Change the constants, momentum, reach or spread."
                )
        s_beta = 0.0 if alpha >= 1 else math.log(alpha) / math.log(lowest)
        return (
            _place(gamma, LEAST_STEP * self.reach, self.reach),
            s_beta,
            _place(D, low, high),
            1 + mixing.log() / math.log(self.spread),
        )


def _between(s: Tensor, low: float, high: float) -> Tensor:
    """low at s = 0, high at s = 1, evenly on a logarithmic scale."""
    return (math.log(low) + math.log(high / low) * s).exp()


def _place(value: float, low: float, high: float) -> float:
    """Where _between has it."""
    return math.log(value / low) / math.log(high / low)


def before_sigmoid(s: Tensor) -> Tensor:
    """What a network must put out for s, as near to 0 and 1 as it can be."""
    return torch.logit(s.clamp(INSIDE, 1 - INSIDE))
