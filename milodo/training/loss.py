"""What training minimises (eq. milodo-loss), and when a stage has taught enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.metrics import consensus_error, mean_point
from milodo.network import Observer
from milodo.problems import Problem
from milodo.types import NodeTensor, Point

FLOOR = 1e-6
"""(1 + |f*|) times this is added to a gap before its logarithm: about what fp32 can still tell apart."""


@dataclass(frozen=True)
class MetaLoss:
    """One number for an iterate of a batch; training averages it over the iterations of a segment.

    'objective'  f(x̄) + r(x̄), the paper's loss with the r its formula omits
    'log-objective'  ln(f(x̄) + r(x̄)), for problems of several kinds whose optimum nobody knows
    'log-gap'    ln(f(x̄) + r(x̄) - f* + floor), in which every decade towards the optimum counts the same
    With weight c > 0 the consensus error is added, c times, itself or its logarithm.
    """

    kind: str
    consensus: float = 0.0

    @property
    def needs_optimum(self) -> bool:
        return self.kind == "log-gap"

    def __call__(self, x: NodeTensor, problem: Problem, best: Point | None, observer: Observer) -> Tensor:
        value = problem.objective(mean_point(x, observer), observer)
        spread = consensus_error(x, observer) if self.consensus else None
        if self.kind == "log-objective":
            value = value.clamp(min=FLOOR).log()
        if self.kind == "log-gap":
            assert best is not None
            floor = FLOOR * (1 + best.abs())
            value = ((value - best).clamp(min=0) + floor).log()
            spread = None if spread is None else (spread + floor).log()
        return (value if spread is None else value + self.consensus * spread).mean()


def falling(losses: Sequence[float]) -> bool:
    """The paper's sign that a stage may end: Σ_{k=1}^{K/2} f(x̄^k) > Σ_{k=K/2+1}^{K} f(x̄^k) (Appendix E.1)."""
    half = len(losses) // 2
    first, second = torch.tensor(losses[:half]).sum(), torch.tensor(losses[half : 2 * half]).sum()
    return bool(torch.isfinite(second) and first > second)
