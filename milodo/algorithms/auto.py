"""The cheapest way to a certified answer on one graph, for what the user pays for: predicted, chosen, explained."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from milodo.algorithms.accelerated_ed import DUAL, ENOUGH, AcceleratedED, step_size
from milodo.algorithms.base import Algorithm
from milodo.algorithms.flood_apg import FloodAPG
from milodo.algorithms.guesses import MOST, pooled_guess, sums_guess
from milodo.algorithms.lepdo import LEPDO, iterations_of
from milodo.algorithms.tree_apg import TreeAPG
from milodo.algorithms.tree_newton import TreeNewton
from milodo.algorithms.uneven import uneven
from milodo.errors import InvalidInput, unknown
from milodo.network import Bits, Cast, Coded, Format, Levels, Network
from milodo.network.consensus import maximum, roughly_maximum
from milodo.network.exchange import Polynomial
from milodo.network.requirement import Requirement, check
from milodo.problems import Problem
from milodo.solvers.prox_newton import INNER
from milodo.solvers.triangles import packed_size
from milodo.topology.filters import enough
from milodo.types import NodeScalar
from milodo.words import amount

PAYS = ("bytes", "rounds", "seconds")
"""What a user may want to have least of."""
BITS_OF_SUMS, CALM = (4, 5, 6, 7, 8, 9, 10), 0.16
"""With b bits sums over a tree need the iterations they need with 64 if what its edges carry is at most so many times 2ᵇ - 2:
measured on rings of 10 to 100 nodes, paths, grids and trees; with 3 they diverge even on small ones."""
BITS = ((4.0, 6), (20.0, 8))
"""By how much an average may amplify rounding, and the bits its messages then need."""
LEVELS_OF_A_ROUND = 5
"""Of one round, which amplifies nothing, with bounded momentum: five levels, 2.34 bits, took the iterations of 64 bits (in 5
of 72 cases up to 1.23 times as many) on nine graphs and four kinds of problems, links down or not; three levels diverge. Without
a bound 3 bits diverge on complete(12), and 4 take three times the iterations of 6 on breast cancer with raw columns at three
sites."""
CODED, CODED_BITS, CODED_SUMS = 0.68, 0.8, 0.83
"""Of the longest message, what one takes in a code, on average over runs to 1e-3 of LASSO: in gossip 0.65 to 0.75 of five levels
on ring(10) and tree(31), 0.8 of 6 bits on exponential(16) and complete(12); in sums 0.7 to 0.82 of 4 bits, 0.9 of 6."""
PATIENCE, GENTLEST, BOLDEST = 4.0, 0.025, 0.1
"""σ = 1 - β of one round whose momentum is bounded: so many over the iterations that sums will need, within these. Hard problems
need momentum: on ring(10), 30 % of the links down, 820 rounds to 1e-3 with 0.025 where 0.05 takes more than 1,500. Easy ones on
weak graphs need duals that move: tree(31) 414 rounds with 0.1 and 544 with 0.05, a logistic problem on ring(30) 278 and 572."""
FAR = 1.7
"""Over √(1 - θ), times `duals`, iterations that duals take to cross a wide graph: LASSO on ring(100), where √(1 - θ) is 1/32,
takes 500 rounds to 1e-3 and 1,352 to 1e-5."""
MORE = 1
"""Further rounds that are considered beyond the fewest that are enough."""
QUADRATIC, BENDING = 4.0, 8.0
"""Iterations of Newton's method: where curvature is the same everywhere, told once in 16 bits, and where it is told anew in 8."""
LARGEST = 2000
"""Unknowns up to which a node holds a matrix of all pairs of them."""
SPEED = 1e9
"""Multiplications a second that a node does, more or less."""
WORK = 1.5
"""Gradients that an iteration on sums is worth: one, and a value."""
CROWD = 64
"""Nodes up to which everybody may tell everybody."""
DIFFERENT, TOLD = 6.0, 64
"""Times the mean curvature that the largest must be for nodes to tell each other theirs, and how many nodes do so at most. Where
curvatures are spread evenly over 100 times, five times the mean, steps of their own took 2.5 to 3.3 times the rounds."""
HARDER = 3.0
"""By how much a problem may be harder than nodes guess."""


