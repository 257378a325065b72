"""Fits the model on a network: chooses the cheapest way that is exact, says which and why, and measures what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from milodo.algorithms import METHODS, AcceleratedED, Algorithm, TreeAPG
from milodo.algorithms.base import Choice, Fraction, StepSize
from milodo.errors import InvalidInput, unknown
from milodo.fit import newton
from milodo.fit.newton import Newton
from milodo.fit.pooled import Scaling, penalty, pooled_problem, scaling, total_of
from milodo.fit.task import Task
from milodo.learned.checkpoint import load_optimizer
from milodo.network import Network, Observer
from milodo.network.consensus import average, maximum
from milodo.problems.linear import LinearModel
from milodo.problems.logistic import LogisticRegression
from milodo.solve import Keeper, Off, Status, Stop, Units, mean_point, off_by, solve
from milodo.types import NodeTensor, Point
from milodo.words import amount, brief

LARGEST = 1 << 30
"""Bytes of moments that are still summed: a site holds a matrix of twice that."""
LOOKS = {"sums": 10, "gossip": 20}
"""Iterations between two looks at the stopping rule, which costs about what an iteration does."""


@dataclass(frozen=True)
class Plan:
    """How the model will be fitted."""

    label: str
    why: str
    cost: str
    """What it will cost, in words, before it begins."""
    algorithm: Algorithm | None = None
    """None where moments are enough."""
    parameters: dict[str, Any] | None = None
    every: int = LOOKS["gossip"]


@dataclass(frozen=True)
class Fitted:
    """The answer in the problem's variables, with what is known about it."""

    x: Point
    problem: LinearModel
    scaled: Scaling
    plan: Plan
    objective: float
    off: Off
    consensus: float
    iterations: int
    status: Status

    def in_units_of_the_data(self, intercept: bool) -> tuple[list[float], float]:
        """Coefficients and intercept."""
        mean, scale = self.scaled.mean[0], self.scaled.scale[0]
        w = self.x[: len(scale)] / scale
        centred = float(self.scaled.target[0]) if intercept and not isinstance(self.problem, LogisticRegression) else 0.0
        return w.tolist(), (float(self.x[-1]) if intercept else 0.0) + centred - float(w @ mean)


@torch.no_grad()
def fit_model(
    features: Sequence[Tensor],
    targets: Sequence[Tensor],
    task: Task,
    net: Network,
    observer: Observer,
    *,
    keeper: Keeper | None = None,
    progress: Callable[[int, float], None] | None = None,
    announce: Callable[[Plan], None] | None = None,
) -> Fitted:
    """The model of all sites' samples, from those of the nodes held here."""
    total = total_of(net, reliable=task.links == "reliable")
    scaled = scaling(features, targets, total, centre=task.intercept or task.standardise)
    reg = penalty(task.l1, None if task.standardise else scaled.scale[0])
    problem = pooled_problem(task.loss, features, targets, scaled, reg, n=net.topology.n, intercept=task.intercept)
    plan = plan_for(task, problem, net)
    if announce:
        announce(plan)
    units, x, done, status = Units.of(problem, observer), _start(problem, scaled), 0, Status.RUNNING
    watch = Separation(problem, observer) if _may_be_unbounded(problem, task) else None

    def off_at(k: int, point: Point) -> float:
        if watch:
            watch.check(point)
        worst = off_by(problem, problem.everywhere(point), observer, units).worst
        off = float(observer.mean(worst.expand(problem.n), dim=-1))  # one number for all: they must stop together
        if progress:
            progress(k, off)
        return off

    if plan.algorithm is None:
        point, left, done = Newton(problem, total, net.topology.n).run(x[0], off_at, task.tolerance)
        x, status = problem.everywhere(point).clone(), Status.CONVERGED if left <= task.tolerance else Status.RUNNING
    if status is Status.RUNNING:
        # Moments of columns that are almost the same lose digits: then gradients of the data themselves go on from there.
        method = plan.algorithm or TreeAPG()
        every = plan.every if plan.algorithm else LOOKS["sums"]
        stop = Stop(steps=task.iterations, tolerance=task.tolerance, every=every)
        keeps = _Watched(keeper, watch, every, observer) if watch else keeper
        result = solve(method.at(net.nodes), problem, net, stop, x0=x, observer=observer, keeper=keeps, progress=progress)
        x, status, done = result.x, result.status, done + result.k
    answer = problem.settled(mean_point(x, observer), observer)
    off = off_by(problem, problem.everywhere(answer), observer, units)
    consensus = float(off_by(problem, x, observer, units).consensus)
    return Fitted(answer, problem, scaled, plan, float(problem.objective(answer, observer)), off, consensus, done, status)


def _start(problem: LinearModel, scaled: Scaling) -> NodeTensor:
    """No feature, and the intercept that is best then, which every node knows already."""
    start = problem.start()
    if problem.spares_intercept and isinstance(problem, LogisticRegression):
        start = start.clone()
        start[..., -1:] = torch.logit(scaled.target)
    return start


