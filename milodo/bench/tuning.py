"""Fair tuning: every parameter of every method, on instances that are never tested on.

All candidates of a grid run side by side in batches (a step size may be a tensor), until the first of them reaches the target
or the iterations are used up; then a finer grid around the best, a few times over. The best few run on until each has its own
cost, and the cheapest of them that still works with larger steps is taken. Where no optimum is known there is no gap to reach:
all candidates run to the end, and the lowest mean loss of the average model wins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from milodo.algorithms import Algorithm, Choice, Continuous
from milodo.bench.recorder import sample_times
from milodo.bench.run_file import LOSS, TuningFacts
from milodo.config.tables import TuningTable
from milodo.loop import advance, iterate
from milodo.network import Network, StackedObserver
from milodo.problems import Problem
from milodo.stopping import StoppingCriterion
from milodo.tree import selected

Parameters = dict[str, Any]
Make = Callable[[Mapping[str, Any]], Algorithm]
"""A method from its parameters."""
Progress = Callable[[float], None]
"""Called with the fraction that is done."""
Search = TuningTable
"""How hard to look, and for what."""


@dataclass(frozen=True)
class Trial:
    """One candidate and what became of it."""

    parameters: Parameters
    score: float
    """Cost to the target; where it was not reached, the whole budget times 1 + log10(gap/target); inf if it diverged. Without an
    optimum, the loss at the end."""
    reached: bool
    gap: float
    """Mean gap when the trial ended; mean loss where no optimum is known."""
    diverged: bool


@dataclass
class Tuning:
    """The best parameters of a method, and everything that was tried."""

    best: Parameters
    score: float
    reached: bool
    trials: list[Trial] = field(default_factory=list)
    by_loss: bool = False
    """Whether the loss decided, because no optimum is known."""

    def to_json(self) -> dict[str, Any]:
        """As run.json says it, where what is infinite is missing."""
        grid = [vars(trial) for trial in self.trials]
        facts = TuningFacts.model_validate({**vars(self), "candidates": len(grid), "grid": grid})
        found = facts.model_dump(include={"best", "score", "reached", "candidates", "grid"})
        return found | ({"cost": LOSS} if self.by_loss else {})


GROUP_NUMBERS = 2**17
"""Size of one state tensor in a batched run. More candidates make more groups, which advance in turn: a group whose tensors
fit the processor's cache steps 1.3 times faster per candidate (benchmarks/step.py choices)."""
FEW = 4
"""Grid points of each parameter where there are more than two."""
EXTENSIONS = 4
"""How often the grid grows beyond an edge on which the best sits."""
FRONT = 16
"""Best trials whose sturdiness is looked at."""
MARGIN = 1.1
"""By how much larger their step sizes must still work."""
TIMES_PER_DECADE = 40
"""How finely the cost to the target is resolved, before interpolation."""
LOOKS_PER_DECADE = 2
"""Where only the loss at the end counts, looks are for divergence, and those at networks are costly."""
FEW_LOSSES = 3
"""FRONT, where every trial runs to the end."""


