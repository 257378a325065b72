"""Messages with a memory: any method, sending only the difference from what was said before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from milodo.algorithms.ahead import Ahead
from milodo.algorithms.base import Algorithm
from milodo.algorithms.parameters import Space
from milodo.errors import InvalidInput
from milodo.network import Format, Network
from milodo.network.memory import Memory, replicas_of
from milodo.network.replicas import compared
from milodo.problems import Problem
from milodo.types import NodeTensor


class State(NamedTuple):
    x: NodeTensor
    inner: Any
    """The method's own state."""
    replicas: Any
    """Of every exchange in an iteration, what both ends have of it (`Slot`)."""
    k: int
    """Iterations so far: by them replicas are compared."""
    alarm: int
    """What is known of replicas that differ (`Compared`)."""
    tried: NodeTensor
    """x when they were last compared."""
    good: NodeTensor
    """x when they were last compared and known not to differ: that takes some iterations."""


@dataclass(frozen=True)
class Remembering(Algorithm):
    """A method whose messages are differences, as a format has them. Of each exchange in an iteration both ends keep a replica ẑ:

    q = Q(z - ẑ)      is sent
    ẑ⁺ = ẑ + q        at both ends, and is what both use in place of z

    Where z comes to rest so does ẑ, whatever Q rounds away: q is relative to what is still to be said, so a few bits lose nothing
    in the end. Everything the graph adds up is made of ẑ_i - ẑ_j, the same at both ends but for its sign, so what summed to zero
    over the nodes (duals, tracked gradients) still does. A sum over a spanning tree keeps a replica for each of its edges and one
    of the total. A message that is lost changes neither replica; whether both ends still have the same is compared now and then
    (network/replicas.py).
    """

    method: Algorithm
    form: Format

    State = State

    def __post_init__(self) -> None:
        if isinstance(self.method, Remembering):
            raise InvalidInput(
                f"{self.method.label} remembers already what was said, and has messages of its own. Give the method alone."
            )

    @property
    def label(self) -> str:  # type: ignore[override]
        return f"{self.method.label}, {self.form}"

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.method.exact

    @property
    def alike(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.method.alike

    @property
    def space(self) -> Space:  # type: ignore[override]
        return self.method.space

    @property
    def asks(self) -> str:
        return self.method.asks

    @property
    def longest(self) -> int | None:  # type: ignore[override]
        return self.method.longest

    @property
    def gradients(self) -> int:
        return self.method.gradients

    @property
    def rounds(self) -> int | None:
        return self.method.rounds

    @property
    def chosen(self) -> dict[str, Any]:
        return self.method.chosen

    def rounds_on(self, net: Network) -> int:
        return self.method.rounds_on(net)

    def floats_on(self, net: Network, d: int) -> int:
        return self.method.floats_on(net, d)

    def at(self, nodes: Sequence[int]) -> Remembering:
        return replace(self, method=self.method.at(nodes))

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        inner = self.method.init(x0, problem, net)
        with torch.no_grad():  # an iteration in which nothing is sent tells how many replicas there are
            rehearsed = self._stepped(State(inner.x, inner, None, 0, 0, inner.x, inner.x), problem, net)
        return rehearsed._replace(x=inner.x, inner=inner, k=0)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        return self._stepped(state, problem, net)

    def known(self, state: State) -> tuple[NodeTensor, NodeTensor] | None:
        return self.method.known(state.inner)

    def _stepped(self, state: State, problem: Problem, net: Network) -> State:
        memory = Memory(self.form, state.replicas)
        inner = self.method.step(state.inner, problem, net.remembering(memory))
        return state._replace(x=inner.x, inner=inner, replicas=memory.replicas, k=state.k + 1)

    def hear(self, state: State, net: Network) -> tuple[Any, Any]:
        """Of a method that can talk before it has its gradient: what it hears, and the replicas after it."""
        memory = Memory(self.form, state.replicas)
        assert isinstance(self.method, Ahead)
        return self.method.hear(state.inner, net.remembering(memory)), memory.replicas

    def move(self, state: State, heard: tuple[Any, Any], problem: Problem) -> State:
        assert isinstance(self.method, Ahead)
        inner = self.method.move(state.inner, heard[0], problem)
        return state._replace(x=inner.x, inner=inner, replicas=heard[1], k=state.k + 1)

    @torch.no_grad()
    def in_step(self, state: State, problem: Problem, net: Network) -> State:
        """Replicas that were compared, when it was their turn. Where they differed beyond rounding the method begins anew: what
        was added up meanwhile, duals for one, cannot be taken back."""
        parts = {name: getattr(state.inner, name) for name in self.method.alike}
        now = compared(net, state.replicas, list(parts.values()), k=state.k, alarm=state.alarm)
        if now.anew:
            inner = self.method.init(state.good, problem, net)
        else:
            inner = state.inner._replace(**dict(zip(parts, now.alike, strict=True)))
        tried = inner.x if now.begun else state.tried
        return State(inner.x, inner, replicas_of(now.slots), state.k, now.alarm, tried, tried if now.agreed else state.good)
