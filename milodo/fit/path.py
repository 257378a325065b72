"""Choosing the penalty: a path of penalties from the one under which no feature is used, and a cross-validation along it.

What travels beside what a fit sends: one gradient, whose largest entry is λ_max; one number a fold for its size; and one number a
fold and penalty, the sum of its losses. Every site decides by the same sums, so all choose the same penalty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, unknown, whole
from milodo.fit.curve import RULES, Curve
from milodo.fit.folds import SITES, Folds, deal_folds, fold_count
from milodo.fit.model import WarmStart, fit_model, in_units, ledger
from milodo.fit.path_solvers import MethodPath, MomentsPath, NewtonPath, PathSolver
from milodo.fit.planning import Plan, plan_for
from milodo.fit.pooled import Total, total_of
from milodo.fit.request import Request
from milodo.fit.scaled import ScaledProblem, scale
from milodo.fit.task import Fit
from milodo.metrics import Units
from milodo.network import Ledger, Traffic
from milodo.problems.sampled import Sampled
from milodo.types import NodeTensor, Point

CLASSES = ("logistic", "softmax")
MEASURES = {"squared": ("mean squared error", 2.0), "logistic": ("log loss", 1.0), "softmax": ("log loss", 1.0)}
"""What a curve shows, and how many times the problem's own loss that is; the mean of that loss unless it is here."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How a penalty is chosen, the same at every site; names as in scikit-learn."""

    n_alphas: int = 30
    """Penalties on the path."""
    eps: float = 1e-3
    """The smallest penalty over the largest, λ_max."""
    alphas: tuple[float, ...] | None = None
    """The penalties, if not these."""
    folds: int | str = 5
    """Of each site's samples; or 'sites', to leave out one site at a time."""
    rule: str = "min"
    """'min', or '1se': the largest penalty within one standard error of the least loss."""
    seed: int = 0
    """Of the folds."""
    tolerance: float = 1e-4
    """Of a penalty that may be chosen, as `Stop` has it; others may be coarser. The chosen one is fitted to the task's."""

    def __post_init__(self) -> None:
        whole("n_alphas", self.n_alphas, least=1)
        whole("seed", self.seed)
        if not 0 < self.eps < 1:
            raise InvalidInput(f"eps is {self.eps}, but the smallest penalty over the largest lies between 0 and 1.")
        if self.rule not in RULES:
            raise unknown("rule", self.rule, RULES)
        if isinstance(self.folds, str) and self.folds != SITES:
            raise InvalidInput(
                f"folds is {self.folds!r}. Give a number of folds, or 'sites' to leave out one at a time.", "folds"
            )
        if not isinstance(self.folds, str):
            whole("the number of folds", self.folds, least=2)
        if self.alphas is not None and (not self.alphas or not all(math.isfinite(a) and a > 0 for a in self.alphas)):
            raise InvalidInput("alphas must be finite numbers > 0, one at least.")
        if not self.tolerance > 0:
            raise InvalidInput(f"tolerance is {self.tolerance}, but it must be a number > 0.")


@dataclass(frozen=True, eq=False)
class PenaltyPath:
    """Models along the path, and what the folds say of them."""

    columns: tuple[str, ...]
    measure: str
    """What losses are."""
    penalties: list[float]
    """From the largest to the smallest."""
    coefficients: np.ndarray
    """Of the model of all samples, in the units of the data [penalties, d]; of k classes [penalties, k, d]."""
    intercepts: np.ndarray
    """[penalties], or [penalties, k]."""
    scale: np.ndarray
    """Of each column, its standard deviation over all sites (its root mean square without an intercept): what makes coefficients
    of different columns comparable."""
    losses: np.ndarray
    """[penalties, folds]."""
    mean: np.ndarray
    """Over folds."""
    error: np.ndarray
    """Its standard error."""
    tolerances: list[float]
    """To which each penalty was solved."""
    best: int
    """Where the mean loss is least."""
    chosen: int
    """By the rule."""
    rule: str
    folds: str
    rounds: int
    bytes: int
    """Sent by all sites together along the path: set-up, method and checks."""
    seconds: float
    traffic: Ledger = field(default_factory=Ledger)
    """Rounds and bytes by what they were for."""

    @property
    def penalty(self) -> float:
        """The chosen one."""
        return self.penalties[self.chosen]

    @property
    def at_end(self) -> bool:
        """Whether the least loss is that of the smallest penalty: then the least of all may lie further down."""
        return len(self.penalties) > 1 and self.best == len(self.penalties) - 1

    @property
    def used(self) -> list[int]:
        """Features of each model."""
        return [int((np.atleast_2d(rows) != 0).any(axis=0).sum()) for rows in self.coefficients]