@torch.no_grad()
def tune(
    method: type[Algorithm], problem: Problem, net: Network, optimum: torch.Tensor | None, search: Search,
    *, fixed: Parameters | None = None, make: Make | None = None, start: Parameters | None = None, beat: float = math.inf,
    progress: Callable[[float, str], None] | None = None,
) -> Tuning:  # fmt: skip
    """The parameters with which `method` reaches the target soonest on `problem`, whose optimal values are given; without them,
    the parameters with the lowest loss in the end. `make` makes the method from its parameters, where it is to be one with short
    messages, say. The result is never worse than `start`, e.g. the best parameters of the method with full messages. What costs
    more than `beat`, a score that is known from elsewhere, is not run on."""
    fixed = dict(fixed or {})
    kinds = {name: kind for name, kind in method.space.items() if name not in fixed}
    free = {name: kind for name, kind in kinds.items() if isinstance(kind, Continuous)}
    changes = net.schedule is not None
    widest = 2 / math.sqrt(1 - net.contraction) if search.wide and not changes and net.contraction < 1 else 0
    whole = {name: kind.up_to(widest) for name, kind in kinds.items() if isinstance(kind, Choice)}
    if changes and "K" in whole:  # more rounds than one are made for the spectrum of one graph
        whole["K"] = (1,)
    choices = [fixed | dict(zip(whole, values, strict=True)) for values in itertools.product(*whole.values())]
    steps = [name for name, kind in free.items() if kind.relative]
    unit = search.unit
    if steps and problem.knows_lipschitz:
        unit = 1 / float(problem.lipschitz().max())  # the largest L of any node and instance
    points = {1: search.points, 2: search.points_each}.get(len(free), FEW)
    grids = {name: kind.grid(points, unit if kind.relative else 1.0) for name, kind in free.items()}
    ratio = {name: float(grid[1] / grid[0]) for name, grid in grids.items()}
    trials = _Trials(make or (lambda parameters: method(**parameters)), problem, net, optimum, search, beat)
    stages = 1 + (search.refinements if free else 0)
    if start is not None:
        trials.run_start(start, list(free))

    def run(grids: dict[str, np.ndarray], stage: int) -> None:
        for number, choice in enumerate(choices):

            def report(fraction: float, number: int = number) -> None:
                if progress:
                    progress((stage + (number + fraction) / len(choices)) / stages, f"refinement {stage}" if stage else "grid")

            trials.run_grid(choice, grids, report)

    run(grids, 0)
    for _ in range(EXTENSIONS):
        beyond = _beyond(trials.best, grids, ratio, free)
        if not beyond:
            break
        for name, more in beyond.items():
            run({**grids, name: more}, 0)
            grids[name] = np.sort(np.concatenate([grids[name], more]))
    for stage in range(1, stages):
        best = trials.best
        if best.diverged:
            break
        # Five points from one old neighbour of the best to the other, or three of them: the spacing halves each time.
        ratio = {name: r**0.5 for name, r in ratio.items()}
        reach = 2 if len(free) <= 2 else 1
        around = {name: best.parameters[name] * ratio[name] ** np.arange(-reach, reach + 1.0) for name in free}
        choices = [{name: value for name, value in best.parameters.items() if name not in free}]
        run({name: kind.allowed(around[name]) for name, kind in free.items()}, stage)
    best = trials.sturdiest(steps, list(free))
    return Tuning(best.parameters, best.score, best.reached, trials.done, by_loss=optimum is None)


def _beyond(
    best: Trial, grids: dict[str, np.ndarray], ratio: dict[str, float], free: Mapping[str, Continuous]
) -> dict[str, np.ndarray]:
    """More points where the best sits on the edge of its grid, or, where all diverged, below the smallest step sizes."""
    more = {}
    for name, kind in free.items():
        steps = ratio[name] ** np.arange(1.0, 4)
        if best.diverged:
            more[name] = grids[name][0] / steps if kind.relative else np.empty(0)
        elif math.isclose(best.parameters[name], grids[name][0]):
            more[name] = grids[name][0] / steps
        elif math.isclose(best.parameters[name], grids[name][-1]):
            more[name] = kind.allowed(grids[name][-1] * steps)
    return {name: values for name, values in more.items() if len(values)}


