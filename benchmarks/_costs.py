"""What methods need to reach a gap on unseen instances, in iterations, rounds and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from milodo.algorithms import Algorithm, Remembering
from milodo.algorithms.auto import Facts, gossips, learn, made
from milodo.bench.recorder import Limits, Recorder, record
from milodo.bench.speedup import cost_to_reach, quantile
from milodo.network import Network, StackedNetwork, StackedObserver
from milodo.problems import Problem, optimum

AXES = ("k", "rounds", "bytes")


def gossip(facts: Facts, net: Network, d: int) -> Remembering:
    """What auto takes for bytes if it may not sum over a tree."""
    found = made(min(gossips("bytes", facts, net, d, None), key=lambda candidate: candidate.cost("bytes")).parameters)
    assert isinstance(found, Remembering)
    return found


@dataclass
class Costs:
    """By axis, gap and instance; inf where a gap was not reached."""

    needed: dict[str, list[list[float]]]

    def quartiles(self, axis: str, gap: int) -> tuple[float, float, float]:
        """The quarter, the median and three quarters of what the gap of that number cost."""
        each = self.needed[axis][gap]
        return quantile(each, 0.25), quantile(each, 0.5), quantile(each, 0.75)

    def median(self, axis: str, gap: int) -> float:
        return self.quartiles(axis, gap)[1]


class Instances:
    """Unseen instances with certified optima, and gaps [*batch] to reach on them."""

    def __init__(self, problem: Problem, seeds: Sequence[int]) -> None:
        self.problem, self.seeds = problem, seeds
        found = optimum(problem)
        assert bool(found.certified.all())
        self.best = found.value

    def gaps_of_start(self, fractions: Sequence[float]) -> list[torch.Tensor]:
        """Fractions of the gap at the start."""
        first = self.problem.objective(self.problem.start()[..., 0, :], StackedObserver())
        return [fraction * (first - self.best) for fraction in fractions]

    def costs(
        self, algorithm: Algorithm, net: StackedNetwork, gaps: Sequence[torch.Tensor | float], *, most: int, learns: bool = False
    ) -> Costs:
        """Of a method; with what nodes tell each other before they choose it, where they learn."""
        wanted = [torch.as_tensor(gap, dtype=self.best.dtype).expand_as(self.best) for gap in gaps]
        recorder = Recorder(algorithm.label, self.problem, net, self.best, self.seeds, 0)
        if learns:
            learn(self.problem, net)
        limits = Limits(iterations=most, stop_gap=0.99 * float(wanted[-1].min()), samples_per_decade=40)
        record(algorithm, self.problem, net, recorder, limits)

        def cost(axis: str, gap: torch.Tensor) -> list[float]:
            each = [cost_to_reach(rows, least, axis) for rows, least in zip(recorder.rows, gap.tolist(), strict=True)]
            return [math.inf if math.isnan(value) else value for value in each]

        return Costs({axis: [cost(axis, gap) for gap in wanted] for axis in AXES})