def largest_penalty(problem: Sampled, x: Tensor, total: Total, n: int) -> float:
    """λ_max = max_l |ḡ_l| / w_l at the model x without features, where the problem's r is Σ w_l |x_l|: one sum of gradients, and
    every site knows the largest entry of it."""
    g = total(problem.grad(problem.everywhere(x)))[0] / n
    w = problem.reg.slope(torch.ones_like(g))  # 0 where an intercept is spared
    return float((g.abs() / w)[w > 0].max())


def grid(largest: float, choice: Choice) -> list[float]:
    """The penalties, from the largest to the smallest; where no feature tells anything, all the smallest number there is."""
    if choice.alphas is not None:
        return sorted(map(float, choice.alphas), reverse=True)
    if largest <= np.finfo(float).resolution:
        return [float(np.finfo(float).resolution)] * choice.n_alphas
    return [largest * part for part in _geometric(choice.eps, choice.n_alphas)]


def _geometric(least: float, count: int) -> list[float]:
    """Numbers from 1 to the least, evenly spaced by their logarithms. In decimal arithmetic, which every machine rounds alike:
    sites whose penalties differed would solve different problems."""
    if count == 1:
        return [1.0]
    with localcontext(prec=30):
        step = Decimal(float(least)).ln() / (count - 1)
        return [*(float((k * step).exp()) for k in range(count - 1)), float(least)]


@dataclass(frozen=True)
class _Folded:
    """The samples of all sites, and those outside of each fold, before a penalty is chosen."""

    scaled: ScaledProblem
    folds: Folds
    every: Sampled
    """An instance for all samples and one for those outside of each fold."""
    penalties: list[float]
    total: Total
    n: int

    @property
    def x(self) -> Point:
        """Where all instances begin: no feature."""
        return self.scaled.start[0]

    def mean(self, own: NodeTensor) -> np.ndarray:
        return (self.total(own)[0] / self.n).numpy()


@torch.no_grad()
def fit_path(request: Request, choice: Choice, dealt: Sequence[Tensor] | None = None) -> tuple[Fit, PenaltyPath]:
    """The penalty is chosen, and the model of all sites' samples fitted with it; the task's own penalty counts for nothing.

    `dealt` gives the folds of the samples of the nodes held here, if they are not to be drawn.
    """
    begun, net, listeners = time.perf_counter(), request.net, request.listeners
    folded = _folded(request, choice, dealt)
    since = net.traffic.snapshot()
    plan = plan_for(request.task, folded.every, net)  # what suits all samples and the folds alike
    net.traffic.widen(since, folded.folds.count + 1)
    setup = net.traffic.snapshot()
    if listeners.announce:
        listeners.announce(replace(plan, cost=f"{plan.cost}, for one model; those of the path share what they can"))
    units = Units.of(folded.every, request.observer, folded.x.expand(*folded.every.batch, -1))
    solver = _solver(request, plan, folded, units)
    curve = Curve(choice.rule, float(units.value[0]), choice.tolerance, solver.coarse, solver.exact)
    curve.weights = None if request.samples.weights is None else folded.folds.share.numpy()
    points = _solved(request, choice, folded, solver, curve)
    path = _report(request, choice, folded, curve, points, setup, begun)
    scaled = folded.scaled
    warm = WarmStart(scaled.scaling, scaled.odd, plan, points[path.chosen][0], setup, solver.hessian)
    chosen = replace(request.asking(l1=path.penalty), listeners=replace(listeners, announce=None))
    return fit_model(chosen, warm), path


