"""The second stage of a fit: the problem in variables of its own, the same at all sites."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from milodo.errors import InvalidInput
from milodo.fit.pooled import Scaling, pooled_problem, scaling, total_of
from milodo.fit.request import Request
from milodo.fit.scales import OddScale, odd_scales
from milodo.problems.sampled import Sampled
from milodo.types import NodeTensor


@dataclass(frozen=True)
class ScaledProblem:
    """What all sites know before a method is chosen."""

    scaling: Scaling
    odd: tuple[OddScale, ...]
    """Columns that are not in the same units everywhere, as it seems."""
    problem: Sampled
    start: NodeTensor
    """No feature, and the intercepts that are best then, which every node knows already."""


def scale(request: Request) -> ScaledProblem:
    """By sums of counts, means and sizes; says what may be wrong with the data."""
    task, samples = request.task, request.samples
    if task.loss == "softmax" and samples.targets[0].ndim != 2:
        raise InvalidInput(
            "the softmax loss takes classes as columns of 0 and 1. Use the logistic loss for two classes, and milodo.sklearn, "
            "which makes the columns, for more.",
            "loss",
        )
    total = total_of(request.net, reliable=task.links == "reliable")
    centre = task.intercept or task.standardise
    found = scaling(samples.features, samples.targets, total, centre=centre, weights=samples.weights)
    odd = odd_scales(samples.features, found, request.net, request.observer, samples.weights)
    for each in odd:
        request.caution(each.sentence(samples.sites, samples.columns))
    return under_penalty(request, found, odd)


def under_penalty(request: Request, known: Scaling, odd: tuple[OddScale, ...]) -> ScaledProblem:
    """With the penalty that is asked for, where sums of the data are known: nothing is sent."""
    task, samples = request.task, request.samples
    known = known if task.standardise else known.against(task.l2)
    reg = known.penalty(task.l1, task.l2, standardise=task.standardise)
    problem = pooled_problem(
        task.loss, samples.features, samples.targets, known, reg,
        n=request.net.topology.n, intercept=task.intercept, weights=samples.weights,
    )  # fmt: skip
    return ScaledProblem(known, odd, problem, start_of(problem, known))


def start_of(problem: Sampled, known: Scaling) -> NodeTensor:
    """Where fits begin."""
    start, intercepts = problem.start(), problem.reg.unpenalized
    if intercepts and not problem.translates:  # where targets are centred, it is 0
        start = torch.cat((start[..., :-intercepts], problem.constant(known.target)), dim=-1)
    return start
