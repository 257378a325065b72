"""The weights with which the rule with momentum is stable: what its networks put out is mapped into them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.topology import Topology

DEEPEST = 1.26
"""Largest eigenvalue of I - A: the lowest of A is -0.26."""
LEAST_STEP = 1 / 4
"""p_i at least, of what it is at most."""
SPREAD = 4.0
"""How many times smaller than at most D_i may be, and p_ij,2 where both ends have one D."""
ROUNDING = 1e-9
"""Of computed roots."""
INSIDE = 1e-6
"""How near to the edges of the region constants may lie: there a sigmoid is flat."""


def mixing_bound(graph: Topology) -> Tensor:
    """How much of z_i - z_j node i may take, at most [m, 1]: b_ij = 1/max(degree_i, degree_j) times what brings the largest
    eigenvalue of their Laplacian to 1.26.

    >>> from milodo.topology import topology
    >>> mixing_bound(topology("ring(4)")).max().round(decimals=6).item()
    0.315
    """
    b, _ = _bounds(graph)
    return torch.tensor([[b[i, j]] for i, j in graph.arcs], dtype=torch.float64)


def _bounds(graph: Topology) -> tuple[np.ndarray, float]:
    """b_ij, and the smallest eigenvalue of their Laplacian but 0."""
    b = np.zeros((graph.n, graph.n))
    for i, j in graph.edges:
        b[i, j] = b[j, i] = 1 / max(graph.degrees[i], graph.degrees[j])
    values = np.linalg.eigvalsh(np.diag(b.sum(1)) - b)
    return b * DEEPEST / values[-1], float(values[1] * DEEPEST / values[-1])


def dual_bound(graph: Topology, spread: float) -> float:
    """θ, the largest multiple of 0.1 from 1 to 2 so that even 3θ - 2 is stable for every eigenvalue that I - A may have on this
    graph, from the least to 1.26: well-connected graphs take larger dual steps.

    >>> from milodo.topology import topology
    >>> [dual_bound(topology(g), 1.1) for g in ("ring(6)", "ring(50)")]
    [1.7, 1.0]
    """
    least = _bounds(graph)[1] / spread
    stable = [theta for theta in np.arange(1.1, 2.05, 0.1) if radius(3 * theta - 2, least) <= 1 + ROUNDING]
    return round(float(max(stable, default=1.0)), 1)


def radius(theta: float, least: float, reach: float = 1.8, lookahead: float = 0.5) -> float:
    """The largest modulus of the roots of (ξ - 1)(ξ² - c₁ξ + c₀) + σ(1 - a)ξ² (Region) with σ as large as θ allows, over β from 0 to
    0.997, 1 - a from `least` to 1.26 and t from 0 to reach a."""
    alpha, gap = np.geomspace(0.003, 1, 24), np.geomspace(least, DEEPEST, 24)
    alpha, gap, share = (v.ravel() for v in np.meshgrid(alpha, gap, np.linspace(0, 1, 6), indexing="ij"))
    beta, a, t = 1 - alpha, 1 - gap, reach * (1 - gap) * share
    c1, c0 = (1 + beta) * a - (1 + lookahead * beta) * t, beta * a - lookahead * beta * t
    companion = np.zeros((len(beta), 3, 3))
    companion[:, 1, 0] = companion[:, 2, 1] = 1
    sigma = theta * alpha / (1 + (theta - 1) * alpha)
    companion[:, 0] = np.stack([1 + c1 - sigma * gap, -c1 - c0, c0], axis=-1)
    return float(np.abs(np.linalg.eigvals(companion)).max())


@dataclass(frozen=True)
class Region:
    """β, p_i, p_ij,1 and p_ij,2 so that the recurrence is stable for quadratic f and r = 0.

    Node i has a number D_i > 0, and p_ij,2 = D_i p_ij,1. In x = D^½ x̃, y = D^-½ ỹ, with M = D^½ Lap(p_1) D^½, the rule is

        z̃ = ẽ - Σ(D^½ H D^½ ẽ + ỹ),   ỹ⁺ = ỹ + M z̃,   x̃⁺ = (I - M) z̃,   Σ_i = p_i/D_i

    M is symmetric, whatever the weights of nodes and coordinates, and p_ij,1 = min(b_ij/D_i, b_ji/D_j) keeps its eigenvalues
    within [0, 1.26] (exactly where the graph has two colours). Where Σ and β are the same everywhere and A = I - M is not negative,
    an eigenvector of the recurrence has numbers a in [0, 1] and t in [0, p L a] and evolves by

        (ξ - 1)(ξ² - c₁ξ + c₀) + σ(1 - a)ξ²,   c₁ = (1 + β)a - (1 + hβ)t,   c₀ = βa - hβt

    with h in [1/2, 1], the lookahead. Its roots lie in the unit disc for σ <= 1 - β as long as p L < 4/(1 + 2h), also for
    a >= -0.26; for σ <= θ(1 - β) with β near 1 where 1 - a is not too small, θ from 1 to 2 by the graph (`dual_bound`). So
    D_i >= p_i, 1 - β_i is at least what σ_i needs, at every node and coordinate by itself, and p_i <= reach/L_i with reach <
    4/(1 + 2h), which is 2 for h = 1/2 and 4/3 for Nesterov's h = 1. Where weights differ, in space or in time, this is tested,
    not proved.
    Where mixing levels curvatures out, as between nodes whose data are unlike, a larger reach is stable, too, if weights on edges
    stay near their largest values: a small spread. How large is to be tested on the problems at hand.

    All of s are in [0, 1]. Steps are on logarithmic scales.
    """

    most: float
    """1 - most is the smallest p_i/D_i where p_i is largest; β_i may reach 1 - (1 - most)/θ there, and more where p_i is smaller."""
    reach: float
    """p_i at most, in its unit, as are all p and D here."""
    spread: float = SPREAD
    theta: float = 1.0
    """σ_i = p_i/D_i is at most θ(1 - β_i) where β_i is near 1, and at most 1 - β_i where it is near 0."""

    def __post_init__(self) -> None:
        if not 0 < self.most < 1:
            raise InvalidInput(f"momentum is {self.most:g}, but β lies between 0 and 1. Give its largest value, as 0.98.")
        if not 1 < self.spread < math.inf:
            raise InvalidInput(f"spread is {self.spread:g}, but it says how many times smaller weights may be: a number > 1.")
        if not 0 < self.reach < math.inf:
            raise InvalidInput(f"reach is {self.reach:g}, but the largest p_i must be a finite number > 0.")

    @property
    def _ratios(self) -> tuple[float, float]:
        """D_i at least, and at most: as much as the largest p_i and the largest β need together."""
        most = self.reach / (1 - self.most)
        return most / self.spread, most

    def step(self, s: Tensor, D: Tensor) -> Tensor:
        """p_i, at most D_i."""
        return torch.minimum(_between(s, LEAST_STEP * self.reach, self.reach), D)

    def ratio(self, s: Tensor) -> Tensor:
        """D_i."""
        return _between(s, *self._ratios)

    def mixing(self, s: Tensor) -> Tensor:
        """D_i p̃_ij,1, as a share of its bound."""
        return _between(s, 1 / self.spread, 1.0)

    def momentum(self, s: Tensor, p: Tensor, D: Tensor) -> Tensor:
        """β_i: 0 at s = 0, and the largest at s = 1."""
        return 1 - self._least_alpha((p / D).clamp(max=1.0)) ** s

    def _least_alpha(self, sigma: Any) -> Any:
        """1 - β at least: σ/θ for small σ, 1 for σ = 1."""
        return sigma / (self.theta - (self.theta - 1) * sigma)

    def constants(self, gamma: float, alpha: float, sigma: float, mixing: Tensor) -> tuple[float, float, float, Tensor]:
        """s of p, of β, of D and of p_2 for LEPDO's constants, σ = c_s/c_u; `mixing` is c_u w_ij/2 as a share of its bound."""
        D = gamma / sigma
        low, high = self._ratios
        for what, value, least, most in (
            ("gamma", gamma, LEAST_STEP * self.reach, min(self.reach, D)),
            ("gamma c_u / c_s", D, low, high),
            ("c_u w_ij / 2, as a share of its largest value,", float(mixing.max()), 1 / self.spread, 1.0),
            ("c_u w_ij / 2, as a share of its largest value,", float(mixing.min()), 1 / self.spread, 1.0),
            ("alpha", alpha, self._least_alpha(sigma), 1.0),
        ):
            if not least * (1 - 1e-9) <= value <= most * (1 + 1e-9):
                raise InvalidInput(
                    f"special initialisation: {what} is {value:.4g}, and the region of stable weights has {least:.4g} to "
                    f"{most:.4g} (milodo/learned/region.py). Change the constants, momentum, reach or spread."
                )
        s_beta = 0.0 if alpha >= 1 else math.log(alpha) / math.log(self._least_alpha(sigma))
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
