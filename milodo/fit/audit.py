"""Whether each site's numbers can be what they are said to be: a site whose gradients do not belong to its objective is named.

Every f_i is convex, so along a line its values lie between what its slopes at both ends say. A site looks at its own numbers,
from where the fit began to its answer and a step beyond it, and tells the others one number: whether they can be.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from milodo.errors import FaultyNode
from milodo.network import Network, Observer
from milodo.network.checked import is_moderate
from milodo.problems.sampled import Sampled
from milodo.types import Point

PARTS = 4
"""Of the way to the answer, and of the step beyond it: the more, the nearer values and slopes have to agree."""
ROUNDING = 1e-7
"""Of the numbers that are compared."""


@torch.no_grad()
def refuse_faulty(wrong: bool, net: Network, observer: Observer) -> None:
    """All processes end with FaultyNode, those that found their own sums contradict each other and the others."""
    each = torch.zeros(net.n, net.topology.n, dtype=torch.float64)
    each[range(net.n), list(net.nodes)] = float(wrong)
    named = torch.nonzero(observer.mean(each, dim=-2)).flatten().tolist()
    others = f" (and so do nodes {', '.join(map(str, named[1:]))})" if len(named) > 1 else ""
    raise FaultyNode(
        named[0],
        "contradicts itself: its gradients do not belong to its objective, or are no numbers, so its process computes wrongly"
        f"{others}. Check that machine; no model was saved",
    )


def contradicts(problem: Sampled, first: Point, answer: Point) -> bool:
    """Whether values and slopes of the nodes held here, of which each f_i is convex, cannot both be right."""
    if not (is_moderate(answer) and is_moderate(problem.b)):  # it diverged, or squares overflow: nothing can be said then
        return False
    beyond = torch.from_numpy(np.random.default_rng(0).standard_normal(len(answer))).to(answer)
    size = (answer - first).norm() / beyond.norm()
    beyond = beyond * (size if size > 0 else 1.0)
    return any(_breaks(problem, start, way) for start, way in ((first, answer - first), (answer, beyond)))


def _breaks(problem: Sampled, start: Point, way: Point) -> bool:
    """Where f is convex, (t' - t) φ'(t) <= φ(t') - φ(t) <= (t' - t) φ'(t') with φ(t) = f(start + t way)."""
    found = [_along(problem, start + t / PARTS * way, way) for t in range(PARTS + 1)]
    for (low, slope, size), (high, steeper, larger) in itertools.pairwise(found):
        rounding = ROUNDING * torch.maximum(size, larger)
        rise = PARTS * (high - low)
        if not bool(((slope - rounding <= rise) & (rise <= steeper + rounding)).all()):  # also where one of them is NaN
            return True
    return False


def _along(problem: Sampled, x: Point, way: Point) -> tuple[Tensor, Tensor, Tensor]:
    """φ, φ' and of what size the numbers are that they are made of [n]."""
    value, grad = problem.value_and_grad_from(problem.look(problem.everywhere(x)))
    terms = grad * way
    return value, terms.sum(-1), PARTS * value.abs() + terms.abs().sum(-1) + math.ulp(0.0)