def plan_for(task: Task, problem: LinearModel, net: Network) -> Plan:
    """The method asked for; or moments, sums or gossip, whichever is cheapest and works on these links."""
    if task.optimizer is not None:
        optimizer, card = load_optimizer(task.optimizer)
        return Plan(optimizer.label, f"{card.name}, trained for {card.good_for}", _each(optimizer, problem.d, net), optimizer, {})
    if task.method is not None or task.parameters:
        return _as_asked(task, problem, net)
    d, height = problem.d - task.intercept, net.topology.tree.height
    if task.links == "lossy":
        L = problem.lipschitz().unsqueeze(-1)
        method = AcceleratedED.safe(float(maximum(net, L).max()), net, float(average(net, L).max()))
        why = f"{method.label}, because links may lose messages: gossip goes on without them, and needs no tuning here"
        return Plan(method.label, f"{why} ({brief(_own(method))})", _each(method, problem.d, net), method, _own(method))
    held = 8 * newton.numbers(problem.d)
    if newton.is_cheaper(task.loss, problem.d) and held <= LARGEST:
        each = f"{amount(2 * (net.topology.n - 1) * held)} in {2 * height} rounds"
        if task.loss == "squared":
            why = "moments: one sum of XᵀX and Xᵀy over a spanning tree, then every site solves the same small problem exactly"
            return Plan("Moments", why, f"{each}, once")
        why = "Newton on sums: curvatures and gradients summed over a spanning tree, a small problem at every site, and again"
        return Plan("Newton on sums", why, f"{each}, in each of about ten iterations")
    why = f"{TreeAPG.label}: gradients summed over a spanning tree, exact and the same at every site, nothing to tune"
    why += f" (curvatures of {d:,} features would be {amount(held)} a message, more than gradients cost)"
    return Plan(TreeAPG.label, why, _each(TreeAPG(), problem.d, net), TreeAPG(), {}, LOOKS["sums"])


def _each(method: Algorithm, d: int, net: Network) -> str:
    return f"{amount(8 * method.floats_on(net, d))} in {method.rounds_on(net)} rounds, in each iteration"


def _as_asked(task: Task, problem: LinearModel, net: Network) -> Plan:
    """The method with the parameters given, and safe ones for the others."""
    method = METHODS[task.method] if task.method else AcceleratedED
    for name in task.parameters:
        if name not in method.space:
            raise InvalidInput(f"--set {name}: {unknown('parameter', name, method.space)}")
    if set(task.parameters) >= set(method.space):
        chosen = method(**task.parameters)  # type: ignore[arg-type]
    else:
        chosen = method(**{**_own(method.safe(_largest(problem, net), net)), **task.parameters})  # type: ignore[arg-type]
    how = f" with {brief(_own(chosen))}" if method.space else ""
    every = LOOKS["sums"] if method.rounds_on is not Algorithm.rounds_on else LOOKS["gossip"]
    return Plan(method.label, f"{method.label}{how}, as asked for", _each(chosen, problem.d, net), chosen, _own(chosen), every)


def _largest(problem: LinearModel, net: Network) -> float:
    return float(maximum(net, problem.lipschitz().unsqueeze(-1)).max())


def _own(method: Algorithm) -> dict[str, Any]:
    """Its parameters, by name."""
    return {name: getattr(method, name) for name, kind in method.space.items() if isinstance(kind, StepSize | Fraction | Choice)}


def _may_be_unbounded(problem: LinearModel, task: Task) -> bool:
    return isinstance(problem, LogisticRegression) and task.l1 == 0


class Separation:
    """Looks whether the classes are separated, in which case there is nothing to converge to."""

    def __init__(self, problem: LinearModel, observer: Observer) -> None:
        self.problem, self.observer = problem, observer

    def check(self, x: Point) -> None:
        problem = self.problem
        wrong = (2 * problem.b - 1) * problem.predict(problem.everywhere(x)) <= 0
        if float(problem.mean(wrong.to(problem.dtype), self.observer)) == 0:
            raise InvalidInput(
                "the two classes can be told apart without a mistake, so without a penalty the coefficients grow for ever and "
                "there is no answer. Add a penalty, e.g. --l1 0.001."
            )


class _Watched:
    """A keeper that also watches."""

    def __init__(self, inner: Keeper | None, watch: Separation, every: int, observer: Observer) -> None:
        self.inner, self.watch, self.every, self.observer = inner, watch, every, observer

    def last(self, first: Any) -> tuple[int, Any] | None:
        return self.inner.last(first) if self.inner else None

    def keep(self, k: int, state: Any) -> None:
        if self.inner:
            self.inner.keep(k, state)
        if k and k % self.every == 0:
            self.watch.check(mean_point(state.x, self.observer))