@dataclass(frozen=True)
class Facts:
    """What every node knows before the start, having told its neighbours a few numbers."""

    L: float
    """The largest Lipschitz constant of a node."""
    mean: float
    """Of all nodes."""
    pooled: float
    """Of the mean of all f_i, as each node guesses it from its own samples."""
    sums: float = MOST
    """Iterations that accelerated gradients on exact sums will need, as nodes guess it from their own samples."""
    reliable: bool = True
    """Whether no message is ever lost."""
    newton: float | None = None
    """Iterations that Newton's method will need; None where problems do not know their Hessians."""
    gradient: float = 0.0
    """Seconds that a gradient takes at the slowest node; 0 where nobody has measured it."""
    curvatures: tuple[float, ...] | None = None
    """The Lipschitz constants of all nodes, where they differ so much that everybody has to know them."""
    duals: float = 9.0
    """Times 1/(0.05 + (1 - θ)²/2), or 1.7/√(1 - θ) if that is more, iterations that gossip takes at least, because its duals must
    find their place."""
    local: bool = True
    """Whether gossip may take local steps."""


@dataclass(frozen=True)
class Link:
    """Between two neighbours, one like the other."""

    latency: float
    """Seconds until a message of no length arrives."""
    bandwidth: float
    """Bytes a second."""

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0 and math.isfinite(self.latency)):
            raise InvalidInput(
                f"latency {self.latency:g} s and bandwidth {self.bandwidth:g} bytes/s: give a time >= 0 and a bandwidth > 0."
            )


@dataclass(frozen=True)
class Candidate:
    """One way, and what an iteration of it costs."""

    name: str
    parameters: dict[str, Any]
    """By which `made` makes it again."""
    iterations: float
    """Predicted."""
    bytes: float
    """All nodes together, an iteration, like what follows."""
    rounds: float
    seconds: float | None = None

    def cost(self, pay: str) -> float:
        """Of the whole run."""
        each = getattr(self, pay)
        if each is None:
            raise InvalidInput("what a run takes in seconds depends on the links: say their latency and bandwidth.")
        return self.iterations * each


@dataclass(frozen=True)
class Chosen:
    """The cheapest candidate, and the others in order."""

    pay: str
    best: Candidate
    others: tuple[Candidate, ...]

    @property
    def algorithm(self) -> Algorithm:
        return made(self.best.parameters)

    @property
    def why(self) -> str:
        cost = self.best.cost(self.pay)
        said = f"{self.best.name}: for fewest {self.pay}, about {_said(cost, self.pay)}"
        if not self.others:
            return f"{said}; nothing else works on these links"
        second = self.others[0]
        return f"{said}; next best is {second.name}, about {_said(second.cost(self.pay), self.pay)}"

    @property
    def prediction(self) -> dict[str, Any]:
        """For the records."""
        rows = {c.name: {"iterations": round(c.iterations, 1), "cost": c.cost(self.pay)} for c in (self.best, *self.others)}
        return {"pay": self.pay, "chosen": self.best.name, "candidates": rows}


def _times(cost: float, least: float) -> float:
    """How many times the least; a single node pays nothing."""
    return 1.0 if cost == least else cost / least if least else math.inf


def _said(cost: float, pay: str) -> str:
    return amount(round(cost)) if pay == "bytes" else f"{cost:,.0f} rounds" if pay == "rounds" else f"{cost:.3g} s"


def made(parameters: dict[str, Any]) -> Algorithm:
    """The method that was chosen: with a step size gossip, with local steps where there are any; else sums, by all or over a
    tree, of curvatures where it says so."""
    own = {name: value for name, value in parameters.items() if name not in ("bits", "levels", "coded", "flood", "newton")}
    sums = FloodAPG() if "flood" in parameters else TreeNewton() if "newton" in parameters else TreeAPG()
    gossip = LEPDO if "local_steps" in own else AcceleratedED
    return (gossip(**own) if own else sums).compressed(_form(parameters))


