"""How runs end: one verdict an instance, the same in every process, for solve, races, tuning and training alike."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from milodo.metrics import judged_point
from milodo.network import Observer
from milodo.problems import Problem
from milodo.status import Status
from milodo.types import NodeTensor

GROWTH = 1e6
"""A loss this many times the loss at the start counts as divergence."""


class StoppingCriterion:
    """Of one run: iterations, seconds, a gap to a known optimum, a tolerance; whichever is reached first.

    What is compared is agreed upon (`Observer.agreed`), clocks too: processes that stopped at different iterations would leave
    their neighbours waiting.
    """

    def __init__(
        self,
        problem: Problem,
        observer: Observer,
        *,
        steps: int,
        seconds: float | None = None,
        gap: float | None = None,
        optimum: Tensor | None = None,
        tolerance: float | None = None,
        x0: NodeTensor | None = None,
        growth: float = GROWTH,
        limit: Tensor | None = None,
    ) -> None:
        """`limit` is the loss above which a run has diverged, where that is known already."""
        self.problem, self.observer, self.growth = problem, observer, growth
        self.steps, self.seconds, self.gap, self.optimum, self.tolerance = steps, seconds, gap, optimum, tolerance
        self.limit = self._limit(problem.start() if x0 is None else x0) if limit is None else limit
        self.ended = [Status.RUNNING] * math.prod(problem.batch)

    def _limit(self, x0: NodeTensor) -> Tensor:
        """A loss above this counts as divergence: GROWTH times that of the first iterate or of the problem's start.

        Where both are 0, the unit of the objective is ‖∇f‖²/L; an objective without L has no unit, and 1 must do.
        """
        problem, observer, start = self.problem, self.observer, self.problem.start()
        first = problem.objective(judged_point(x0, problem, observer), observer)
        unit = observer.agreed(torch.maximum(first.abs(), problem.objective(start[..., 0, :], observer).abs()))
        if problem.knows_lipschitz and bool((unit == 0).any()):
            gradient = observer.mean(problem.grad(start).norm(dim=-1), dim=-1)
            unit = torch.where(unit == 0, gradient.square() / observer.mean(problem.lipschitz(), dim=-1), unit)
        return self.growth * torch.where(unit > 0, unit, 1.0)

    def loss(self, x: NodeTensor) -> Tensor:
        """f(x̄) + r(x̄), one number an instance."""
        return self.observer.agreed(self.problem.objective(judged_point(x, self.problem, self.observer), self.observer))

    def diverged(self, loss: Tensor) -> Tensor:
        """Which of these losses are no longer finite, or have grown a million times."""
        return ~torch.isfinite(loss) | (loss > self.limit)

    def __call__(self, k: int, loss: Tensor, seconds: float, off: float = math.nan) -> Status:
        """Looks at a run after k iterations; `ended` then says of each instance how it ended, if it has. All agreed upon."""
        near = torch.full_like(loss, self.tolerance is not None and off <= self.tolerance, dtype=torch.bool)
        if self.gap is not None and self.optimum is not None:
            near = loss - self.optimum.to(loss.device) <= self.gap  # False where no optimum is known
        late = self.seconds is not None and seconds >= self.seconds
        rest = Status.STEPS if k >= self.steps else Status.TIME if late else Status.RUNNING
        for b, (diverged, close) in enumerate(zip(self.diverged(loss).flatten().tolist(), near.flatten().tolist(), strict=True)):
            if self.ended[b] is Status.RUNNING:
                self.ended[b] = Status.DIVERGED if diverged else Status.CONVERGED if close else rest
        return self.status

    @property
    def status(self) -> Status:
        """Of the whole run."""
        if Status.DIVERGED in self.ended:
            return Status.DIVERGED
        return Status.RUNNING if Status.RUNNING in self.ended else self.ended[-1]
