"""The best constants in the paper's rule, with momentum or without, in the units of MiLoDo: where its training begins.

    python tools/constants.py EXPERIMENT [EXPERIMENT ...]
    python tools/constants.py --paper EXPERIMENT     without momentum (alpha = 1)

p_i = γ/L_i, β = 1 - α, D_i = γ c_u/(c_s L_i), p_ij,1 = min(1/D_i, 1/D_j) c_u w_ij/2 and p_ij,2 = D_i p_ij,1, annealed as MiLoDo
anneals (milodo/learned/weights.py), within its region. An evolution on a logarithmic scale over tuning instances of the
experiment's training problems makes the mean of log10(iterations to each of its `validation_gaps`) small. Minutes of one core.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from milodo.algorithms.parameters import Space
from milodo.algorithms.rule import Here, Ratio, Rule, WeightProvider
from milodo.bench.recorder import sample_times
from milodo.config import load_experiment
from milodo.learned.milodo import ANNEAL_AFTER, MiLoDoRecipe
from milodo.learned.region import SMALLEST_DEEPEST, Region, mixing_bound, mixing_gap
from milodo.learned.schedule import MOST_ANNEALED
from milodo.loop import advance, iterate
from milodo.metrics import mean_point
from milodo.network import Network, StackedObserver
from milodo.network.exchange import Gossip
from milodo.problems import Problem, instance_seeds, optimum
from milodo.training.problem_set import training_families
from milodo.types import EdgeTensor, NodeTensor, Step

NAMES = ("gamma", "alpha", "c_s", "c_u")
START = {"gamma": 1.4, "alpha": 0.15, "c_s": 0.3, "c_u": 1.6}
SPREAD = np.array([0.4, 1.0, 1.0, 0.2])
"""Standard deviations of the first generation, of logarithms."""
POPULATION, ELITE, GENERATIONS = 20, 5, 14
PUSHED = np.array([1.1, 1, 1, 1])
"""Candidates are judged with a tenth more gamma, so that what is proposed has that to spare."""
LARGEST, NEAR = 0.95, 1.2
"""Of the largest c_s/c_u that the region allows; and the spread of MiLoDo's region."""
INSTANCES, OF_MANY_NODES, MANY, FEW = 6, 2, 20, 3
"""Instances; where there are more nodes than 20; and shapes at most."""
GAPS = (1e-1, 1e-2, 1e-3, 1e-5)


@dataclass(frozen=True)
class Constant(WeightProvider):
    """Constants in units of 1/L_i, each a tensor over candidates [C, 1, ..., 1]."""

    gamma: Tensor
    alpha: Tensor
    c_s: Tensor
    c_u: Tensor

    def start(self, x0: NodeTensor, problem: Problem, net: Network, exchange: Gossip) -> tuple[int, Tensor]:
        return 1, problem.lipschitz().unsqueeze(-1)

    def _annealed(self, memory: Any) -> float:
        return min(max(memory[0] / ANNEAL_AFTER, 1.0), MOST_ANNEALED)

    def beta(self, memory: Any) -> Step:
        return 1 - self.alpha / self._annealed(memory)

    def primal(self, memory: Any, here: Here, problem: Problem) -> tuple[Step, Any]:
        return self.gamma / memory[1], memory

    def edges(self, memory: Any, dz: EdgeTensor, net: Network, exchange: Gossip) -> tuple[EdgeTensor, Ratio, Any]:
        k, L = memory
        D = self.gamma * self.c_u / self.c_s / L * self._annealed(memory)
        p1 = net.both((1 / net.spread(D)).expand(*dz.shape[:-1], 1).contiguous(), smaller=True) * self.c_u * net.w / 2
        return p1, Ratio(D), (k + 1, L)


@dataclass(frozen=True)
class Candidates(Rule):
    """The rule with the constants of all candidates side by side."""

    constants: Constant
    space: ClassVar[Space] = {}

    @property
    def weights(self) -> WeightProvider:
        return self.constants


@dataclass(frozen=True)
class Case:
    """Instances of one problem on the experiment's network."""

    problem: Problem
    net: Network
    iterations: int
    gaps: tuple[float, ...]
    best: Tensor

    @torch.no_grad()
    def costs(self, candidates: np.ndarray) -> Tensor:
        """log10 of the iterations to each gap [gaps, C, instances]; twice the budget where one is not reached."""
        like = self.problem.zeros()
        columns = [like.new_tensor(v).reshape(-1, *[1] * like.ndim) for v in candidates.T]
        method, start = Candidates(Constant(*columns)), self.problem.start()
        state = next(iterate(method, self.problem, self.net, x0=start.expand(len(candidates), *start.shape)))
        k, first = 0, torch.full((len(self.gaps), len(candidates), len(self.best)), 2.0 * self.iterations)
        for looked_at in sample_times(self.iterations, 60)[1:]:
            while k < looked_at:
                k += 1
                state = advance(method, state, self.problem, self.net, k)
            gap = self.problem.objective(mean_point(state.x, StackedObserver()), StackedObserver()) - self.best
            for at, aim in zip(first, self.gaps, strict=True):
                at[(gap <= aim) & (at > self.iterations)] = float(looked_at)
            gone = ~(gap < 1e9)
            if bool(gone.any()):  # nan is slow, and never comes back
                state = state._replace(
                    x=torch.where(gone[..., None, None], 0.0, state.x), y=torch.where(gone[..., None, None], 0.0, state.y)
                )
                first[:, gone] = 2.0 * self.iterations
            if float(first.max()) <= self.iterations:
                break
        return first.log10()