def _form(parameters: dict[str, Any]) -> Format:
    if parameters.get("bits") == 16:
        return Cast(torch.float16)
    form = Levels(int(parameters["levels"])) if "levels" in parameters else Bits(int(parameters["bits"]))
    return Coded(form) if "coded" in parameters else form


def choose(pay: str, facts: Facts, net: Network, d: int, link: Link | None = None) -> Chosen:
    """The candidate with the least predicted cost on this network, for a problem of d unknowns.

    How many iterations it takes is only guessed, and a wrong guess costs more one way than the other: what counts is the product
    of how many times more than the best each would cost if the guess is right, and if it takes three times as many.
    """
    if pay not in PAYS:
        raise unknown("price", pay, PAYS)
    _one_graph(net)
    harder = replace(facts, sums=min(MOST, HARDER * facts.sums), duals=HARDER * facts.duals)
    cases = [candidates(pay, f, net, d, link) for f in (facts, harder)]
    least = [min(candidate.cost(pay) for candidate in case) for case in cases]
    regret = [
        math.prod(_times(c.cost(pay), low) for c, low in zip(pair, least, strict=True)) for pair in zip(*cases, strict=True)
    ]
    # What is as good to rounding stays in order: all nodes must choose the same, though their machines round differently.
    order = sorted(range(len(regret)), key=lambda k: float(f"{regret[k]:.9g}"))
    best, *others = (cases[0][k] for k in order)
    return Chosen(pay, best, tuple(others))


def candidates(pay: str, facts: Facts, net: Network, d: int, link: Link | None) -> list[Candidate]:
    """All ways that work on these links."""
    tree = [sums(pay, facts, net, d, link)] if facts.reliable else []
    return [*tree, *by_all(pay, facts, net, d, link), *newtons(facts, net, d, link), *gossips(pay, facts, net, d, link)]


def sums(pay: str, facts: Facts, net: Network, d: int, link: Link | None) -> Candidate:
    """Tree-APG on differences of a few bits, coded where bytes are paid for."""
    method, tree = TreeAPG(), net.topology.tree
    bits = next((b for b in BITS_OF_SUMS if tree.carried <= CALM * (2**b - 2)), BITS_OF_SUMS[-1])
    short = {"bits": bits} | _coded(pay)
    form = _form(short)
    size = (CODED_SUMS if form.varies else 1.0) * form.size(d, net.dtype) + net.dtype.itemsize
    rounds = method.exchange.rounds(net.mixing)
    seconds = None if link is None else rounds * (link.latency + size / link.bandwidth) + WORK * facts.gradient
    sent = 2 * (len(tree.parent) - 1) * size
    return Candidate(f"{method.label} in {form}", short, facts.sums, sent, rounds, seconds)


def _coded(pay: str) -> dict[str, int]:
    """Where bytes are paid for: a code takes time, and its messages come as long as they come."""
    return {"coded": 1} if pay == "bytes" else {}


def newtons(facts: Facts, net: Network, d: int, link: Link | None) -> list[Candidate]:
    """Tree-Newton, where problems know their Hessians and a matrix of all pairs of unknowns can be held."""
    if facts.newton is None or not facts.reliable or d > LARGEST:
        return []
    method, n, iterations = TreeNewton(), len(net.topology.tree.parent), facts.newton
    form, told = (Cast(torch.float16), 1.0) if iterations == QUADRATIC else (Bits(8), iterations)
    size = (d + 1) * net.dtype.itemsize + form.size(packed_size(d), net.dtype) * told / iterations
    rounds, work = method.exchange.rounds(net.mixing), facts.gradient + INNER * d * d / SPEED
    seconds = None if link is None else work + rounds * (link.latency + size / link.bandwidth)
    bits = 16 if isinstance(form, Cast) else form.b
    return [Candidate(f"{method.label} in {form}", {"newton": 1, "bits": bits}, iterations, 2 * (n - 1) * size, rounds, seconds)]


