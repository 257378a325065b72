"""The third stage of a fit: which method, why, and what it will cost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from milodo.algorithms import METHODS, AcceleratedED, Algorithm, TreeAPG
from milodo.algorithms.auto import Chosen, Facts, Link, choose, learn
from milodo.errors import InvalidInput, unknown
from milodo.fit import costs, newton
from milodo.fit.newton import NewtonOnSums
from milodo.fit.task import Task
from milodo.learned.checkpoint import load_optimizer
from milodo.loop import Stop
from milodo.network import Network
from milodo.network.consensus import maximum
from milodo.network.formats import message_format
from milodo.network.probe import probe, slowest
from milodo.problems.sampled import Sampled
from milodo.words import amount, brief

LARGEST = 1 << 30
"""Bytes of moments that are still summed: a site holds a matrix of twice that."""
LOOKS = {"curvatures": 1, "sums": 10, "gossip": 20}
"""Iterations between two looks at the stopping rule, at least."""
NEWTON_STEPS, PATIENCE = 60, 6
"""Of Newton's method on sums: iterations at most, and how many in a row may come no nearer."""


@dataclass(frozen=True)
class Plan:
    """How the model will be fitted."""

    label: str
    why: str
    cost: str
    """What it will cost, in words, before it begins."""
    algorithm: Algorithm
    parameters: dict[str, Any] = field(default_factory=dict)
    every: int = LOOKS["gossip"]

    @property
    def sums_curvature(self) -> bool:
        """Whether moments or curvatures are summed, rather than gradients."""
        return self.algorithm.evaluates

    def stages(self, task: Task, net: Network) -> list[tuple[Algorithm, Stop]]:
        """Methods and when each ends: the next goes on where one stalled, or used its iterations."""
        method, every = self.algorithm, self.every
        stages = []
        if self.sums_curvature:
            stages = [(method, Stop(steps=NEWTON_STEPS, tolerance=task.tolerance, every=1, patience=PATIENCE))]
            # Moments of columns that are almost the same lose digits: then gradients of the data themselves go on from there.
            method, every = TreeAPG(), LOOKS["sums"]
        price = costs.of_a_look(method, net)
        return [*stages, (method, Stop(steps=task.iterations, tolerance=task.tolerance, every=every, price=price))]


def plan_for(task: Task, problem: Sampled, net: Network) -> Plan:
    """The method asked for; or moments, sums or gossip, whichever is cheapest and works on these links."""
    if task.optimizer is not None:
        optimizer, card = load_optimizer(task.optimizer)
        why = f"{card.name}, trained for {card.good_for}"
        return Plan(optimizer.label, why, _each(task, optimizer, problem, net), optimizer)
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
        return Plan("Moments", why + paid, cost, NewtonOnSums())
    why = "Newton on sums: curvatures and gradients summed over a spanning tree, a small problem at every site, and again"
    return Plan(NewtonOnSums.label, why + paid, cost, NewtonOnSums())


def _summed_cost(task: Task, held: int, net: Network, link: Link | None) -> float:
    """In rounds or seconds: of curvatures, and of the short sums beside them (where a step goes, and the gradient there)."""
    iterations, sums = 1 if task.loss == "squared" else costs.NEWTON, 3
    rounds = iterations * sums * 2 * net.topology.tree.height
    if task.pay == "rounds" or link is None:
        return rounds
    return rounds * link.latency + iterations * 2 * net.topology.tree.height * held / link.bandwidth


def _as_chosen(chosen: Chosen, why: str, task: Task, problem: Sampled, net: Network) -> Plan:
    best, method = chosen.best, chosen.algorithm
    every = LOOKS["curvatures" if "newton" in best.parameters else "sums" if method.alike else "gossip"]
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
    cost, form = method.cost(net, d), method.compressor
    most = "at most " if form is not None and form.varies else ""
    each = f"{most}{amount(cost.bytes)} in {cost.rounds} rounds, in each iteration"
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
    chosen = method(**own) if form is None else method(**own).compressed(form)
    how = f" with {brief(chosen.chosen)}" if method.space else ""
    every = LOOKS["sums" if method.alike else "gossip"]
    cost = _each(task, chosen, problem, net)
    return Plan(chosen.label, f"{chosen.label}{how}, as asked for", cost, chosen, chosen.chosen, every)
