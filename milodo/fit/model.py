"""Fits the model on a network, stage by stage: request, scaled problem, plan, solution, report."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from milodo.checks import Look
from milodo.errors import InvalidInput, quoted
from milodo.fit.audit import contradicts, refuse_faulty
from milodo.fit.newton import NewtonOnSums
from milodo.fit.planning import Plan, plan_for
from milodo.fit.pooled import Scaling, power
from milodo.fit.request import Request
from milodo.fit.scaled import ScaledProblem, scale, under_penalty
from milodo.fit.scales import OddScale
from milodo.fit.separation import separated
from milodo.fit.task import Fit
from milodo.loop import solve
from milodo.metrics import Units, mean_point
from milodo.network import Ledger, Observer, Spent, Traffic
from milodo.network.sums import in_order
from milodo.problems.sampled import Sampled
from milodo.status import Status
from milodo.types import NodeTensor, Point

LONGEST = 511
"""The largest exponent of a unit of targets whose square is a number."""


@dataclass(frozen=True)
class WarmStart:
    """What sites have told each other already, on the way to a penalty; it need not be told again."""

    scaling: Scaling
    odd: tuple[OddScale, ...]
    plan: Plan
    x: Point
    """Where to begin: the minimum, more or less."""
    setup: Traffic
    """What the sites sent before the first penalty."""
    hessian: Tensor | None = None
    """H̄, where it is the same everywhere."""


@dataclass(frozen=True)
class Solution:
    """Where the method ended, and what is known of that point."""

    first: Point
    """Where it began."""
    point: Point
    look: Look
    units: Units
    iterations: int
    status: Status


@torch.no_grad()
def fit_model(request: Request, warm: WarmStart | None = None) -> Fit:
    """The model of all sites' samples."""
    begun, net = time.perf_counter(), request.net
    scaled = scale(request) if warm is None else under_penalty(request, warm.scaling, warm.odd)
    plan = plan_for(request.task, scaled.problem, net) if warm is None else warm.plan
    if request.listeners.announce:
        request.listeners.announce(plan)
    setup = net.traffic.snapshot() if warm is None else warm.setup
    return report(request, scaled, plan, solution(request, scaled, plan, warm), setup, begun)


def solution(request: Request, scaled: ScaledProblem, plan: Plan, warm: WarmStart | None = None) -> Solution:
    """Runs the methods of the plan, one after the other, until one converges."""
    task, net, observer, problem = request.task, request.net, request.observer, scaled.problem
    x = problem.everywhere(warm.x).clone() if warm else scaled.start
    first, units = x[0], Units.of(problem, observer, scaled.start[0])
    stages = plan.stages(task, net)
    if warm and warm.hessian is not None:
        stages[0] = NewtonOnSums(hessian=warm.hessian), stages[0][1]
    alike, watch = bool(plan.algorithm.alike), None
    if task.l1 == task.l2 == 0 and not problem.attained:
        watch = partial(refuse_separated, problem, observer, alike=alike)
    looks, done, status = list[Look](), 0, Status.RUNNING
    for method, stop in stages:
        result = solve(
            method.at(net.nodes), problem, net, stop, x0=x, observer=observer, keeper=request.keeper,
            progress=request.listeners.progress, units=units, watch=watch,
        )  # fmt: skip
        assert result.look is not None
        looks.append(result.look)
        done, status = done + result.k, result.status
        if status not in (Status.STALLED, Status.STEPS):
            break
        x = problem.everywhere(result.look.point).clone()
    look = min(looks, key=lambda each: each.worst) if status is Status.CONVERGED else looks[-1]
    point = look.point
    if not alike and status is Status.CONVERGED and look.gradient is not None:
        # One proximal step more takes no message and leads no higher; what r makes 0 is then 0, where the mean of nodes is not.
        L = units.L.unsqueeze(-1)
        point = problem.reg.prox(point - look.gradient / L, 1 / L)
    return Solution(first, point, look, units, done, status)


