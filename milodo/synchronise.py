"""Methods whose messages are compressed differences, with the comparison of what both ends remember after every step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from milodo.algorithms import Algorithm
from milodo.errors import InvalidInput
from milodo.network import Network
from milodo.network.replica import Replica, replicas_in, with_replicas
from milodo.network.replicas import compared
from milodo.problems import Problem
from milodo.types import NodeTensor


class Synchronised(NamedTuple):
    """The state of such a method between two iterations."""

    x: NodeTensor
    inner: Any
    """The method's own state, the replicas among it."""
    k: int
    """Iterations so far: by them replicas are compared."""
    alarm: int
    """What is known of replicas that differ (`Compared`)."""
    tried: NodeTensor
    """x when they were last compared."""
    good: NodeTensor
    """x when they were last compared and known not to differ: that takes some iterations."""

    @property
    def replicas(self) -> list[Replica]:
        return replicas_in(self.inner)


def begin(method: Algorithm, x0: NodeTensor, problem: Problem, net: Network) -> Any:
    """The state of iteration 0."""
    inner = method.init(x0, problem, net)
    if method.compressor is None:
        return inner
    if net.topology.n > 1 and not replicas_in(inner):
        raise InvalidInput(
            f"{method.label} keeps no state of its exchange, so its messages cannot be compressed differences. Let its state "
            "have what self.exchange.init returns, and its step use self.exchange, as Prox-ED does."
        )
    return Synchronised(inner.x, inner, 0, 0, inner.x, inner.x)


def own_state(state: Any) -> Any:
    """What the method's `step` takes and returns."""
    return state.inner if isinstance(state, Synchronised) else state


def after_step(method: Algorithm, before: Any, inner: Any, problem: Problem, net: Network) -> Any:
    """The state of an iteration in which a step led to `inner`, with replicas that were compared, when it was their turn. Where
    they differed beyond rounding the method begins anew: what was added up meanwhile, duals for one, cannot be taken back."""
    return _compared(method, before, inner, problem, net) if isinstance(before, Synchronised) else inner


@torch.no_grad()
def _compared(method: Algorithm, before: Synchronised, inner: Any, problem: Problem, net: Network) -> Synchronised:
    k, parts = before.k + 1, {name: getattr(inner, name) for name in method.alike}
    now = compared(net, replicas_in(inner), list(parts.values()), k=k, alarm=before.alarm)
    if now.anew:
        inner = method.init(before.good, problem, net)
    else:
        inner = with_replicas(inner._replace(**dict(zip(parts, now.alike, strict=True))), now.replicas)
    tried = inner.x if now.begun else before.tried
    return Synchronised(inner.x, inner, k, now.alarm, tried, tried if now.agreed else before.good)
