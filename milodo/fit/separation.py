"""Classes that are separated in part: along some direction the loss falls for ever, however far one has gone.

A direction v separates if y_j a_jᵀv >= 0 for every sample j (with y = 2b - 1; of several classes: if no other class gains on the
sample's own) and > 0 for some. Then, without a penalty, coefficients grow until the stopping rule sees no more gain, and their
size says nothing (Albert and Anderson 1984). Samples with > 0 have probabilities near 0 or 1 by then and bend nothing; all others
lie on the hyperplane aᵀv = 0. So v is looked for among the directions in which the curvature at the answer has all but vanished,
and every site proves or disproves it on its own samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.errors import shortened
from milodo.network import Observer
from milodo.network.sums import in_order
from milodo.problems.sampled import Sampled
from milodo.solvers.triangles import unpack
from milodo.types import Point

LEAST, MOST_CERTAIN = 5.0, 12.0
"""Log odds from which on a sample is certain, half of what the tolerance allows, lie between these; without such a sample there
is nothing to look for."""
NEGLIGIBLE = 1e-4
"""Of the objective without features: a penalty that adds less decides nothing but how far coefficients grow."""
VANISHED = (1e-12, 1e-9, 1e-6)
"""Parts of the largest curvature below which there is none: a direction is looked for at each of these limits."""
ROUNDING, CLEAR = 1e-8, 1e4
"""A margin below this part of the length of a direction and of the typical row is 0; from so many times that on a row is told
apart."""
MOST = 1000
"""Unknowns up to which curvatures are summed to look for directions; beyond that the answer itself is looked at."""


@dataclass(frozen=True)
class Separated:
    """What the proof says."""

    column: int
    """Which decides: the largest of the direction, in units of the columns' pooled sizes."""
    output: int
    """Of several classes, whose coefficient of it grows."""
    rows: tuple[int, ...]
    """Of each class, that are told apart; the others lie on neither side."""
    penalised: bool
    """If only just."""

    def sentence(self, columns: Sequence[str], classes: Sequence[str] | None, coefficients: Tensor) -> str:
        names = [f"class {name}" for name in classes or range(len(self.rows))]
        told = [f"{rows:,} of {shortened(name, 30)}" for rows, name in zip(self.rows, names, strict=True) if rows]
        value = coefficients.reshape(-1, len(columns))[self.output, self.column]
        why = "the penalty, small as it is, stops it. Give a larger one" if self.penalised else "the fit stopped. Add a penalty"
        return (
            f"the classes are separated in part: some combination of columns, above all {shortened(columns[self.column], 40)!r}, "
            f"tells rows apart without a mistake ({' and '.join(told)}), so without a penalty its coefficient grows for ever. "
            f"It is {float(value):.3g} only because {why}, or leave out the column."
        )


@torch.no_grad()
def separated(
    problem: Sampled, x: Point, observer: Observer, *, unit: float, tolerance: float, n: int
) -> Separated | None:  # fmt: skip
    """A proof that the loss falls for ever from x, if one is found; the same at every process. The objective without features is
    `unit`, x was found to this tolerance, and the network has n nodes."""
    if problem.attained or problem.weights is None or not bool(torch.isfinite(x).all()):
        return None
    features = x[: problem.d - problem.reg.unpenalized]
    penalty = float(in_order(problem.reg.penalized.each(features)))  # the same in every process, like x and the unit
    if penalty > NEGLIGIBLE * unit:
        return None
    counted, certainty = problem.weights > 0, min(MOST_CERTAIN, max(LEAST, -math.log(tolerance) / 2))
    certain = counted & (problem.margin(problem.predict(problem.everywhere(x))) > certainty)
    if float(_counts(problem, [certain], n, observer)) == 0:
        return None
    for way in _directions(problem, x, certain, observer):
        margin = problem.margin(problem.predict(problem.everywhere(way)))
        nothing = ROUNDING * way.norm() * problem.d**0.5
        apart = counted & (margin > CLEAR * nothing)
        classes = problem.b.unbind(-1) if problem.outputs else (1 - problem.b, problem.b)
        wrong, *rows = _counts(
            problem, [counted & (margin < -nothing), *(apart & (c == 1) for c in classes)], n, observer
        ).tolist()
        if wrong == 0 and sum(rows) > 0:
            features = way[: len(way) - problem.reg.unpenalized]
            column, output = divmod(int(features.abs().argmax()), len(classes) if problem.outputs else 1)
            return Separated(column, output, tuple(map(round, rows)), penalty > 0)
    return None


def _counts(problem: Sampled, which: Sequence[Tensor], n: int, observer: Observer) -> Tensor:
    """How many samples of all sites these are."""
    own = [problem.by_node(each.to(problem.dtype)) * problem.samples for each in which]
    return (observer.mean(torch.stack(own, dim=-1), dim=-2) * n).round()


def _directions(problem: Sampled, x: Point, certain: Tensor, observer: Observer) -> list[Point]:
    """What of x lies in directions along which samples that are not certain bend nothing; agreed upon, so that all look at the
    same."""
    if problem.d > MOST:
        return [x]
    assert problem.weights is not None
    others = problem.reweighed(problem.weights * ~certain)
    H = unpack(observer.mean(others.hessian_from(others.look(others.everywhere(x))), dim=-2), problem.d)
    values, vectors = torch.linalg.eigh(H)
    flat = [vectors[:, values <= limit * values[-1]] for limit in VANISHED]
    return [observer.agreed(part @ (part.mT @ x)) for part in flat]