def report(request: Request, scaled: ScaledProblem, plan: Plan, found: Solution, setup: Traffic, begun: float) -> Fit:
    """The model in the units of the data, what is proven of it, and what it cost; set-up ended with this traffic."""
    task, net, observer, samples = request.task, request.net, request.observer, request.samples
    problem, known, off = scaled.problem, scaled.scaling, found.look.off
    assert off is not None
    w, shift = in_units(found.point, problem, known, task.intercept, samples.columns)
    cautions = [each.sentence(samples.sites, samples.columns) for each in scaled.odd]
    apart = separated(
        problem, found.point, observer, unit=float(found.units.value), tolerance=task.tolerance, n=net.topology.n
    )  # fmt: skip
    if apart is not None:
        cautions.append(apart.sentence(samples.columns, samples.classes or samples.labels, w))
        request.caution(cautions[-1])
    unit = unit_of_objective(known)
    wrong = net.real and contradicts(problem, found.first, found.point)  # the nodes of a simulation share one process
    spent, faulty = ledger(net.traffic, observer, setup, wrong)
    if faulty:
        refuse_faulty(wrong, net, observer)
    return Fit(
        columns=samples.columns, coefficients=w.numpy(), intercept=shift.numpy() if shift.ndim else float(shift),
        standardised=(w * known.size).numpy() if task.standardise else None,
        classes=samples.classes, samples=int(known.samples[0, 0]),
        method=plan.label, why=plan.why, parameters=plan.parameters,
        objective=unit * float(found.look.objective), unit=unit * float(found.units.value),
        gap=float(off.gap), residual=float(off.moved), consensus=float(off.consensus),
        iterations=found.iterations, status=found.status, rounds=spent.rounds, bytes=spent.bytes,
        seconds=time.perf_counter() - begun, traffic=spent, warnings=tuple(cautions),
    )  # fmt: skip


def unit_of_objective(known: Scaling) -> float:
    """What the problem's own objective is multiplied by, in the units of the data."""
    return math.ldexp(1.0, 2 * known.response) if abs(known.response) < LONGEST else math.inf if known.response > 0 else 0.0


def ledger(traffic: Traffic, observer: Observer, setup: Traffic, wrong: bool = False) -> tuple[Ledger, bool]:
    """What all sites have sent so far: before the first step, since then by the method, and for the observer; and whether a
    process found something wrong with its own sums. One sum, which is counted with the rest."""
    method = traffic - setup
    own = torch.tensor([wrong, setup.bytes, method.bytes, observer.traffic.bytes], dtype=torch.float64)
    own[-1] += observer.price(own)
    faulty, *sent = (round(number) for number in observer.total(own).tolist())
    rounds = (setup.rounds, method.rounds, observer.traffic.rounds)
    return Ledger(*(Spent(*part) for part in zip(rounds, sent, strict=True))), faulty > 0


def in_units(x: Point, problem: Sampled, scaled: Scaling, intercept: bool, columns: Sequence[str] = ()) -> tuple[Tensor, Tensor]:
    """Coefficients [d] and intercept [] in the units of the data; of k classes [k, d] and [k].

    Of the coefficients of several classes that predict the same probabilities, those that add up to 0 over the classes, where no
    penalty chooses.
    """
    mean, scale, target = scaled.mean[0], scaled.scale[0], scaled.target[0]
    w = x[: len(scale) * len(target)].unflatten(0, (len(scale), len(target))).mT / scale
    if len(target) > 1 and problem.reg.penalized.vanishes:
        w = w - (in_order(w.mT) / len(w)).mT
    # Sums in one order: all sites end with the same model, to the bit.
    beside = x[-len(target) :] + target * problem.translates if intercept else torch.zeros_like(target)
    shift = beside - in_order(w * mean)[:, 0]
    if scaled.columns is not None:
        finite = torch.isfinite(w).all(0)
        w, shift = power(w, scaled.response - scaled.columns), power(shift, torch.tensor(scaled.response))
        for k in torch.nonzero(finite & ~torch.isfinite(w).all(0)).flatten().tolist():
            name = f"{quoted(columns[k])}" if columns else f"{k + 1}"
            raise InvalidInput(f"the coefficient of column {name} is larger than 64 bits hold. Give that column in larger units.")
    if len(target) == 1:
        return w[0], shift[0]
    return w, shift - in_order(shift) / len(shift) if intercept else shift


def refuse_separated(problem: Sampled, observer: Observer, x: NodeTensor, *, alike: bool) -> None:
    """Where x separates the classes there is nothing to converge to. Nodes that differ look at their mean only where each has
    separated its own samples."""
    wrong = ~problem.falling(problem.predict(x))
    if float(problem.mean(wrong.to(problem.dtype), observer)) != 0:
        return
    if not alike:
        return refuse_separated(problem, observer, problem.everywhere(mean_point(x, observer)), alike=True)
    raise InvalidInput(
        "the classes can be told apart without a mistake, so without a penalty the coefficients grow for ever and "
        "there is no answer. Add a penalty, e.g. 0.001 ‖x‖₁.",
        "l1",
    )