def cases(name: str, instances: int, first: int) -> list[Case]:
    experiment = load_experiment(name)
    table = experiment.training
    assert table is not None
    families = training_families(experiment)
    if len(families) > FEW:
        families = [families[k] for k in (0, 1, len(families) - 1)]
    gaps, found = tuple(table.validation_gaps or GAPS), []
    for family in families:
        sampled = family.sample(instance_seeds("tuning", first + instances, experiment.seed)[first:])
        net = experiment.network.network(seed=experiment.seed, dtype=torch.float64)
        found.append(Case(sampled, net, table.validation_iterations, gaps, optimum(sampled).value))
    return found


def score(own: list[Case], candidates: np.ndarray) -> np.ndarray:
    return np.mean([case.costs(candidates).mean((0, 2)).numpy() for case in own], axis=0)


def search(name: str, paper: bool) -> None:
    instances = INSTANCES if load_experiment(name).problem.n <= MANY else OF_MANY_NODES
    own, other = cases(name, instances, 0), cases(name, instances, instances)
    net, recipe = own[0].net, recipe_of(name)
    most = float((2 * mixing_bound(net.topology, recipe.deepest) / net.w64).min())
    edge = Region(0.9, 1.0, NEAR, mixing_gap(net.topology, recipe.deepest) / NEAR, recipe.deepest, recipe.steepest)
    rng, mean, spread = np.random.default_rng(0), np.log([START[name] for name in NAMES]), SPREAD
    tried: list[tuple[float, tuple[float, ...]]] = []
    for _ in range(GENERATIONS):
        drawn = np.exp(mean + spread * rng.standard_normal((POPULATION, len(NAMES))))
        drawn[:, 3] = drawn[:, 3].clip(0.3, most)
        drawn[:, 1:3] = within(drawn, edge, most) if not paper else np.stack([np.ones(POPULATION), drawn[:, 2]], axis=1)
        scores = score(own, drawn * PUSHED)
        order = np.argsort(scores)[:ELITE]
        tried += [(float(scores[k]), tuple(drawn[k])) for k in range(POPULATION)]
        mean = 0.5 * mean + 0.5 * np.log(drawn[order]).mean(0)
        spread = 0.6 * spread + 0.5 * np.log(drawn[order]).std(0)
    print(f"{name}: c_u at most {most:.4g}; log10 iterations with a tenth more gamma, and as they are on other instances")
    for pushed, constants in sorted(tried)[:3]:
        values = ", ".join(f"{n} = {v:.4g}" for n, v in zip(NAMES, constants, strict=True))
        found = [case.costs(np.array([constants])) for case in other]
        held = np.mean([float(at.mean()) for at in found])
        medians = "; ".join(" / ".join(f"{10**v:.0f}" for v in at.squeeze(1).median(-1).values.tolist()) for at in found)
        print(f"  {values}: {pushed:.4f}, {held:.4f}, medians {medians}", flush=True)


def recipe_of(name: str) -> MiLoDoRecipe:
    """What the experiment trains."""
    table = load_experiment(name).training
    assert table is not None and isinstance(table.optimizer, MiLoDoRecipe)
    return table.optimizer


def within(drawn: np.ndarray, edge: Region, most: float) -> np.ndarray:
    """alpha and c_s as the region wants them, at the largest c_u."""
    c_s = drawn[:, 2].clip(0, LARGEST * edge.largest * drawn[:, 3])
    least = []
    for s, c_u in zip(c_s / drawn[:, 3], drawn[:, 3], strict=True):
        share = c_u / most
        region = replace(edge, gap=edge.gap * share, deepest=max(edge.deepest * share, SMALLEST_DEEPEST))
        least.append(float(region.least_alpha(torch.tensor(s, dtype=torch.float64))))
    return np.stack([np.maximum(drawn[:, 1], least).clip(0.01, 1), c_s], axis=1)


def main() -> None:
    torch.set_num_threads(1)
    names = [word for word in sys.argv[1:] if word != "--paper"]
    if not names:
        sys.exit(__doc__)
    for name in names:
        search(name, "--paper" in sys.argv)


if __name__ == "__main__":
    main()