class _Trials:
    """Candidates of one method that have been run, and the running of more."""

    def __init__(
        self, make: Make, problem: Problem, net: Network, optimum: torch.Tensor | None, search: Search, beat: float
    ) -> None:
        self.make, self.problem, self.net, self.optimum, self.search, self.beat = make, problem, net, optimum, search, beat
        self.done: list[Trial] = []
        self.start: Parameters | None = None
        self.unit: dict[frozenset[tuple[str, Any]], float] = {}
        """What an iteration costs, by whole-numbered parameters."""
        self.judge = StoppingCriterion(problem, StackedObserver(), steps=search.iterations)

    @property
    def best(self) -> Trial:
        return min(self.done, key=_rank)

    def run_grid(self, choice: Parameters, grids: dict[str, np.ndarray], progress: Progress) -> None:
        """All combinations of the grids that were not run before."""
        combinations = [dict(zip(grids, map(float, values), strict=True)) for values in itertools.product(*grids.values())]
        combinations = [c for c in combinations if not any(_same(c | choice, trial.parameters) for trial in self.done)]
        if combinations:
            to_beat = min(self.beat, self.best.score) if self.done else self.beat
            self.done += self._run_side_by_side(choice, combinations, self.search, to_beat, progress)

    def run_start(self, start: Parameters, free: list[str]) -> None:
        """The first candidate, alone: its cost is known before the others have theirs to beat."""
        self.start = start
        choice = {name: value for name, value in start.items() if name not in free}
        self.done += self._run_side_by_side(choice, [{name: start[name] for name in free}], self.search, self.beat, _silent)

    def sturdiest(self, steps: list[str], free: list[str]) -> Trial:
        """The best trial that still works with its step sizes a little larger; the start, if that is better.

        The fastest step size often lies at the edge of stability, and an unseen instance with a slightly larger Lipschitz
        constant falls off it: without this, tuned PG-EXTRA diverged on 5 of 32 test instances.
        """
        best = self.best
        if best.diverged or not steps or best.score > self.beat:
            return best
        choice = {name: value for name, value in best.parameters.items() if name not in free}
        few = FRONT if self.optimum is not None else FEW_LOSSES
        front = [t for t in sorted(self.done, key=_rank) if not t.diverged and choice.items() <= t.parameters.items()][:few]
        larger = [{name: t.parameters[name] * (MARGIN if name in steps else 1) for name in free} for t in front]
        search, again = self.search, []
        if self.optimum is not None:
            longer = max(1, min(search.iterations, math.ceil(3 * best.score / self.unit[frozenset(choice.items())])))
            search = search.model_copy(update={"iterations": longer})
            again = [{name: t.parameters[name] for name in free} for t in front]
        ran = self._run_side_by_side(choice, again + larger, search, None, _silent)
        if again:
            front = self._better_known(front, ran)
        pairs = sorted(zip(front, ran[len(again) :], strict=True), key=lambda pair: _rank(pair[0]))
        sturdy = (t for t, push in pairs if not push.diverged and push.gap <= 2 * max(t.gap, self.search.target))
        found = next(sturdy, min(front, key=lambda t: max(t.parameters[name] for name in steps)))
        starts = [t for t in self.done if self.start is not None and t.parameters == self.start]
        return min([found, *starts], key=_rank)

    def _better_known(self, trials: list[Trial], again: list[Trial]) -> list[Trial]:
        """Trials, some of which ended because another one had reached the target, as they are now that they have run on."""
        known = [new if new.score < old.score else old for old, new in zip(trials, again, strict=False)]
        replaced = {id(old): new for old, new in zip(trials, known, strict=True)}
        self.done = [replaced.get(id(trial), trial) for trial in self.done]
        return known

    def _run_side_by_side(
        self, choice: Parameters, candidates: list[Parameters], search: Search, to_beat: float | None, progress: Progress
    ) -> list[Trial]:
        """Runs candidates until one reaches the target or none can beat `to_beat` any more (None: to the end)."""
        size = max(1, GROUP_NUMBERS // self.problem.zeros().numel())
        parts = [candidates[start : start + size] for start in range(0, len(candidates), size)]
        groups = [_Group(self.make, self.problem, self.net, choice, part) for part in parts]
        known, unit = self.optimum is not None, 0.0
        for k in sample_times(search.iterations, TIMES_PER_DECADE if known else LOOKS_PER_DECADE):
            for group in groups:
                group.advance(k)
                group.look(self.optimum, self.judge)
            progress(k / search.iterations)
            unit = groups[0].unit(search.cost)
            reached = any(group.best_gap <= search.target for group in groups)
            beaten = known and to_beat is not None and (reached or k * unit > to_beat)
            if beaten or not any(group.alive for group in groups):
                break
        self.unit[frozenset(choice.items())] = unit
        judge = _judge if known else _judge_loss
        gaps = [seen for group in groups for seen in group.gaps]
        return [judge(c | choice, seen, search, unit) for c, seen in zip(candidates, gaps, strict=True)]


class _Group:
    """Candidates as one method whose step sizes are tensors [candidates, 1, ..., 1]; those that diverge leave."""

    def __init__(self, make: Make, problem: Problem, net: Network, choice: Parameters, candidates: list[Parameters]) -> None:
        self.make, self.problem, self.net, self.choice, self.candidates = make, problem, net, choice, candidates
        self.alive = list(range(len(candidates)))
        self.gaps: list[list[tuple[int, float]]] = [[] for _ in candidates]
        """Of each candidate: (k, mean gap, or loss, over the instances); inf once it has diverged."""
        self.algorithm = self._build()
        self.sent, self.counted = 0, 0
        """Bytes, and in how many iterations."""
        start = problem.start()
        self.k, self.state = 0, next(iterate(self.algorithm, problem, net, x0=start.expand(len(candidates), *start.shape)))

    def _build(self) -> Algorithm:
        like, ones = self.problem.zeros(), [1] * (len(self.problem.batch) + 2)
        columns = {name: [self.candidates[c][name] for c in self.alive] for name in self.candidates[0]}
        return self.make({**self.choice, **{name: like.new_tensor(each).reshape(-1, *ones) for name, each in columns.items()}})

    def advance(self, to: int) -> None:
        before = self.net.traffic.snapshot()
        for k in range(self.k + 1, to + 1 if self.alive else 0):
            self.state = advance(self.algorithm, self.state, self.problem, self.net, k)
            self.counted += 1
        self.k, self.sent = to, self.sent + (self.net.traffic - before).bytes

    def unit(self, cost: str) -> float:
        """What an iteration costs."""
        if cost == "bytes":
            return self.sent / max(1, self.counted)
        return self.algorithm.cost(self.net, self.problem.d).rounds if cost == "rounds" else 1

    def look(self, optimum: torch.Tensor | None, judge: StoppingCriterion) -> None:
        if not self.alive:
            return
        loss = judge.loss(self.state.x)  # [candidates, *batch]
        fine = ~judge.diverged(loss).flatten(1).any(1)
        mean_gap = (loss if optimum is None else loss - optimum).flatten(1).mean(1).tolist()
        for row, c in enumerate(self.alive):
            self.gaps[c].append((self.k, mean_gap[row] if fine[row] else math.inf))
        if not bool(fine.all()):
            self.alive = [c for row, c in enumerate(self.alive) if fine[row]]
            if self.alive:
                self.state = selected(self.state, torch.nonzero(fine).flatten())
                self.algorithm = self._build()

    @property
    def best_gap(self) -> float:
        return min((self.gaps[c][-1][1] for c in self.alive), default=math.inf)


def _silent(fraction: float) -> None:
    """Nobody is told."""


def _same(a: Parameters, b: Parameters) -> bool:
    return all(math.isclose(a[name], b[name], rel_tol=1e-9) for name in a)


def _rank(trial: Trial) -> tuple[float, float]:
    return trial.score, trial.gap


def _judge(parameters: Parameters, gaps: list[tuple[int, float]], search: Search, unit: float) -> Trial:
    end = gaps[-1][1]
    if end == math.inf:
        return Trial(parameters, math.inf, False, math.inf, True)
    first = next((look for look, (_, gap) in enumerate(gaps) if gap <= search.target), None)
    if first is None:
        return Trial(parameters, search.iterations * unit * (1 + math.log10(end / search.target)), False, end, False)
    k, gap = gaps[first]
    if first > 0:
        # The gap falls roughly geometrically between two looks.
        k0, gap0 = gaps[first - 1]
        k = k0 + (k - k0) * math.log(max(gap0 / search.target, 1)) / math.log(max(gap0 / max(gap, 1e-300), 1 + 1e-12))
    return Trial(parameters, k * unit, True, end, False)


def _judge_loss(parameters: Parameters, losses: list[tuple[int, float]], search: Search, unit: float) -> Trial:
    """Where no optimum is known, what is low in the end is good."""
    loss = losses[-1][1]
    return Trial(parameters, loss, False, loss, loss == math.inf)
