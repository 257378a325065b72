"""A linear model in units of its own: columns and targets of size about 1, whatever they were measured in.

All factors are powers of two, so that no digit changes: what is found and proven in the new units holds in the old ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from milodo.problems.linear import LinearModel

USUAL = 10
"""Sizes within 2^±10, and columns within 2^5 of each other, are left as they are: scaling copies the data."""
ALIKE = 5
FURTHEST = 500
"""The largest exponent of a unit of targets: its square must be a number."""


@dataclass(frozen=True)
class Units:
    """z = scale · x, and an objective of factor · (f + r)."""

    scale: Tensor
    """[*batch, d]."""
    factor: Tensor
    """[*batch]."""


def own_units(problem: LinearModel) -> tuple[LinearModel, Units]:
    """The problem in units of its own: with C the sizes of the columns and t that of the targets,

    f̃(z) = f(z t / C) / t²   and   r̃(z) = r(z t / C) / t²   for   Ã = A / C, b̃ = b / t, z = x C / t;

    t is 1 unless the loss is homogeneous.
    """
    column = _exponents(problem)  # [*batch, d]
    target = torch.zeros_like(column[..., 0])
    if problem.homogeneous:
        target = _exponent(torch.linalg.vector_norm(problem.b, ord=torch.inf, dim=(-2, -1))).clamp(-FURTHEST, FURTHEST)
        target = torch.where(target.abs() <= USUAL, 0, target)
    scale, factor = _power(column) / _power(target).unsqueeze(-1), _power(-2 * target)
    if not bool(column.any()) and not bool(target.any()):
        return problem, Units(scale, factor)
    A = problem.A / _power(column)[..., None, None, :] if bool(column.any()) else problem.A
    reg = problem.reg.rescaled(scale, factor.unsqueeze(-1))
    return type(problem)(A, problem.b / _power(target)[..., None, None], reg, problem.weights), Units(scale, factor)


def _exponents(problem: LinearModel) -> Tensor:
    """Of the sizes of the columns, all 0 if they are alike and of a usual size."""
    largest = torch.linalg.vector_norm(problem.A, ord=torch.inf, dim=(-3, -2))
    found = _exponent(largest)
    known = found[largest > 0]
    if not len(known) or (int(known.max() - known.min()) <= ALIKE and int(known.abs().max()) <= USUAL):
        return torch.zeros_like(found)
    # The largest entry of a column keeps squares in range; its root mean square is what its unknown should be measured by.
    spread = torch.linalg.vector_norm(problem.A / _power(found)[..., None, None, :], dim=(-3, -2))
    return found + _exponent(spread / (problem.n * problem.samples) ** 0.5)


def _exponent(size: Tensor) -> Tensor:
    """k with size / 2^k in [1/2, 1); 0 for 0."""
    return torch.frexp(size).exponent


def _power(exponent: Tensor) -> Tensor:
    return torch.ldexp(torch.ones(exponent.shape, dtype=torch.float64, device=exponent.device), exponent)
