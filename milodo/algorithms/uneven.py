"""Sites of different curvature: which steps of their own Accelerated-ED gives its nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milodo.algorithms.accelerated_ed import DUAL, ENOUGH, AcceleratedED, step_size
from milodo.network import Network
from milodo.topology.filters import polynomial

LONGER = (1.0, 2.0, 4.0, 8.0)
"""How many times as long as the shortest step others may be. With steps that differ more, two sites of short steps hardly hear of
each other over one of long steps between them."""
ROUNDS = 8
"""At most in an iteration."""
WORTH = 1.15
"""Times cheaper that steps of their own must be predicted to be."""
MEAN, DUALS = 58.0, 6.0
"""Iterations for each √(L_eff/L̄), and times 1/(0.05 + (1 - θ)²/2): between 1e-3 and 1e-5 on ring(10), star(20) and
grid(5x5) with curvatures that differ 10 to 1000 times."""
PARTS = 4
"""Steps are powers of 2^(1/4): nobody's rounding makes them differ from one node to another."""


@dataclass(frozen=True)
class Priced:
    """A method and what it is predicted to need, relative to others here."""

    method: AcceleratedED
    iterations: float
    contraction: float
    effective: float
    """One over the step that all nodes together take."""

    @property
    def rounds(self) -> float:
        return self.method.K * self.iterations


def priced(curvatures: Sequence[float], net: Network, longer: float) -> Priced | None:
    """Steps up to so many times as long as the shortest, τ_i = L/max(L_i, L/longer), over the fewest rounds that are enough;
    None if none are."""
    L_i = np.array(curvatures)
    L = float(L_i.max())
    with np.errstate(divide="ignore"):
        most = np.log2(np.minimum(L / L_i, longer))
    tau = 2.0 ** (np.floor(PARTS * most + 1e-9) / PARTS)
    steps = None if longer == 1 else tuple(tau.tolist())
    on = net if steps is None else net.weighing(steps)
    for K in range(1, ROUNDS + 1):
        theta = polynomial("minimax", on.mixing, K).contraction
        if theta <= ENOUGH:
            break
    else:
        return None
    # Seen from consensus all nodes together have the curvature Σ L_i / Σ τ_i⁻¹ in units of their own steps.
    share = float((1 / tau).sum())
    gamma = step_size(L, float(L_i.sum()) / share, theta)
    effective = share / len(L_i) / gamma
    iterations = MEAN * math.sqrt(effective / float(L_i.mean())) + DUALS / (DUAL + (1 - theta) ** 2 / 2)
    return Priced(AcceleratedED(gamma=gamma, K=K, steps=steps), iterations, theta, effective)


def uneven(curvatures: Sequence[float], net: Network) -> Priced | None:
    """The cheapest of them in rounds, where it is worth it; None where one step for all is about as good."""
    alike, *others = (priced(curvatures, net, longer) for longer in LONGER)
    found = [each for each in others if each is not None]
    if not found:
        return None
    best = min(found, key=lambda each: each.rounds)
    return best if alike is None or WORTH * best.rounds < alike.rounds else None
