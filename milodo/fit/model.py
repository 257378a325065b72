"""Fits the model on a network: chooses the cheapest way that is exact, says which and why, and measures what came out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from milodo.algorithms import METHODS, AcceleratedED, Algorithm, Remembering, TreeAPG
from milodo.algorithms.auto import Chosen, Facts, Link, choose, learn
from milodo.checks import Checks, Look
from milodo.errors import InvalidInput, quoted, unknown
from milodo.fit import costs, newton
from milodo.fit.audit import contradicts, refuse_faulty
from milodo.fit.newton import Newton
from milodo.fit.pooled import Scaling, pooled_problem, power, scaling, total_of
from milodo.fit.scales import OddScale, odd_scales
from milodo.fit.separation import separated
from milodo.fit.task import Fit, Task
from milodo.learned.checkpoint import load_optimizer
from milodo.loop import Keeper, Stop, solve
from milodo.metrics import Units, mean_point
from milodo.network import Ledger, Network, Observer, Spent, Traffic
from milodo.network.consensus import maximum
from milodo.network.formats import message_format
from milodo.network.probe import probe, slowest
from milodo.network.sums import in_order
from milodo.problems.sampled import Sampled
from milodo.status import Status
from milodo.types import NodeTensor, Point
from milodo.words import amount, brief

LARGEST = 1 << 30
"""Bytes of moments that are still summed: a site holds a matrix of twice that."""
LONGEST = 511
"""The largest exponent of a unit of targets whose square is a number."""
LOOKS = {"curvatures": 1, "sums": 10, "gossip": 20}
"""Iterations between two looks at the stopping rule, at least."""


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
class Known:
    """What sites have told each other already, on the way to a penalty."""

    scaled: Scaling
    plan: Plan
    x: Point
    """Where to begin: the minimum, more or less."""
    setup: Traffic
    """What the sites sent before the first penalty."""
    curvature: Tensor | None = None
    """H̄, where it is the same everywhere."""
    odd: tuple[OddScale, ...] = ()
    """Columns that are not in the same units everywhere, as it seems."""


@torch.no_grad()
def fit_model(
    features: Sequence[Tensor], targets: Sequence[Tensor], task: Task, net: Network, observer: Observer,
    *, columns: tuple[str, ...], classes: tuple[str, str] | None = None, labels: Sequence[str] = (),
    weights: Sequence[Tensor] | None = None,
    keeper: Keeper | None = None, names: Sequence[str] = (), caution: Callable[[str], None] | None = None,
    progress: Callable[[int, float], None] | None = None, announce: Callable[[Plan], None] | None = None,
    known: Known | None = None,
) -> Fit:  # fmt: skip
    """The model of all sites' samples, from features [N, d] and targets [N] of the nodes held here; of two classes the targets
    are 0 and 1, and of k classes [N, k], 1 at the class of a sample. `weights` [N] say how much each sample counts. What is known
    need not be told again. `names` are those of all sites and `labels` those of classes; `caution` is told at once what may be
    wrong with the data."""
    begun = time.perf_counter()
    if task.loss == "softmax" and targets[0].ndim != 2:
        raise InvalidInput(
            "the softmax loss takes classes as columns of 0 and 1. Use the logistic loss for two classes, and milodo.sklearn, "
            "which makes the columns, for more.",
            "loss",
        )
    total = total_of(net, reliable=task.links == "reliable")
    centre = task.intercept or task.standardise
    scaled = known.scaled if known else scaling(features, targets, total, centre=centre, weights=weights)
    odd = known.odd if known else odd_scales(features, scaled, net, observer, weights)
    cautions = [each.sentence(names, columns) for each in odd]
    if caution and not known:
        for sentence in cautions:
            caution(sentence)
    scaled = scaled if task.standardise else scaled.against(task.l2)
    reg = scaled.penalty(task.l1, task.l2, standardise=task.standardise)
    problem = pooled_problem(
        task.loss, features, targets, scaled, reg, n=net.topology.n, intercept=task.intercept, weights=weights
    )
    plan = known.plan if known else plan_for(task, problem, net)
    if announce:
        announce(plan)
    setup = known.setup if known else net.traffic.snapshot()
    empty = start_of(problem, scaled)
    x = problem.everywhere(known.x).clone() if known else empty
    first = x[0]
    units, done, status = Units.of(problem, observer, empty[0]), 0, Status.RUNNING
    free = task.l1 == task.l2 == 0
    alike = plan.algorithm is None or bool(plan.algorithm.alike)
    watch = partial(refuse_separated, problem, observer, alike=alike) if free and not problem.attained else None
    checks, looks = Checks(problem, observer, units, alike=True), list[Look]()

    def off_at(k: int, here: newton.Here) -> float:
        if watch:
            watch(problem.everywhere(here.x))
        nothing = torch.zeros_like(here.value)
        off = checks.off(here.x, here.g, nothing, task.tolerance, here.curvature)
        looks.append(Look(here.x, here.value, nothing, off, here.g))
        if progress:
            progress(k, looks[-1].worst)
        return looks[-1].worst

    if plan.algorithm is None:
        point, left, done = Newton(problem, total, net.topology.n, net.nodes).run(
            x[0], off_at, task.tolerance, known and known.curvature
        )
        x, status = problem.everywhere(point).clone(), Status.CONVERGED if left <= task.tolerance else Status.RUNNING
    if status is Status.RUNNING:
        # Moments of columns that are almost the same lose digits: then gradients of the data themselves go on from there.
        method = plan.algorithm or TreeAPG()
        every = plan.every if plan.algorithm else LOOKS["sums"]
        stop = Stop(steps=task.iterations, tolerance=task.tolerance, every=every, price=costs.of_a_look(method, net))
        result = solve(
            method.at(net.nodes), problem, net, stop, x0=x, observer=observer, keeper=keeper, progress=progress, units=units,
            watch=watch,
        )  # fmt: skip
        status, done = result.status, done + result.k
        looks.append(result.look)  # type: ignore[arg-type]
    look = min(looks, key=lambda each: each.worst) if status is Status.CONVERGED else looks[-1]
    assert look.off is not None
    point = look.point
    if not alike and status is Status.CONVERGED and look.gradient is not None:
        # One proximal step more takes no message and leads no higher; what r makes 0 is then 0, where the mean of nodes is not.
        L = units.L.unsqueeze(-1)
        point = problem.reg.prox(point - look.gradient / L, 1 / L)
    w, shift = in_units(point, problem, scaled, task.intercept, columns)
    facts: dict[str, Any] = {"unit": float(units.value), "tolerance": task.tolerance, "n": net.topology.n}
    if (apart := separated(problem, point, observer, **facts)) is not None:
        cautions.append(apart.sentence(columns, classes or labels, _plain(w)))
        if caution:
            caution(cautions[-1])
    unit = math.ldexp(1.0, 2 * scaled.response) if abs(scaled.response) < LONGEST else math.inf if scaled.response > 0 else 0.0
    wrong = net.real and contradicts(problem, first, point)  # the nodes of a simulation share one process
    spent, faulty = ledger(net, observer, setup, wrong)
    if faulty:
        refuse_faulty(wrong, net, observer)
    return Fit(
        columns=columns, coefficients=_plain(w), intercept=_plain(shift),
        standardised=_plain(w * scaled.size) if task.standardise else None,
        classes=classes, samples=int(scaled.samples[0, 0]),
        method=plan.label, why=plan.why, parameters=plan.parameters or {},
        objective=unit * float(look.objective), unit=unit * float(units.value), gap=float(look.off.gap),
        residual=float(look.off.moved),
        consensus=float(look.off.consensus),
        iterations=done, status=status, rounds=spent.rounds, bytes=spent.bytes,
        seconds=time.perf_counter() - begun, traffic=spent, warnings=tuple(cautions),
    )  # fmt: skip


def ledger(net: Network, observer: Observer, setup: Traffic, wrong: bool = False) -> tuple[Ledger, bool]:
    """What all sites have sent so far: before the first step, since then by the method, and for the observer; and whether a
    process found something wrong with its own sums. One sum, which is counted with the rest."""
    method = net.traffic - setup
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


def _plain(values: Tensor) -> Any:
    """Numbers, or lists of them."""
    return values.tolist()


def start_of(problem: Sampled, scaled: Scaling) -> NodeTensor:
    """No feature, and the intercepts that are best then, which every node knows already."""
    start, intercepts = problem.start(), problem.reg.unpenalized
    if intercepts and not problem.translates:  # where targets are centred, it is 0
        start = torch.cat((start[..., :-intercepts], problem.constant(scaled.target)), dim=-1)
    return start


def plan_for(task: Task, problem: Sampled, net: Network) -> Plan:
    """The method asked for; or moments, sums or gossip, whichever is cheapest and works on these links."""
    if task.optimizer is not None:
        optimizer, card = load_optimizer(task.optimizer)
        why = f"{card.name}, trained for {card.good_for}"
        return Plan(optimizer.label, why, _each(task, optimizer, problem, net), optimizer, {})
    if task.method is not None or task.parameters or task.messages:
        return _as_asked(task, problem, net)
    d = problem.d - problem.reg.unpenalized
    if task.links == "lossy":
        chosen = choose(task.pay, _learned(task, problem, net), net, problem.d, link_of(task, net))
        why = (
            "gossip for links that may lose messages (simulated: between real processes none is lost, and one that does not "
            "answer ends the run), with nothing to tune"
        )
        return _as_chosen(chosen, f"{chosen.best.name}, {why} ({brief(chosen.best.parameters)})", task, problem, net)
    held = 8 * newton.numbers(problem.d)
    if task.pay == "bytes" and newton.is_cheaper(task.loss, problem.d) and held <= LARGEST:
        return _summed(task, problem, net)
    link = link_of(task, net)
    chosen = choose(task.pay, _learned(task, problem, net), net, problem.d, link)
    if task.pay != "bytes" and held <= LARGEST and _summed_cost(task, held, net, link) <= chosen.best.cost(task.pay):
        return _summed(task, problem, net)
    if "newton" in chosen.best.parameters or task.pay != "bytes":
        return _as_chosen(chosen, chosen.why, task, problem, net)
    why = f"{chosen.why} (curvatures of {d:,} features would be {amount(held)} a message, more than gradients cost)"
    return _as_chosen(chosen, why, task, problem, net)


def _summed(task: Task, problem: Sampled, net: Network) -> Plan:
    """Curvatures, summed: once for the squared loss, in every iteration of Newton's method else."""
    cost, paid = costs.of_curvatures(problem, net), "" if task.pay == "bytes" else f", for fewest {task.pay}"
    if task.loss == "squared":
        why = "moments: one sum of XᵀX and Xᵀy over a spanning tree, then every site solves the same small problem exactly"
        return Plan("Moments", why + paid, cost)
    why = "Newton on sums: curvatures and gradients summed over a spanning tree, a small problem at every site, and again"
    return Plan("Newton on sums", why + paid, cost)


