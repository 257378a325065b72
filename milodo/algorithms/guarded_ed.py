"""Accelerated Exact Diffusion with a guard: constants that somebody else chose, at no risk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from torch import Tensor

from milodo.algorithms.accelerated_ed import AcceleratedED
from milodo.algorithms.guard import Guarded, grown, shrunk, steps_down
from milodo.algorithms.parameters import Choice, Space, StepSize
from milodo.errors import InvalidInput
from milodo.network import Network
from milodo.network.averaging import AVERAGES
from milodo.problems import Problem
from milodo.types import Step


@dataclass(frozen=True, kw_only=True)
class GuardedED(Guarded):
    """Accelerated-ED (milodo/algorithms/accelerated_ed.py) with the constants it was given at level 0, and at level c

    γ_c = γ/2ᶜ,   σ_c = σ/2ᶜ,   1 - β_c = 2ᶜ (1 - β)

    each until it is what Accelerated-ED takes on its own: γ = `floor` (any, if there is none), and the σ and
    β that go with θ. What was given gentler than that stays as it is. So the last level is Accelerated-ED with its own constants.
    """

    gamma: Step
    """Step size γ."""
    K: int
    """Rounds of one iteration: the degree of A."""
    over: str = "fitted"
    """Which A."""
    momentum: Step | None = None
    """β at most; None for what A allows."""
    dual: Step | None = None
    """σ; None for what A allows."""
    steps: tuple[float, ...] | None = None
    """τ_i of all nodes, γ_i = τ_i γ; None where all have one step."""
    floor: Step | None = None
    """A step that is short enough, e.g. 1.2/L; None where nobody knows one."""

    label: ClassVar[str] = "Guarded-ED"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"gamma": StepSize(1 / 8, 4), "K": Choice((1, 2, 3))}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not AVERAGES[self.method.over].survives_loss:
            raise InvalidInput(
                f"{self.label}: over = {self.over!r} needs every node, and a guard makes some begin anew before others. "
                "Use a polynomial, e.g. over = 'fitted'."
            )

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """Those of Accelerated-ED, and 1.2/L to fall back on."""
        method = AcceleratedED.safe(L, net, mean)
        return cls(**method.chosen, floor=min(method.gamma, 1.2 / L))

    @cached_property
    def method(self) -> AcceleratedED:
        return AcceleratedED(gamma=self.gamma, K=self.K, over=self.over, momentum=self.momentum, dual=self.dual, steps=self.steps)

    def length(self, level: Tensor) -> Step:
        return shrunk(self.gamma, level, self.floor)

    def last(self, net: Network) -> Step:
        most, sigma = self.method.allowed(net)
        down = steps_down(self.gamma, self.floor)
        if self.dual is not None:
            down = down.maximum(steps_down(self.dual, sigma))
        if self.momentum is not None and most < 1:
            down = down.maximum(steps_down(1 - most, 1 - self.momentum))
        return down

    def gentler(self, level: Tensor, inner: Any, problem: Problem, net: Network) -> Any:
        method = self.method
        most, sigma = method.allowed(net)
        sigma = sigma if self.dual is None else shrunk(self.dual, level, sigma)
        most = most if self.momentum is None else 1 - grown(1 - self.momentum, level, 1 - most)
        return method.moved(inner, problem, net, self.length(level), most, sigma)
