"""A guard around gossip: constants that make it diverge are noticed by the nodes and made gentler, until it converges."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from milodo.algorithms.base import Algorithm
from milodo.algorithms.tree_apg import dot
from milodo.network import Network
from milodo.network.levels import Levels
from milodo.problems import Problem
from milodo.tree import leaves, rebuilt
from milodo.types import NodeTensor, Step

GENTLER = 2.0
"""By how much constants change from one level to the next."""
TINY = 2.0**-40
"""A step shorter than the one that was given by this is short enough, where nobody knows one that is."""
CLOSE = 1e-9
"""Of a level: constants closer than this to safe ones are safe."""
GROWN = 3.0
"""Times its first move, times the number of iterations, which a node may move: momentum lets a node that is pulled by an
unchanging gradient move farther in proportion to their number, and divergence is faster than any proportion."""
WINDOW = 50
"""Iterations in which the largest move is looked for: longer than a node rests between two restarts of its momentum."""
RISEN = 3.0
"""Times the smallest such maximum before it that say that moves grow again. Of runs that converge the largest seen was 2.2."""
BACK = -0.3
"""A cosine of two moves in a row, below which the second takes back the first."""
TURNS = 8
"""In a row that say that a step is too long, though walls may keep it from growing."""
LARGE = 0.01
"""Of the largest move so far: only moves of that size count, those at rest are rounding."""


class State(NamedTuple):
    x: NodeTensor
    inner: Any
    """The method's own state."""
    start: NodeTensor
    """x⁰."""
    slope: Tensor
    """‖∇f_i(x⁰)‖ [*batch, n, 1], like all scalars that follow."""
    move: NodeTensor
    """x - x₋."""
    level: Tensor
    k: Tensor
    """Iterations at this level."""
    usual: Tensor
    """How far a node moves when nothing is wrong yet: D_i of the first iteration, at least γ‖∇f_i(x⁰)‖, which no prox stops."""
    largest: Tensor
    """D_i so far at this level."""
    recent: Tensor
    """Of the current 50."""
    least: Tensor
    """The smallest of those of the 50 before, and so on; infinite before there is one."""
    turns: Tensor
    """Moves in a row that took back the one before."""