def _summed_cost(task: Task, held: int, net: Network, link: Link | None) -> float:
    """In rounds or seconds: of curvatures, and of the short sums beside them (where a step goes, and the gradient there)."""
    iterations, sums = 1 if task.loss == "squared" else costs.NEWTON, 3
    rounds = iterations * sums * 2 * net.topology.tree.height
    if task.pay == "rounds" or link is None:
        return rounds
    return rounds * link.latency + iterations * 2 * net.topology.tree.height * held / link.bandwidth


def _as_chosen(chosen: Chosen, why: str, task: Task, problem: Sampled, net: Network) -> Plan:
    best, method = chosen.best, chosen.algorithm
    every = LOOKS["curvatures" if "newton" in best.parameters else "sums" if method.rounds is None else "gossip"]
    rounds = "1 round" if best.rounds == 1 else f"{best.rounds:g} rounds"
    each = f"{amount(round(best.bytes))} in {rounds}, in each iteration" + (
        " on average" if {"newton", "coded"} & set(best.parameters) else ""
    )
    cost = costs.of_iterations(each, problem, net, reliable=task.links == "reliable", alike=bool(method.alike))
    return Plan(method.label, why, cost, method, dict(best.parameters), every)


def _learned(task: Task, problem: Sampled, net: Network) -> Facts:
    """What the choice asks for; where seconds count and nodes are real, with how long their gradients take."""
    # Local steps are measured on synthetic problems alone so far, not on own data of sites that differ much in size.
    facts = replace(learn(problem, net, reliable=task.links == "reliable"), local=False)
    if task.pay != "seconds" or not net.real:
        return facts
    return replace(facts, gradient=slowest(net, lambda: problem.grad(problem.start())))