def _folded(request: Request, choice: Choice, dealt: Sequence[Tensor] | None) -> _Folded:
    """By sums: those of the scale, the size of each fold, and one gradient, whose largest entry is the largest penalty."""
    task, net = request.task, request.net
    scaled, n = scale(request.asking(l1=1.0, l2=0.0)), net.topology.n
    problem, total, classes = scaled.problem, total_of(net, reliable=task.links == "reliable"), task.loss in CLASSES
    if dealt is None:
        dealt = deal_folds(request.samples.targets, net, choice.folds, choice.seed, classes=classes)
    folds = Folds.of_sites(problem, dealt, fold_count(choice.folds, net), total, n, classes=classes)
    penalties = grid(largest_penalty(problem, scaled.start[0], total, n), choice)
    every = problem.reweighed(folds.training(problem))
    if problem.column is not None:  # weights are those of all samples, over this at least
        every.column = problem.column / (1 - float(folds.share.max()))
    return _Folded(scaled, folds, every, penalties, total, n)


def _solver(request: Request, plan: Plan, folded: _Folded, units: Units) -> PathSolver:
    """As the plan is for one fit."""
    net, problem, folds = request.net, folded.scaled.problem, folded.folds
    if plan.sums_curvature and problem.quadratic:
        return MomentsPath(problem, folds.inside(problem), folds.share, folded.x, folded.total, folded.n)
    if plan.sums_curvature:
        return NewtonPath(folded.every, folded.x, folded.total, request.observer, folded.n, units)
    return MethodPath(
        folded.every, plan.algorithm.at(net.nodes), folded.x, net, request.observer, steps=request.task.iterations,
        every=max(1, plan.every // 3), units=units,
    )  # fmt: skip


def _solved(request: Request, choice: Choice, folded: _Folded, solver: PathSolver, curve: Curve) -> list[Tensor]:
    """Every penalty as exactly as the choice needs it; of each the points of all instances, and its losses on the curve."""
    scaling, problem, penalties = folded.scaled.scaling, folded.scaled.problem, folded.penalties
    along, points = request.listeners.along, list[Tensor]()

    def losses_at(p: int, tolerance: float) -> NodeTensor:
        bare = scaling.penalty(penalties[p], standardise=request.task.standardise)
        solver.solve(problem.reg.with_penalized(bare), tolerance)
        points[p : p + 1] = [solver.points]
        if along:
            along((p + 1) / (len(penalties) + 1), f"penalty {p + 1} of {len(penalties)}, {penalties[p]:.3g}")
        return folded.folds.losses(problem, solver.x[1:])

    if solver.exact:  # then nothing waits for the losses, and all travel at once
        own = torch.cat([losses_at(p, choice.tolerance) for p in range(len(penalties))], dim=-1)
        for losses in np.split(folded.mean(own), len(penalties)):
            curve.add(losses, choice.tolerance)
    else:
        for p in range(len(penalties)):
            tolerance = curve.next_tolerance()
            curve.add(folded.mean(losses_at(p, tolerance)), tolerance)
    while (doubtful := curve.doubtful()) is not None:
        solver.restore(points[doubtful])
        curve.put(doubtful, folded.mean(losses_at(doubtful, choice.tolerance)), choice.tolerance)
    if along:
        along(1.0, f"{len(penalties)} penalties, {penalties[curve.decided.chosen]:.3g} chosen")
    return points


def _report(
    request: Request, choice: Choice, folded: _Folded, curve: Curve, points: list[Tensor], setup: Traffic, begun: float
) -> PenaltyPath:  # fmt: skip
    """The path in the units of the data, and what it cost; set-up ended with this traffic."""
    task, problem, scaling, decided = request.task, folded.scaled.problem, folded.scaled.scaling, curve.decided
    spent, _ = ledger(request.net.traffic, request.observer, setup)
    name, times = MEASURES.get(task.loss, ("mean loss", 1.0))
    times = np.ldexp(times, 2 * scaling.response)
    models = [in_units(point[0], problem, scaling, task.intercept) for point in points]
    return PenaltyPath(
        columns=request.samples.columns, measure=name, penalties=folded.penalties,
        coefficients=np.stack([w.numpy() for w, _ in models]), intercepts=np.stack([shift.numpy() for _, shift in models]),
        scale=scaling.size.numpy(),
        losses=times * np.array(curve.losses), mean=times * decided.mean, error=times * decided.error,
        tolerances=curve.tolerances, best=decided.best, chosen=decided.chosen,
        rule=choice.rule, folds="one site each" if choice.folds == SITES else f"{choice.folds} inside the sites",
        rounds=spent.rounds, bytes=spent.bytes, seconds=time.perf_counter() - begun, traffic=spent,
    )  # fmt: skip
