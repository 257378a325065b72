"""The best constants in the paper's rule without momentum: where special initialisation of MiLoDo should start.

    python benchmarks/constants.py EXPERIMENT        on the tuning instances of its problem and graph; about three minutes

p_i = γ, p_ij,1 = c_s w_ij/(2γ), p_ij,2 = c_u w_ij/2 (milodo/algorithms/lepdo.py with alpha = 1) over a whole grid, because the
large steps converge only where c_s is small and c_u near 2: a coordinate-wise search never finds them. What is fastest to the
target is proposed if a tenth more γ works, too, on every tuning instance.
"""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import torch

from milodo.algorithms import LEPDO
from milodo.bench.recorder import sample_times
from milodo.bench.tuning import GROUP_NUMBERS, MARGIN, _Group
from milodo.config import load_experiment
from milodo.judge import Judge
from milodo.network import StackedObserver
from milodo.problems import instance_seeds, optimum

STEPS = np.geomspace(1.5, 7, 8)
"""γ in units of 1/L."""
DUAL = (0.2, 0.5, 1.0, 2.0, 3.0)
MIXING = (1.0, 1.4, 1.8, 2.2)
TARGET = 1e-2

Candidate = dict[str, float]


def search(name: str, instances: int = 6, iterations: int = 800) -> list[tuple[float, float, Candidate]]:
    """(iterations to the target, mean gap at the end, constants), best first; those whose γ x 1.1 diverges are left out."""
    experiment = load_experiment(name)
    table, problem = experiment.training, experiment.problem
    if table is not None:
        problem = problem.model_copy(update={"d": table.d or problem.d, "N": (table.N or [problem.N])[0]})
    sampled = problem.build().sample(instance_seeds("tuning", instances, experiment.seed))
    net = experiment.network.network(seed=experiment.seed, dtype=torch.float64)
    unit, best = 1 / float(sampled.lipschitz().max()), optimum(sampled).value
    target = TARGET * float(best.abs().mean().clamp(max=1))
    grid = [{"gamma": float(a * unit), "c_s": s, "c_u": u} for a, s, u in itertools.product(STEPS, DUAL, MIXING)]
    print(f"{name}: 1/L = {unit:.4g}, target {target:.1e}, {len(grid)} candidates on {instances} tuning instances")

    def run(candidates: list[Candidate]) -> list[tuple[float, float, Candidate]]:
        judge = Judge(sampled, StackedObserver(), steps=iterations)
        size = max(1, GROUP_NUMBERS // sampled.zeros().numel())
        found = []
        for part in (candidates[start : start + size] for start in range(0, len(candidates), size)):
            group = _Group(lambda own: LEPDO(**own), sampled, net, {"alpha": 1.0}, part)
            for k in sample_times(iterations, 40):
                group.advance(k)
                group.look(best, judge)
            for candidate, seen in zip(part, group.gaps, strict=True):
                crossed = (k for k, gap in seen if gap <= target)
                found.append((next(crossed, math.inf), seen[-1][1], candidate))
        return found

    front = [row for row in sorted(run(grid), key=lambda row: row[:2]) if math.isfinite(row[1])][:24]
    pushed = run([{**candidate, "gamma": candidate["gamma"] * MARGIN} for _, _, candidate in front])
    return [row for row, push in zip(front, pushed, strict=True) if push[1] <= 2 * max(row[1], target)]


def main() -> None:
    torch.set_num_threads(1)
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with torch.no_grad():
        for k, gap, constants in search(sys.argv[1])[:8]:
            said = ", ".join(f"{name} = {value:.4g}" for name, value in constants.items())
            print(f"  {said}: {k:,.0f} iterations, then {gap:.1e}" if math.isfinite(k) else f"  {said}: a mean gap of {gap:.1e}")


if __name__ == "__main__":
    main()
