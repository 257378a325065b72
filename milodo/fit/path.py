"""Choosing the penalty: a path of penalties from the one under which no feature is used, and a cross-validation along it.

What travels beside what a fit sends: one gradient, whose largest entry is λ_max; one number a fold for its size; and one number a
fold and penalty, the sum of its losses. Every site decides by the same sums, so all choose the same penalty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, unknown, whole
from milodo.fit.curve import RULES, Curve
from milodo.fit.folds import SITES, Folds, deal_folds, fold_count
from milodo.fit.model import Known, Plan, fit_model, in_units, ledger, plan_for, start_of
from milodo.fit.pooled import Scaling, Total, pooled_problem, scaling, total_of
from milodo.fit.scales import odd_scales
from milodo.fit.task import Fit, Task
from milodo.fit.walk import Iterated, Moments, Newton, Walk
from milodo.metrics import Units
from milodo.network import Ledger, Network, Observer
from milodo.problems import Regularizer
from milodo.problems.sampled import Sampled
from milodo.types import NodeTensor

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
    """Of a penalty that may be chosen (`off_by`); others may be coarser. The chosen one is then fitted to the task's."""

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


@dataclass(frozen=True)
class PenaltyPath:
    """Models along the path, and what the folds say of them."""

    columns: tuple[str, ...]
    measure: str
    """What losses are."""
    penalties: list[float]
    """From the largest to the smallest."""
    coefficients: list[Any]
    """Of the model of all samples, a row a penalty, in the units of the data; of several classes a row of rows, one each."""
    intercepts: list[Any]
    scale: list[float]
    """Of each column, its standard deviation over all sites (its root mean square without an intercept): what makes coefficients
    of different columns comparable."""
    losses: list[list[float]]
    """A row a penalty, a number a fold."""
    mean: list[float]
    """Over folds."""
    error: list[float]
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