def link_of(task: Task, net: Network) -> Link | None:
    """As given; else, where seconds count and the links are real, as measured now."""
    if task.pay != "seconds" or (task.latency is not None and task.bandwidth is not None):
        return None if task.latency is None or task.bandwidth is None else Link(task.latency, task.bandwidth)
    if not net.real:
        raise InvalidInput(
            "the fewest seconds depend on the links, and here they are simulated: say their latency (in seconds) and bandwidth "
            "(in bytes a second).",
            "latency", "bandwidth",
        )  # fmt: skip
    return Link(*probe(net))


def _each(task: Task, method: Algorithm, problem: Sampled, net: Network) -> str:
    d = problem.d
    size = method.form.size(d, net.dtype) / d if isinstance(method, Remembering) else net.dtype.itemsize
    most = "at most " if isinstance(method, Remembering) and method.form.varies else ""
    each = f"{most}{amount(round(size * method.floats_on(net, d)))} in {method.rounds_on(net)} rounds, in each iteration"
    return costs.of_iterations(each, problem, net, reliable=task.links == "reliable", alike=bool(method.alike))


def _as_asked(task: Task, problem: Sampled, net: Network) -> Plan:
    """The method with the parameters given, and safe ones for the others."""
    sums = task.messages and task.links == "reliable" and not task.parameters
    method = METHODS[task.method] if task.method else TreeAPG if sums else AcceleratedED
    for name in task.parameters:
        if name not in method.space:
            raise InvalidInput(f"{method.label}: {unknown('parameter', name, method.space)}", "set")
    own: dict[str, Any] = dict(task.parameters)
    if set(own) < set(method.space):
        own = {**method.safe(float(maximum(net, problem.lipschitz().unsqueeze(-1)).max()), net).chosen, **own}
    form = message_format(task.messages) if task.messages else None
    chosen = method(**own) if form is None else Remembering(method(**own), form)
    how = f" with {brief(chosen.chosen)}" if method.space else ""
    every = LOOKS["sums" if method.rounds is None else "gossip"]
    cost = _each(task, chosen, problem, net)
    return Plan(chosen.label, f"{chosen.label}{how}, as asked for", cost, chosen, chosen.chosen, every)


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
