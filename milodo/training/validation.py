"""What weights are chosen by: the gap in the end, or the iterations that it takes to some."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from milodo.learned import Learned
from milodo.loop import iterate
from milodo.metrics import mean_point
from milodo.network import Network, Observer
from milodo.problems import Problem
from milodo.types import Point

LOOK = 5
"""Iterations between two looks at the gap; in between it falls geometrically."""


def log_iterations(
    optimizer: Learned, problem: Problem, net: Network, best: Point, gaps: Sequence[float], iterations: int, observer: Observer
) -> Tensor:
    """log10 of the iterations to each gap, their mean over the gaps [*batch]. A gap that was not reached counts as if it fell by
    a decade in as many iterations as there were; ∞ where the end is not finite."""
    asked = torch.tensor(gaps, dtype=torch.float64)
    needed = torch.full((*best.shape, len(gaps)), math.inf, dtype=torch.float64)
    least = torch.finfo(torch.float64).tiny  # where the start is the optimum
    before = gap = (problem.objective(mean_point(problem.start(), observer), observer).double() - best).unsqueeze(-1)
    for k, state in enumerate(islice(iterate(optimizer, problem, net), 1, iterations + 1), 1):
        if k % LOOK and k != iterations:
            continue
        gap = (problem.objective(mean_point(state.x, observer), observer).double() - best).unsqueeze(-1)
        share = (before.clamp(min=least) / asked).log() / (before.clamp(min=least) / gap.clamp(min=least)).log()
        crossed = (gap <= asked) & needed.isinf()
        needed = torch.where(crossed, k - LOOK + LOOK * share.clamp(0, 1), needed)
        before = gap
        if not bool(needed.isinf().any()):
            break
    missed = iterations * (1 + (gap / asked).clamp(min=1).log10())
    missed = torch.where(torch.isfinite(gap), missed, math.inf)
    return torch.where(needed.isinf(), missed, needed).clamp(min=1).log10().mean(-1)