class Guarded(Algorithm):
    """A gossip method whose nodes go up a level when it diverges; from one level to the next its constants become gentler:

    D_i  = ‖x_i⁺ - x_i‖
    c_i⁺ = max(c_i + 1 where node i is alarmed, c_j of all neighbours j),   at most the level where all constants are safe

    Node i is alarmed where after k iterations at a level D_i is more than 3k times the first there (or γ‖∇f_i(x⁰)‖, if that is
    more); where the largest D_i of 50 iterations is 3 times that of some 50 before; or where eight moves in a row took back the
    one before (cosine < -0.3, none of them smaller than a hundredth of the largest).

    A node that goes up begins anew: from x⁰, with y = 0, and hears only neighbours at its own level. So a level is a run of the
    method by itself, with constants of its own, in which some nodes take part later than others; over links to those who do not
    take part yet nothing is exchanged, as if they were down.

    Why Σy = 0: within one level all nodes have the same constants, and y_i is a sum of edge terms of that level alone, since it
    was 0 when the node came to it; what i adds for an edge, j subtracts in the same round, because both leave an edge out unless
    the two levels in that very message are equal. So y sums to zero over the nodes of the highest level, which nobody has left,
    at every step, whatever is rounded or lost; and the flood of one whole number a message brings all nodes there. A diverging
    run leaves nothing behind: not even the rounding of a huge y, which would move the fixed point for good.

    There are finitely many levels, so some level is the last, and from there on it is the method with that level's constants.
    Where those that are given are safe there is but one level, and nobody ever begins anew.
    """

    State = State

    @property
    @abstractmethod
    def method(self) -> Algorithm:
        """What is guarded, with the constants it was given: those of level 0."""

    @abstractmethod
    def gentler(self, level: Tensor, inner: Any, problem: Problem, net: Network) -> Any:
        """A step of the method with the constants of each node's level."""

    @abstractmethod
    def length(self, level: Tensor) -> Step:
        """γ at each node's level."""

    @abstractmethod
    def last(self, net: Network) -> Step:
        """The level above which nothing becomes gentler."""

    @property
    def rounds(self) -> int | None:
        return self.method.rounds

    def rounds_on(self, net: Network) -> int:
        return self.method.rounds_on(net)

    def floats_on(self, net: Network, d: int) -> int:
        return self.method.floats_on(net, d + 1)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        g = problem.grad(x0).detach()
        return self._begun(x0, torch.zeros_like(x0[..., :1]), dot(g, g).sqrt(), problem, net)

    def _begun(self, x0: NodeTensor, level: Tensor, slope: Tensor, problem: Problem, net: Network) -> State:
        """At the beginning of a level."""
        zero = torch.zeros_like(level)
        return State(
            x=x0,
            inner=self.method.init(x0, problem, net),
            start=x0,
            slope=slope,
            move=torch.zeros_like(x0),
            level=level,
            k=zero,
            usual=zero,
            largest=zero,
            recent=zero,
            least=zero + torch.inf,
            turns=zero,
        )

    def step(self, state: State, problem: Problem, net: Network) -> State:
        levels = Levels(state.level)
        inner = self.gentler(state.level, state.inner, problem, net.among(levels))
        move, k = (inner.x - state.x).detach(), state.k + 1
        D, along = dot(move, move).sqrt(), dot(move, state.move)
        usual = torch.where(k == 1, D.maximum(self.length(state.level) * state.slope), state.usual)
        largest, recent = state.largest.maximum(D), state.recent.maximum(D)
        took_back = along < BACK * D * dot(state.move, state.move).sqrt()
        turns = torch.where(took_back & (LARGE * largest <= D), state.turns + 1, 0.0)
        full = k % WINDOW == 0
        rest = largest * torch.finfo(D.dtype).eps ** 0.5
        risen = full & (recent > RISEN * state.least.maximum(rest))
        fine = GROWN * k * usual >= D  # not so where D is no number
        alarm = ~fine | risen | (turns >= TURNS)
        after = State(
            x=inner.x,
            inner=inner,
            start=state.start,
            slope=state.slope,
            move=move,
            level=state.level,
            k=k,
            usual=usual,
            largest=largest,
            recent=torch.where(full, 0.0, recent),
            least=torch.where(full, state.least.minimum(recent), state.least),
            turns=turns,
        )
        if not bool((alarm | (levels.highest > state.level)).any()):  # as nearly always
            return after
        level = (state.level + alarm).minimum(torch.as_tensor(self.last(net)).to(D)).maximum(levels.highest)
        anew = self._begun(state.start, level, state.slope, problem, net)
        return chosen(level > state.level, anew, after)


def chosen(where: Tensor, one: Any, other: Any) -> Any:
    """Of two states, node by node."""
    parts = zip(leaves(one).items(), leaves(other).values(), strict=True)
    return rebuilt(other, {name: torch.where(where, a, b) for (name, a), b in parts})


def steps_down(given: Step, safe: Step | None) -> Tensor:
    """Levels until what was given is safe."""
    ratio = torch.as_tensor(given, dtype=torch.float64) / (TINY * given if safe is None else safe)
    return (ratio.log2() - CLOSE).ceil().clamp(min=0)


def shrunk(given: Step, level: Tensor, safe: Step | None) -> Tensor:
    """given/2ᶜ, but not below what is safe; what was given smaller stays what it is."""
    less = given * GENTLER**-level
    return less if safe is None else less.maximum(torch.as_tensor(given, dtype=less.dtype).clamp(max=safe))


def grown(given: Step, level: Tensor, safe: Step) -> Tensor:
    """2ᶜ given, but not above what is safe; what was given larger stays what it is."""
    more = given * GENTLER**level
    return more.minimum(torch.as_tensor(given, dtype=more.dtype).clamp(min=safe))