@torch.no_grad()
def fit_path(
    features: Sequence[Tensor], targets: Sequence[Tensor], task: Task, choice: Choice, net: Network, observer: Observer,
    *, columns: tuple[str, ...], dealt: Sequence[Tensor] | None = None,
    weights: Sequence[Tensor] | None = None, along: Callable[[float, str], None] | None = None,
    announce: Callable[[Plan], None] | None = None, names: Sequence[str] = (), caution: Callable[[str], None] | None = None,
    **also: Any,
) -> tuple[Fit, PenaltyPath]:  # fmt: skip
    """The penalty is chosen, and the model of all sites' samples fitted with it; the task's own penalty counts for nothing.

    `dealt` gives the folds of the samples of the nodes held here, if they are not to be drawn; `along` hears how much of the path
    is done; `also` are further arguments of fit_model.
    """
    begun, n = time.perf_counter(), net.topology.n
    total = total_of(net, reliable=task.links == "reliable")
    scaled = scaling(features, targets, total, centre=task.intercept or task.standardise, weights=weights)
    odd = odd_scales(features, scaled, net, observer, weights)
    if caution:
        for each in odd:
            caution(each.sentence(names, columns))
    first = _bare(1.0, task, scaled)
    problem = pooled_problem(task.loss, features, targets, scaled, first, n=n, intercept=task.intercept, weights=weights)
    x = start_of(problem, scaled)[0]
    classes = task.loss in CLASSES
    dealt = deal_folds(targets, net, choice.folds, choice.seed, classes=classes) if dealt is None else dealt
    folds = Folds.of_sites(problem, dealt, fold_count(choice.folds, net), total, n, classes=classes)
    penalties = grid(largest_penalty(problem, x, total, n), choice)
    every, since = problem.reweighed(folds.training(problem)), net.traffic.snapshot()
    if problem.column is not None:  # weights are those of all samples, over this at least
        every.column = problem.column / (1 - float(folds.share.max()))
    plan = plan_for(task, every, net)  # what suits all samples and the folds alike
    net.traffic.widen(since, folds.count + 1)
    setup = net.traffic.snapshot()
    if announce:
        announce(replace(plan, cost=f"{plan.cost}, for one model; those of the path share what they can"))
    units = Units.of(every, observer, x.expand(*every.batch, -1))
    walk = _walk(plan, problem, every, folds, x, task, net, observer, total, units)
    unit = float(units.value[0])
    curve, points = Curve(choice.rule, unit, choice.tolerance, walk.coarse, walk.exact), list[Tensor]()
    curve.weights = None if weights is None else folds.share.numpy()

    def losses_at(p: int, tolerance: float) -> NodeTensor:
        walk.to(problem.reg.with_penalized(_bare(penalties[p], task, scaled)), tolerance)
        points[p : p + 1] = [walk.points]
        if along:
            along((p + 1) / (len(penalties) + 1), f"penalty {p + 1} of {len(penalties)}, {penalties[p]:.3g}")
        return folds.losses(problem, walk.x[1:])

    def told(own: NodeTensor) -> np.ndarray:
        return (total(own)[0] / n).numpy()

    if walk.exact:  # then nothing waits for the losses, and all travel at once
        own = torch.cat([losses_at(p, choice.tolerance) for p in range(len(penalties))], dim=-1)
        for losses in np.split(told(own), len(penalties)):
            curve.add(losses, choice.tolerance)
    else:
        for p in range(len(penalties)):
            tolerance = curve.next_tolerance()
            curve.add(told(losses_at(p, tolerance)), tolerance)
    while (doubtful := curve.doubtful()) is not None:
        walk.back(points[doubtful])
        curve.put(doubtful, told(losses_at(doubtful, choice.tolerance)), choice.tolerance)
    decided = curve.decided
    if along:
        along(1.0, f"{len(penalties)} penalties, {penalties[decided.chosen]:.3g} chosen")
    spent, _ = ledger(net, observer, setup)
    name, times = MEASURES.get(task.loss, ("mean loss", 1.0))
    times = np.ldexp(times, 2 * scaled.response)
    models = [in_units(point[0], problem, scaled, task.intercept) for point in points]
    path = PenaltyPath(
        columns=columns, measure=name, penalties=penalties,
        coefficients=[w.tolist() for w, _ in models], intercepts=[shift.tolist() for _, shift in models],
        scale=scaled.size.tolist(),
        losses=(times * np.array(curve.losses)).tolist(), mean=(times * decided.mean).tolist(),
        error=(times * decided.error).tolist(), tolerances=curve.tolerances, best=decided.best, chosen=decided.chosen,
        rule=choice.rule, folds="one site each" if choice.folds == SITES else f"{choice.folds} inside the sites",
        rounds=spent.rounds, bytes=spent.bytes, seconds=time.perf_counter() - begun, traffic=spent,
    )  # fmt: skip
    known = Known(scaled, plan, points[path.chosen][0], setup, walk.curvature, odd)
    also |= {"columns": columns, "weights": weights, "names": names, "caution": caution}
    return fit_model(features, targets, replace(task, l1=path.penalty), net, observer, known=known, **also), path


def _bare(l1: float, task: Task, scaled: Scaling) -> Regularizer:
    """Of the features alone."""
    return scaled.penalty(l1, standardise=task.standardise)


def _walk(
    plan: Plan, problem: Sampled, every: Sampled, folds: Folds, x: Tensor, task: Task, net: Network, observer: Observer,
    total: Total, units: Units,
) -> Walk:  # fmt: skip
    """As the plan is for one fit; `every` has an instance for all samples and one for those outside of each fold."""
    n = net.topology.n
    if plan.algorithm is None and problem.quadratic:
        return Moments(problem, folds.inside(problem), folds.share, x, total, n)
    if plan.algorithm is None:
        return Newton(every, x, total, observer, n, units)
    return Iterated(
        every, plan.algorithm.at(net.nodes), x, net, observer, steps=task.iterations, every=max(1, plan.every // 3), units=units
    )
