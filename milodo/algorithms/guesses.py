"""What a node can guess of a problem from its own samples: how curved the mean of all f_i is, and how hard it is to solve."""

from __future__ import annotations

import math

import torch

from milodo.problems import Problem
from milodo.types import NodeScalar

FEWEST, MOST = 10.0, 150.0
"""Iterations that accelerated gradients on exact sums are taken to need, at least and at most: what they really need nobody knows
before."""


def pooled_guess(problem: Problem, n: int) -> NodeScalar:
    """The Lipschitz constant of the mean of all f_i, as each node can guess it alone [*batch, n]; L_i where it cannot.

    √L falls with the number of samples like a + b/√N where samples are independent (Marchenko and Pastur 1967); a node knows L_i
    and that of half of its samples, and so what n times as many would have.
    """
    L, known = problem.lipschitz(), problem.half()
    if known is None:
        return L
    N, half, _ = known
    root = N.sqrt()
    b = (half.sqrt() - L.sqrt()).clamp(min=0) * root / (math.sqrt(2) - 1)
    a = (L.sqrt() - b / root).clamp(min=0)
    return torch.minimum(L, torch.maximum((a + b / (math.sqrt(n) * root)).square(), L / n))


def sums_guess(problem: Problem, pooled: NodeScalar, n: int) -> NodeScalar:
    """4 √κ, as each node can guess it alone [*batch, n]; MOST where it cannot.

    κ is the largest eigenvalue of the mean Hessian over the smallest, which is taken for (1 - √y)² times the mean of all but the
    largest (where columns go together that one may be most of the trace), y = d/nN, as it is where samples are independent. Where
    samples are as few as unknowns it is a penalty that decides: LASSO(n,300,10,0.1) takes 40 iterations to 1e-5 at √y = 0.97, 105
    at 1.22 and 201 at 1.73.
    """
    known = problem.half()
    if known is None:
        return torch.full_like(pooled, MOST)
    N, _, trace = known
    y = (problem.d / (n * N)).sqrt()
    others = (trace - pooled).clamp(min=0) / (problem.d - 1) if problem.d > 1 else pooled
    kappa = pooled / others / (1 - y).clamp(min=1e-6).square()
    return torch.where(y < 0.9, 4 * kappa.sqrt(), 40 + 215 * (y - 0.97)).nan_to_num(MOST).clamp(FEWEST, MOST)
