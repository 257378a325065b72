"""The paper's update rule with constant weights: what any learned ones must beat."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from milodo.algorithms.parameters import Factor, Fraction, Given, Share, Space, StepSize
from milodo.algorithms.rule import Here, Ratio, Rule, WeightProvider
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.topology.mixing import walk
from milodo.types import EdgeTensor, NodeTensor, Step

EASIEST, UNKNOWN, HARD = 30.0, 150.0, 300.0
"""Iterations on exact sums below which penalties rise no more; those from which a problem counts as hard, and what such a one is
taken to need."""
PENALTY, NARROW = 3.0, 0.1
"""p_ij,1 in units of L over the mean degree and the iterations of exact sums, and the spectral gap of I - D⁻¹Adj below which
duals have the longer way and take larger steps. The penalties that needed the fewest rounds to 1e-3 on LASSO(n,300,10,0.1), times
degree and iterations: 1.6 to 3.4 on ring(10), grid(5x5), star(20), complete(12), hypercube(5) and five others, 5 on tree(31) and
path(17), whose gap is 0.02."""
BOLD, SHORT, FAILING = (1.3, 0.35, 1.1), (1.2, 0.3, 0.9), (0.9, 0.2, 0.95)
"""σ = c_s/c_u, β and the largest eigenvalue of I - A, A what mixing does to z: with messages that lose little over links that
hold; with few levels; and where links fail. What is rounded off in a message comes back (1 + β + σ) times that eigenvalue as
large: with five levels 2.4 converged and 2.6 diverged, with seven 2.9 mostly converged. Where links fail larger σ keep nodes from
agreeing."""
ALIKE = 1.4
"""The largest eigenvalue of I - D⁻¹Adj below which five levels are too few over links that hold: where all eigenvalues are nearly
as large, as on complete(12), five diverge and seven converge. On exponential(16), where it is 1.45, five converge."""
TAKES = {False: (2.5, 30.0, 0.5), True: (1.0, 12.0, 0.6)}
"""Iterations, in the units of those that auto predicts for Accelerated-ED: so many times those of exact sums, and so many over a
power of λ_2; where links hold, to 1e-4 on LASSO(n,300,10,0.1), and where they fail, of which auto thinks too well."""
NEARER, FEWEST, MOST = 4.0, 5, 40
"""Local steps, over √(1 + γ_i L): accelerated gradients then come within 2 % of the minimum. Least and most."""


@dataclass(frozen=True)
class Constant(WeightProvider):
    """p_i = γ, p_ij,1 = c_s w_ij/(2γ), p_ij,2 = c_u w_ij/2, and β = 1 - α."""

    gamma: Step
    alpha: Step
    c_s: Step
    c_u: Step

    def start(self, x0: NodeTensor, problem: Problem, net: Network, exchange: Gossip) -> None:
        return None

    def beta(self, memory: None) -> Step:
        return 1 - self.alpha

    def primal(self, memory: None, here: Here, problem: Problem) -> tuple[Step, None]:
        return self.gamma, None

    def edges(self, memory: None, dz: EdgeTensor, net: Network, exchange: Gossip) -> tuple[Any, Any, None]:
        return self.c_s * net.w / (2 * self.gamma), self.c_u * net.w / 2, None


@dataclass(frozen=True)
class ByDegree(Constant):
    """The same with 1/d_i in place of w_ij and γ/d_i in place of γ: p_i = γ/d_i, p_ij,1 = c_s/(2γ), p_ij,2 = c_u/(2d_i)."""

    def start(self, x0: NodeTensor, problem: Problem, net: Network, exchange: Gossip) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """d_i [n, 1]; 1 for a node alone."""
        degrees = net.topology.degrees
        return x0.new_tensor([max(1, degrees[i]) for i in net.nodes]).unsqueeze(-1)

    def beta(self, memory: Any) -> Step:
        return 1 - self.alpha

    def primal(self, memory: Any, here: Here, problem: Problem) -> tuple[Step, Any]:
        return self.gamma / memory, memory

    def edges(self, memory: Any, dz: EdgeTensor, net: Network, exchange: Gossip) -> tuple[Any, Any, Any]:
        return self.c_s / (2 * self.gamma), Ratio(self.gamma * self.c_u / (self.c_s * memory)), memory


@dataclass(frozen=True, kw_only=True)
class LEPDO(Rule):
    """LEPDO-1..3 (milodo/algorithms/rule.py) with p_i = γ, p_ij,1 = c_s w_ij/(2γ), p_ij,2 = c_u w_ij/2 and β = 1 - α.

    With α = c_s = c_u = 1 and r = 0 this is Exact Diffusion: special initialisation, where training of MiLoDo begins.

    By degree 1/d_i stands for w_ij and γ/d_i for γ, d_i being the number of neighbours: who has many of them takes shorter steps
    and is moved less by each, and every edge has the same p_ij,1 = c_s/(2γ). With α = c_s = c_u = 1 and local steps to the end
    this is ADMM (milodo/algorithms/admm.py) with the penalty 1/(2γ).
    """

    gamma: Step
    """Step size γ."""
    alpha: Step = 1.0
    """Momentum is 1 - α: the smaller, the more; 1 is the paper's rule."""
    c_s: Step = 1.0
    """Of the dual step, in units of Exact Diffusion's."""
    c_u: Step = 1.0
    """Of the mixing, likewise."""
    local_steps: int = 1
    """S: gradients of one iteration; more buy rounds."""
    by_degree: bool = False
    """Whether 1/d_i stands for w_ij."""
    lookahead: float = 0.5
    """h: how far ahead the gradient is taken, as a share of the momentum: 1 is Nesterov's method, 0 the heavy ball; 1/2 and less
    allow longer steps."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "LEPDO"
    space: ClassVar[Space] = {
        "gamma": StepSize(1 / 4, 8), "alpha": Fraction(0.02, 1.0), "c_s": Factor(0.03, 3.0), "c_u": Factor(0.5, 2.0),
        "local_steps": Given((1,)), "lookahead": Share((0.5, 1.0), low=0.0, high=1.0),
    }  # fmt: skip

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """γ = 1/L, and the rest Exact Diffusion's: with W ⪰ -I, I - lap/2 has no negative eigenvalue, and then any γ <= 1.28/L is
        stable for quadratic f and r = 0; the rest is tested."""
        return cls(gamma=1 / L)

    @classmethod
    def local(
        cls, L: float, net: Network, mean: float | None = None, sums: float = UNKNOWN, *,
        short: bool = False, failing: bool = False,
    ) -> Self:  # fmt: skip
        """Constants for local steps on any graph, without tuning, by degree. L is the largest of the L_i, L̄ their mean, if that
        is known; `sums` the iterations that accelerated gradients on exact sums would need, as far as anybody can guess: how hard
        the problem is. `short` is for messages of a few levels, `failing` for links that fail though the network does not say so.

            p_ij,1 = 3L̄ max(1, (0.1/λ_2)^⅓) / (d̄ sums)      the same on all edges, like the penalty of ADMM
            c_u    = 2p/λ                                    p: the largest eigenvalue of (c_u/2)(I - D⁻¹Adj) = I - A
            γ      = σ c_u / (2 p_ij,1),  c_s = σ c_u        (σ, β, p) = (1.3, 0.35, 1.1); short messages (1.2, 0.3, 0.9); where
                                                             links fail (0.9, 0.2, 0.95)
            S      = 4 √(1 + γL/d)                           d: the smallest degree; from 5 to 40

        λ_2 and λ are the least and the largest eigenvalue of I - D⁻¹Adj beside 0, d̄ is the mean degree. For exact local minima,
        quadratic f of the same curvature h at all nodes and r = 0 the recurrence is, for each eigenvalue p of I - A and ρ =
        1/(1 + γ_i h), (ξ - 1)(ξ² - (1 + β)(1 - p)ρξ + β(1 - p)ρ) + σpρξ² = 0: no root lies outside the unit circle, whatever the
        step. A link that fails takes eigenvalues of I - A down, never up. All else is tested, not proved."""
        topology = net.topology
        if topology.n == 1:
            return cls(gamma=1 / L, local_steps=FEWEST, by_degree=True)
        low, high = walk(topology)
        hard = max(EASIEST, sums) if sums < UNKNOWN else HARD
        sigma, beta, most = FAILING if failing or not net.holds else SHORT if short else BOLD
        degree = sum(topology.degrees) / topology.n
        penalty = PENALTY * (mean or L) * max(1.0, (NARROW / low) ** (1 / 3)) / (degree * hard)
        c_u = 2 * most / high
        gamma = sigma * c_u / (2 * penalty)
        steps = min(MOST, max(FEWEST, math.ceil(NEARER * math.sqrt(1 + gamma * L / min(topology.degrees)))))
        return cls(gamma=gamma, alpha=1 - beta, c_s=sigma * c_u, c_u=c_u, local_steps=steps, by_degree=True)

    @staticmethod
    def takes_few_levels(net: Network, *, failing: bool = False) -> bool:
        """Whether local steps converge with messages in five levels."""
        return failing or not net.holds or walk(net.topology)[1] >= ALIKE

    @property
    def weights(self) -> WeightProvider:
        of = ByDegree if self.by_degree else Constant
        return of(self.gamma, self.alpha, self.c_s, self.c_u)


def iterations_of(sums: float, net: Network, longer: float, *, failing: bool) -> float:
    """That local steps are predicted to take, where those of exact sums are known; `longer`: times the way of duals."""
    takes, crossing, power = TAKES[failing]
    return takes * sums + crossing * longer / walk(net.topology)[0] ** power