def by_all(pay: str, facts: Facts, net: Network, d: int, link: Link | None) -> list[Candidate]:
    """Flood-APG in 4 bits, where seconds count: nothing is rounded twice, however wide the graph is."""
    if pay != "seconds" or link is None or not facts.reliable or not 1 < net.topology.n <= CROWD:
        return []
    method, flood, form = FloodAPG(), net.topology.flood, Bits(BITS_OF_SUMS[0])
    size = form.size(d, net.dtype) + net.dtype.itemsize
    seconds = len(flood.rounds) * link.latency + flood.longest * size / link.bandwidth + WORK * facts.gradient
    parameters = {"bits": form.b, "flood": 1}
    return [Candidate(f"{method.label} in {form}", parameters, facts.sums, flood.messages * size, len(flood.rounds), seconds)]


def gossips(pay: str, facts: Facts, net: Network, d: int, link: Link | None) -> list[Candidate]:
    """LEPDO with local steps; Accelerated-ED with one round and, where links hold, with as many as leave little disagreement."""
    failing = not facts.reliable or net.outage is not None
    one = AcceleratedED.safe(facts.L, net, facts.mean)
    if (one.momentum or one.allowed(net)[0]) < 1:
        sigma = min(BOLDEST, max(GENTLEST, PATIENCE / facts.sums))
        one = replace(one, momentum=1 - sigma, dual=sigma)
    ways = [(one, slower(facts, Polynomial(K=1).contraction(net.mixing)))]
    if not failing:
        fewest = enough("minimax", net.mixing, ENOUGH)
        for K in range(max(2, fewest), fewest + MORE + 1):
            theta = Polynomial(K=K).contraction(net.mixing)
            ways.append((AcceleratedED(gamma=step_size(facts.L, facts.mean, theta), K=K), slower(facts, theta)))
    found = [_gossip(pay, method, iterations, facts, net, d, link, "") for method, iterations in ways]
    best = None if failing or facts.curvatures is None else uneven(facts.curvatures, net)
    if best is not None:
        iterations = slower(replace(facts, L=min(facts.L, 1.2 * best.effective)), best.contraction)
        found.append(_gossip(pay, best.method, iterations, facts, net, d, link, ", own steps"))
    return [*local(pay, facts, net, d, link), *(candidate for candidate in found if candidate is not None)]


def local(pay: str, facts: Facts, net: Network, d: int, link: Link | None) -> list[Candidate]:
    """LEPDO with local steps: an iteration is one vector an edge and many gradients, which cost no byte and no round."""
    if net.topology.n == 1 or not facts.local:
        return []
    frugal, failing = pay == "bytes", not facts.reliable or not net.holds
    few = (frugal or failing) and LEPDO.takes_few_levels(net, failing=failing)
    short = ({"levels": LEVELS_OF_A_ROUND} if few else {"bits": BITS_OF_SUMS[0] if frugal else BITS[0][1]}) | _coded(pay)
    method, form = LEPDO.local(facts.L, net, facts.mean, facts.sums, short=frugal, failing=failing), _form(short)
    size = (1.0 if not form.varies else CODED if few else CODED_BITS) * form.size(d, net.dtype)
    seconds = None if link is None else link.latency + size / link.bandwidth + method.gradients * facts.gradient
    name = f"{method.label} ({method.local_steps} local steps) in {form}"
    parameters = {key: value for key, value in method.chosen.items() if key != "lookahead"}
    iterations = iterations_of(facts.sums, net, facts.duals / Facts.duals, failing=failing)
    return [Candidate(name, {**parameters, **short}, iterations, len(net.topology.arcs) * size, 1, seconds)]


def _gossip(
    pay: str, method: AcceleratedED, iterations: float, facts: Facts, net: Network, d: int, link: Link | None, remark: str
) -> Candidate | None:  # fmt: skip
    """Accelerated-ED in as many bits as A needs, coded where bytes are paid for; None if no number of bits is enough."""
    gain, rounds = method.exchange.noise_gain(method.on(net).mixing), method.K
    bits = next((b for most, b in BITS if gain <= most), None)
    if bits is None:
        return None
    short = {"levels": LEVELS_OF_A_ROUND} if rounds == 1 and (method.momentum or 1) < 1 else {"bits": bits}
    short |= _coded(pay)
    form = _form(short)
    share = 1.0 if not form.varies else CODED if "levels" in short else CODED_BITS
    size = share * form.size(d, net.dtype)
    seconds = None if link is None else rounds * (link.latency + size / link.bandwidth) + facts.gradient
    name = f"{AcceleratedED.label} (K = {rounds}{remark}) in {form}"
    sent = method.exchange.messages(net.mixing) * size
    return Candidate(name, {**method.chosen, **short}, iterations, sent, rounds, seconds)


