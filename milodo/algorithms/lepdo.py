"""The paper's update rule with constant weights: what any learned ones must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from milodo.algorithms.parameters import Factor, Fraction, Given, Share, Space, StepSize
from milodo.algorithms.rule import Here, Rule, Source
from milodo.network import Network
from milodo.problems import Problem
from milodo.types import EdgeTensor, NodeTensor, Step


@dataclass(frozen=True)
class Constant(Source):
    """p_i = γ, p_ij,1 = c_s w_ij/(2γ), p_ij,2 = c_u w_ij/2, and β = 1 - α."""

    gamma: Step
    alpha: Step
    c_s: Step
    c_u: Step

    def start(self, x0: NodeTensor, problem: Problem, net: Network) -> None:
        return None

    def momentum(self, memory: None) -> Step:
        return 1 - self.alpha

    def primal(self, memory: None, here: Here, problem: Problem) -> tuple[Step, None]:
        return self.gamma, None

    def edges(self, memory: None, dz: EdgeTensor, net: Network) -> tuple[Any, Any, None]:
        return self.c_s * net.w / (2 * self.gamma), self.c_u * net.w / 2, None


@dataclass(frozen=True, kw_only=True)
class LEPDO(Rule):
    """LEPDO-1..3 (milodo/algorithms/rule.py) with p_i = γ, p_ij,1 = c_s w_ij/(2γ), p_ij,2 = c_u w_ij/2 and β = 1 - α.

    With α = c_s = c_u = 1 and r = 0 this is Exact Diffusion: special initialisation, where training of MiLoDo begins.
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
    lookahead: float = 0.5
    """h: how far ahead the gradient is taken, as a share of the momentum: 1 is Nesterov's method, 1/2 allows longer steps."""

    label: ClassVar[str] = "LEPDO"
    space: ClassVar[Space] = {
        "gamma": StepSize(1 / 4, 8), "alpha": Fraction(0.02, 1.0), "c_s": Factor(0.03, 3.0), "c_u": Factor(0.5, 2.0),
        "local_steps": Given((1,)), "lookahead": Share((0.5, 1.0), low=0.5, high=1.0),
    }  # fmt: skip
    rounds: ClassVar[int] = 1

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """γ = 1/L, and the rest Exact Diffusion's: with W ⪰ -I, I - lap/2 has no negative eigenvalue, and then any γ <= 1.28/L is
        stable for quadratic f and r = 0; the rest is tested."""
        return cls(gamma=1 / L)

    @classmethod
    def local(cls, L: float, net: Network) -> Self:
        """Constants for ten local steps on any graph, without tuning: γ = 25/L, β = 0.8, c_s = 1 and c_u = 2.5/λ, λ the largest
        eigenvalue of I - W, so that I - c_u lap/2 has none below -0.25. Ten steps reach about as far as 25/L, and c_s/γ = 0.04 L
        is where penalties of ADMM are best, too. Tested, not proved; with many more steps such a c_s diverges."""
        return cls(gamma=25 / L, alpha=0.2, c_s=1.0, c_u=2.5 / float(net.eigenvalues[-1]), local_steps=10)

    @property
    def source(self) -> Source:
        return Constant(self.gamma, self.alpha, self.c_s, self.c_u)
