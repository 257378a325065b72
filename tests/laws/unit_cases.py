"""Problems in other units, and one process of several that runs them for real.

python unit_cases.py OUT CASES, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; rank 0 writes what it found to OUT.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import torch

from milodo.algorithms import METHODS
from milodo.loop import Stop, solve
from milodo.metrics import mean_point
from milodo.network import DistributedNetwork, TreeObserver
from milodo.problems import (
    L1,
    Box,
    ElasticNet,
    Lasso,
    LeastSquares,
    LinearModel,
    NonNegative,
    Reference,
    Regularizer,
    Zero,
    optimum,
)
from milodo.runtime.group import joined

SMALL = {"prox-ed": {"gamma": 0.5}, "pg-extra": {"gamma": 0.5}, "dapg": {"eta": 0.5, "alpha": 0.3, "K": 2}}
"""Steps in units of 1/L."""


def in_units(reg: Regularizer, target: float, feature: float) -> Regularizer:
    """r for targets and features this many times larger: x is target / feature times larger, the objective target²."""
    x = target / feature
    kinds = {
        Zero: lambda r: r,
        L1: lambda r: L1(r.lam * target * feature),
        ElasticNet: lambda r: ElasticNet(r.lam * target * feature, r.mu * feature**2),
        Box: lambda r: Box(r.low * x, r.high * x),
        NonNegative: lambda r: NonNegative(r.lam * target * feature),
    }
    return kinds[type(reg)](reg)


def rescaled(problem: LinearModel, reg: Regularizer, target: float, feature: float) -> LinearModel:
    return type(problem)(problem.A * feature, problem.b * target, in_units(reg, target, feature))


@cache
def in_ordinary_units(problem: LinearModel, reg: Regularizer) -> Reference:
    return optimum(LeastSquares(problem.A, problem.b, reg))


def certified_and_wrong(problem: LinearModel, reg: Regularizer, feature: float, target: float) -> bool:
    """Whether any instance says it is solved while its x, back in ordinary units, is not the optimum."""
    right = in_ordinary_units(problem, reg)
    found = optimum(rescaled(problem, reg, target, feature))
    off = (found.x / target * feature - right.x).norm(dim=-1) > 1e-6 * right.x.norm(dim=-1)
    return bool((found.certified & off).any())


def runs(cases, place) -> list[dict]:
    """k, status and x in ordinary units of every method, for every (target, feature)."""
    found = []
    for target, feature in cases:
        net, observer = place()
        problem = rescaled(Lasso(3, 5, 12, 0.1).sample([0], nodes=net.nodes), L1(0.1), target, feature)
        largest = float(Lasso(3, 5, 12, 0.1).sample([0]).lipschitz().max()) * feature**2
        case = {}
        for name, steps in SMALL.items():
            method = METHODS[name](**{k: v / largest if k in ("gamma", "eta") else v for k, v in steps.items()})
            result = solve(method, problem, net, Stop(steps=1000, tolerance=1e-8, every=7), observer=observer)
            x = mean_point(result.x, observer) / target * feature
            case[name] = [result.k, result.status.name, x.flatten().tolist()]
        found.append(case)
    return found


def main() -> None:
    torch.set_num_threads(1)
    with joined(60) as group:

        def place():
            net = DistributedNetwork("ring(3)", timeout=60)
            return net, TreeObserver(net.peers, 3)

        found = runs(json.loads(sys.argv[2]), place)
        place()[1].barrier()
    if group.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
