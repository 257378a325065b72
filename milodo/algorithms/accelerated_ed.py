"""Accelerated Exact Diffusion: the strongest gossip that needs no tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from milodo.algorithms.averages import Averages
from milodo.algorithms.parameters import Choice, Space, StepSize
from milodo.algorithms.tree_apg import dot
from milodo.errors import InvalidInput
from milodo.network import Network
from milodo.network.exchange import Exchange, Polynomial
from milodo.network.requirement import Requirement
from milodo.problems import Problem
from milodo.solvers.fista import momentum
from milodo.topology.filters import polynomial
from milodo.types import NodeTensor, Step

DUAL = 0.05
"""σ where A mixes little and β allows it."""
ENOUGH = 0.91
"""What a round may leave of disagreement before steps get shorter."""
SHORTER = 2.0
"""By how much shorter steps are, on average, where a round leaves more: then duals have the longer way, and their step is σ/γ. On
paths, trees, grids and regular graphs that takes half of the rounds of a polynomial that leaves less, or fewer."""
MOMENTUM = ((0.8, 1.0), (ENOUGH, 1 - DUAL / 2), (math.inf, 1 - DUAL))
"""(θ, β at most) where A leaves so much: up to 0.8 restarts are enough; above, free momentum stalls on large problems."""
APART = 30
"""Iterations between two restarts of a node, at least."""
MEMORY = 0.9
"""Of the trend by which a node restarts: one iteration alone says little."""


CHANGING = 0.5
"""Share of z - A z that is taken where the graph changes with the iteration."""
LONGEST = 8.0
"""Times 1/L that a step may be long, however well A mixes: a prox comes before it, and does not commute with a mean. On star(20)
12/L converged with two sites 1000 times as curved as the others, and 20/L did not with one that was 100 times as curved."""


def step_size(L: float, mean: float, theta: float) -> float:
    """γ = 0.95 / max(L̄/1.28, θL/(0.28 + θ)), at most 8/L, with L the largest of the L_i and L̄ their mean."""
    return min(LONGEST / L, 0.95 / max(mean / 1.28, theta * L / (0.28 + theta)))


def shorter(degrees: Sequence[int]) -> tuple[float, ...]:
    """τ_i = min(1, m/degree_i), with m so that the mean of 1/τ_i is 2: who has many neighbours takes shorter steps, and is
    moved less by each of them than they are by him.

    >>> shorter([2, 2, 2]), shorter([3, 1, 1, 1])
    ((0.5, 0.5, 0.5), (0.25, 0.75, 0.75, 0.75))
    """
    n, falling = len(degrees), sorted(degrees, reverse=True)
    for least in range(1, n + 1):  # as many nodes have shorter steps than 1
        m = sum(falling[:least]) / (SHORTER * n - (n - least))
        if least == n or falling[least] <= m:
            break
    return tuple(min(1.0, m / degree) for degree in degrees)


def bounds(left: float) -> tuple[float, float]:
    """β at most, and σ, where A leaves so much of disagreement."""
    most, sigma = next(most for theta, most in MOMENTUM if left <= theta), DUAL + (1 - left) ** 2 / 2
    return most, sigma if most == 1 else min(sigma, 1 - most)


class State(NamedTuple):
    x: NodeTensor
    last: NodeTensor
    y: NodeTensor
    """Dual variable; sums to zero over the nodes."""
    t: Tensor
    """[*batch, n, 1], like all that follow."""
    trend: Tensor
    calm: Tensor
    """Iterations since the node's last restart."""
    lost: NodeTensor
    """What rounding has kept from y so far."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


@dataclass(frozen=True, kw_only=True)
class AcceleratedED(Averages):
    """Exact Diffusion with momentum, over any averaging operator A (milodo/network/exchange), from y⁰ = 0, t = 1:

    e  = x + β (x - x₋),   β = (t - 1)/t⁺,   t⁺ = (1 + √(1 + 4t²))/2
    z  = prox_{γr}(e - γ(∇f(e) + y))
    v  = z - A z                                                        the rounds of A
    y⁺ = y + (σ/γ) v,   x⁺ = z - v,   σ = 0.05 + (1 - θ)²/2
    s⁺ = 0.9 s + 0.1 ⟨e - z, x⁺ - x⟩;   t⁺ = 1 where s⁺ > 0, at most every 30 iterations, each node for itself

    β is at most 0.975 where A leaves more than 0.8 of disagreement, and 0.95 where it leaves more than 0.91, or where links fail
    and nobody knows what it leaves (θ counts as 1 then); σ is at most 1 - β there, because for quadratic f, r = 0 and 0 ⪯ A ⪯ I
    the recurrence is stable for σ <= 1 - β, however little A mixes.

    Where the graph changes with the iteration, K = 1 and v is half of z - A z with that iteration's A, so that ½I ⪯ I - v ⪯ I as
    in Exact Diffusion: with all of it, it diverged on five of six schedules (benchmarks/links.py schedules).

    These are LEPDO-1..3 with a momentum term, which vanishes at a fixed point: Theorem 1 speaks of it, too. γ, K and σ are the
    same at all nodes, so Σy = 0. The restart and t are each node's own and need no message. Lost messages leave Σv = 0 as it is.

    Where curvatures differ, each node has a step of its own, γ_i = τ_i γ, and A is built on a_ij = w_ij 2τ_i/(τ_i + τ_j)
    in place of w_ij (`Uneven`): a node with short steps is moved less by its neighbours than they are by it. Then

    - Σy = 0: y_i⁺ - y_i = (σ/γ_i) v_i is σ/γ times a sum of edge terms with p_ij,1 ~ 2w_ij/(τ_i + τ_j), the same at both
      ends; over K rounds, since Σ_i τ_i⁻¹ (x - A x)_i = 0 for every polynomial A, whatever is lost.
    - The fixed point is the optimum: v = 0 only at consensus, and then z = x says -(∇f_i + y_i) ∈ ∂r(x) at every node,
      which add up.
    - It is stable where the even one is: with D = Diag(τ_i), x = D^½ x̃, y = D^-½ ỹ the recurrence for quadratic f and r
      = 0 is the even one with Hessian D^½ H D^½ and I - D^-½ (I - A) D^½, which is symmetric with eigenvalues in [0, 1];
      so γ_i L_i <= 1.28 at each node by itself is enough, where the even one needs γ <= 1.28/L for the largest L_i.
    - What all nodes agree upon moves by Σ_i ∇f_i / Σ_i γ_i⁻¹: as with the one step n/Σ_i γ_i⁻¹, a mean of the L_i, not
      their maximum.
    """

    gamma: Step
    """Step size γ."""
    K: int
    """Rounds of one iteration: the degree of A."""
    exchange: Exchange = Polynomial("minimax")
    """Which A."""
    momentum: Step | None = None
    """β at most; None for what A allows."""
    dual: Step | None = None
    """σ; None for 0.05 + (1 - θ)²/2, at most 1 - β where β is bounded."""
    steps: tuple[float, ...] | None = None
    """τ_i of all nodes, γ_i = τ_i γ; None where all have one step."""

    label: ClassVar[str] = "Accelerated-ED"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"gamma": StepSize(1 / 8, 4), "K": Choice((1, 2, 3))}
    State = State

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """One round. γ = 0.95 / max(L̄/1.28, θL/(0.28 + θ)), at most 8/L, with L̄ the mean of the L_i, 1.2/L without it.

        Where θ is more than 0.91, β <= 0.95, σ = 0.05 and steps are half as long, shortest where degrees are largest. Else, where
        links fail, a share p of the time, A leaves 1 - (1 - p)(1 - θ) in the mean, which decides on β and σ; there and where the
        graph changes γ = 1.2/L.

        Any γ <= 1.28/L is stable for quadratic f and r = 0, and more where mixing levels uneven curvatures; the rest is tested.
        """
        if net.schedule is not None:
            return cls(gamma=1.2 / L, K=1)
        theta = polynomial("minimax", net.mixing, 1).contraction
        if theta > ENOUGH:
            tau = shorter(net.topology.degrees)
            even = min(tau) == max(tau)
            gamma, steps = (1.2 * tau[0] / L, None) if even else (1.2 / L, tau)
            return cls(gamma=gamma, K=1, momentum=1 - DUAL, dual=DUAL, steps=steps)
        if net.outage is not None:
            momentum, dual = bounds(min(ENOUGH, 1 - (1 - net.outage.p) * (1 - theta)))
            return cls(gamma=1.2 / L, K=1, momentum=momentum, dual=dual)
        return cls(gamma=1.2 / L if mean is None else step_size(L, mean, theta), K=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None:
            object.__setattr__(self, "steps", tuple(self.steps))  # a run's file has lists
            object.__setattr__(self, "requires", self.requires | {Requirement.FIXED_GRAPH})
        if self.steps is not None and Requirement.RELIABLE_LINKS in self.exchange.requires:
            raise InvalidInput(
                f"{self.label}: steps of each node's own need a polynomial, e.g. exchange = 'minimax', not {self.exchange}."
            )

    def on(self, net: Network) -> Network:
        """The network, with weights that suit everybody's steps."""
        return net if self.steps is None else net.weighing(self.steps)

    def contraction(self, net: Network) -> float:
        """θ: what A leaves of disagreement."""
        return self.exchange.contraction(self.on(net).mixing)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        if self.steps is not None and len(self.steps) != net.topology.n:
            raise InvalidInput(
                f"{self.label}: steps of {len(self.steps)} nodes, but {net.topology} has {net.topology.n}. Give one a node."
            )
        zero = torch.zeros_like(x0[..., :1])
        return State(x0, x0, torch.zeros_like(x0), zero + 1, zero, zero, torch.zeros_like(x0), self.exchange.init(x0, net))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        most, sigma = self.allowed(net)
        most, sigma = most if self.momentum is None else self.momentum, sigma if self.dual is None else self.dual
        gamma = self.gamma
        if self.steps is not None:
            gamma = gamma * state.x.new_tensor([self.steps[i] for i in net.nodes]).unsqueeze(-1)
        beta, t = momentum(state.t)
        beta = beta.clamp(max=most)
        e = state.x + beta * (state.x - state.last)
        z = problem.prox(e - gamma * (problem.grad(e) + state.y), gamma)
        v, link = self.exchange.residual(z, state.link, self.on(net))
        if net.schedule is not None:
            v = CHANGING * v
        # Summed as Kahan (1965) does: near rest v is tiny beside y, and would be rounded the same way in every iteration.
        added = sigma / gamma * v + state.lost
        y = state.y + added
        lost = added - (y - state.y)
        x = z - v
        trend = MEMORY * state.trend + (1 - MEMORY) * dot(e - z, x - state.x)
        restart = (trend > 0) & (state.calm >= APART)
        t, calm = torch.where(restart, 1.0, t), torch.where(restart, 0.0, state.calm + 1)
        return State(x, state.x, y, t, trend, calm, lost, link)

    def allowed(self, net: Network) -> tuple[float, float]:
        """β at most, and σ, by what A leaves of disagreement."""
        return bounds(self.contraction(net) if net.holds else 1.0)