def slower(facts: Facts, theta: float) -> float:
    """Iterations of gossip, where those of exact sums are known: measured on 16 graphs with seven kinds of data (docs/plus.md).

    Where nodes hold much the same data it needs hardly more; where their curvatures cancel in the mean, sums can take the longer
    steps that the mean allows, and gossip cannot.
    """
    duals = facts.duals * max(1 / (DUAL + (1 - theta) ** 2 / 2), FAR / math.sqrt(1 - theta))
    return max(facts.sums * max(1.2, 0.9 * facts.L / facts.pooled * (0.4 + 0.6 * theta)), duals)


@torch.no_grad()
def learn(problem: Problem, net: Network, *, reliable: bool = True) -> Facts:
    """What `choose` needs to know, by telling neighbours: the same at every node.

    Three sums of one number a node over the tree and one maximum, which floods the graph; where links fail, all by maxima, which
    are the same at every node whatever is lost (for the mean of guesses, that of the largest and smallest, if sites are alike).
    Where the largest L_i is more than six times the mean and links hold, everybody's. Of a batch of instances it is the worst.
    """
    _one_graph(net)
    L, n = problem.lipschitz(), net.topology.n
    pooled = pooled_guess(problem, n)
    own = torch.stack((L, pooled, sums_guess(problem, pooled, n)), dim=-1)
    holds = reliable and net.outage is None
    if holds:
        largest, mean = maximum(net, L.unsqueeze(-1)), net.total(own) / n
    else:
        largest = roughly_maximum(net, torch.cat((own[..., :2], _guesses(problem, own[..., 2])), dim=-1))
        mean = torch.cat((largest[..., :2], _guessed(largest[..., 2:])), dim=-1)
    L_mean, guess, iterations = (float(part.max()) for part in mean.unbind(-1))
    most = float(largest[..., 0].max())
    told = everybodys(L, net) if holds and n <= TOLD and most > DIFFERENT * L_mean else None
    newton = None if not problem.knows_hessian else QUADRATIC if problem.quadratic else BENDING
    return Facts(most, L_mean, min(guess, L_mean), iterations, holds, newton, curvatures=told)


def _guesses(problem: Problem, guess: NodeScalar) -> Tensor:
    """What a node floods for `_guessed` [*batch, n, 4]: its guess, its number of samples to a power of two, and one over each."""
    known = problem.half()
    size = torch.ones_like(guess) if known is None else known[0].clamp(min=1).log2().round().exp2()
    return torch.stack((guess, 1 / guess, size, 1 / size), dim=-1)


def _guessed(largest: Tensor) -> Tensor:
    """The geometric mean of the largest and the smallest guess; where sites differ in size, the largest: what a site with a few
    rows guesses is far off, and too much momentum costs less than too little [*batch, n, 1]."""
    most, inverse, size, small = largest.split(1, dim=-1)
    return torch.where(size * small == 1, (most / inverse).sqrt(), most)


def _one_graph(net: Network) -> None:
    check("auto", {Requirement.FIXED_GRAPH}, net.conditions, "Use accelerated-ed, whose safe parameters suit any.")


def everybodys(L: NodeScalar, net: Network) -> tuple[float, ...]:
    """L_i of all nodes, the largest of a batch of instances, by a sum in which each has a place of its own."""
    place = torch.eye(net.topology.n, dtype=L.dtype, device=L.device)[list(net.nodes)]
    every = net.total(L.unsqueeze(-1) * place)[..., 0, :]
    return tuple(every.reshape(-1, net.topology.n).amax(0).tolist())
