"""Evolution strategies: the meta-gradient from the losses of whole runs, where truncated gradients see too little."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice

import torch

from milodo.learned import Learned
from milodo.loop import iterate
from milodo.network import Network, Observer
from milodo.problems import Problem
from milodo.problems.base import stream
from milodo.training.loss import MetaLoss
from milodo.types import Point

DIRECTIONS = 1 << 37
"""Stands in a stream's key for: the directions in which weights are moved."""
WORST = 1.0
"""A run that ends above where it began, or is no longer finite, counts as so much above its beginning."""


@torch.no_grad()
def whole_run(
    optimizer: Learned, problem: Problem, net: Network, loss: MetaLoss, best: Point | None, K: int, looks: int, observer: Observer
) -> float:
    """The mean of the meta-loss over the last of each K/looks iterations; every look counts at most as much as the start, and one
    more."""
    total = most = 0.0
    every = max(1, K // looks)
    for k, state in enumerate(islice(iterate(optimizer, problem, net), K + 1)):
        if k % every:
            continue
        # Where iterations have minibatches, on the next one: the iterate has not seen it.
        value = float(loss(state.x, problem.at_step(k + 1), best, observer))
        if k == 0:
            most = value + WORST
            continue
        if not math.isfinite(value) or value > most:
            return (total + most * (K // every - k // every + 1)) / (K // every)
        total += value
    return total / (K // every)


@torch.no_grad()
def estimate(optimizer: Learned, run: Callable[[], float], key: tuple[int, ...], pairs: int, sigma: float) -> float:
    """Puts the estimate of the meta-gradient where backpropagation would, and returns the mean loss of its runs:

    g = 1/(2σP) Σ_p (L(θ + σε_p) - L(θ - σε_p)) ε_p,   ε_p from N(0, 1), keyed
    """
    parameters = [parameter for parameter in optimizer.parameters() if parameter.requires_grad]
    here, draws = [parameter.clone() for parameter in parameters], stream(*key, DIRECTIONS)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    total = 0.0
    for _ in range(pairs):
        steps = [torch.from_numpy(draws.standard_normal(tuple(p.shape))).to(p.dtype) for p in parameters]
        losses = []
        for sign in (sigma, -sigma):
            for parameter, at, step in zip(parameters, here, steps, strict=True):
                parameter.copy_(at + sign * step)
            losses.append(run())
        total += sum(losses)
        for parameter, step in zip(parameters, steps, strict=True):
            assert parameter.grad is not None
            parameter.grad.add_(step, alpha=(losses[0] - losses[1]) / (2 * sigma * pairs))
    for parameter, at in zip(parameters, here, strict=True):
        parameter.copy_(at)
    return total / (2 * pairs)
