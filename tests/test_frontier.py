"""Where the frontier really is on LASSO(10,300,10,0.1), ring, fp64: what tuning must find, on instances it has not seen."""

from __future__ import annotations

import math

import pytest
import torch

from milodo.algorithms import DAPG, ProxED
from milodo.bench.tuning import Search, tune
from milodo.loop import iterate
from milodo.metrics import mean_point
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import Lasso, instance_seeds, optimum

FAMILY = Lasso(10, 300, 10, 0.1)
OBSERVER = StackedObserver()


@pytest.fixture(scope="module")
def tuning_set():
    problem = FAMILY.sample(instance_seeds("tuning", 2))
    return problem, optimum(problem).value


@pytest.fixture(scope="module")
def unseen():
    problem = FAMILY.sample(instance_seeds("test", 4))
    return problem, optimum(problem).value


@torch.no_grad()
def iterations_to(algorithm, unseen, targets, limit, every=10):
    """First k, in tens, at which the mean gap over the instances is below each target."""
    problem, best = unseen
    hit = dict.fromkeys(targets, math.inf)
    for k, state in zip(range(limit + 1), iterate(algorithm, problem, StackedNetwork("ring(10)")), strict=False):
        if k % every == 0:
            gap = float((problem.objective(mean_point(state.x, OBSERVER), OBSERVER) - best).mean())
            hit = {target: min(at, k) if gap <= target else at for target, at in hit.items()}
            if max(hit.values()) < math.inf:
                break
    return hit


def test_tuned_prox_ed_reaches_1e_3_in_fewer_than_9000_iterations(tuning_set, unseen):
    search = Search(target=1e-3, iterations=1000, points=7, refinements=2)
    found = tune(ProxED, *_on_ring(tuning_set), search)
    assert iterations_to(ProxED(**found.best), unseen, [1e-3], 9000)[1e-3] < 9000


def test_tuned_dapg_reaches_1e_3_in_fewer_than_320_and_1e_7_within_2500_iterations(tuning_set, unseen):
    search = Search(target=1e-3, iterations=400, points_each=4, refinements=1)
    found = tune(DAPG, *_on_ring(tuning_set), search)
    hit = iterations_to(DAPG(**found.best), unseen, [1e-3, 1e-7], 2500)
    assert hit[1e-3] < 320
    assert hit[1e-7] <= 2500


def _on_ring(tuning_set):
    problem, best = tuning_set
    return problem, StackedNetwork("ring(10)"), best
