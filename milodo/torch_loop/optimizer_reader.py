"""Which method a loop runs, and what of it is read from the optimizer: the local step, or lr, momentum and weight decay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from milodo.algorithms import DPSGD, Algorithm, DecentLaM, DSGDm, GradientTracking, ProxDGD, ProxED, QGDSGDm
from milodo.errors import InvalidInput, unknown
from milodo.network import message_format
from milodo.problems import Problem, Zero
from milodo.torch_loop.flat import Flat
from milodo.types import NodeScalar, NodeTensor, Step


@dataclass(frozen=True)
class Loop:
    """A method as a training loop has it."""

    make: Callable[[Step, Step], Algorithm]
    """From γ and α = 1 - β."""
    whole: bool
    """Whether the local update is all that the optimizer does, whichever it is; else it is the method's, and the optimizer, which
    must be SGD, only says with which lr, momentum and weight decay."""
    momentum: bool = True
    """Whether it has one."""


def _with_local_step(method: type[Any]) -> Loop:
    # Its γ∇f(x) is what the optimizer moves, so γ = 1.
    return Loop(lambda gamma, alpha: method(gamma=1.0), whole=True)


LOOPS: dict[str, Loop] = {
    "d-psgd": _with_local_step(DPSGD),
    "prox-dgd": _with_local_step(ProxDGD),
    "dsgdm": Loop(lambda gamma, alpha: DSGDm(gamma=gamma, alpha=alpha), whole=False),
    "qg-dsgdm": Loop(lambda gamma, alpha: QGDSGDm(gamma=gamma, alpha=alpha), whole=False),
    "decentlam": Loop(lambda gamma, alpha: DecentLaM(gamma=gamma, alpha=alpha), whole=False),
    "d2": Loop(lambda gamma, alpha: ProxED(gamma=gamma), whole=False, momentum=False),
    "gradient-tracking": Loop(lambda gamma, alpha: GradientTracking(gamma=gamma), whole=False, momentum=False),
}
"""A name means what it means in METHODS. D², which is not there, is Exact Diffusion where there is no r (facts of Prox-ED's
docstring): x⁺ = (I + W)/2 (2x - x₋ - γ(g - g₋))."""


class Reader:
    """Makes the method of each step from what the optimizer says then: learning rates may change."""

    def __init__(self, method: str, messages: str, flat: Flat, optimizer: Optimizer) -> None:
        if method not in LOOPS:
            raise unknown("method of a training loop", method, LOOPS)
        self.name, self.loop, self.flat, self.form = method, LOOPS[method], flat, message_format(messages)
        if self.loop.whole:
            return
        if not isinstance(optimizer, torch.optim.SGD):
            raise InvalidInput(
                f"method {method!r} has an update of its own and reads only lr, momentum and weight_decay, from torch.optim.SGD, "
                f"but the optimizer is {type(optimizer).__name__}. Use SGD, or 'prox-dgd' or 'd-psgd', which mix what any "
                "optimizer does."
            )
        for group in optimizer.param_groups:
            for key in ("dampening", "nesterov", "maximize"):
                if group.get(key):
                    raise InvalidInput(f"method {method!r} has an update of its own, without {key}. Make SGD without it.")
            if group["momentum"] and not self.loop.momentum:
                raise InvalidInput(
                    f"method {method!r} has no momentum, and the optimizer has {group['momentum']}. Make SGD without it, or use "
                    "'qg-dsgdm'."
                )

    @property
    def unread(self) -> Algorithm:
        """With any parameters: enough to know the shape of its state."""
        return self._saying(self.loop.make(1.0, 1.0))

    def method(self, optimizer: Optimizer, k: int) -> Algorithm:
        """That of step k."""
        if self.loop.whole:
            return self.unread
        lr, momentum = ([float(group[key]) for group in optimizer.param_groups] for key in ("lr", "momentum"))
        if min(lr) <= 0:
            raise InvalidInput(
                f"the learning rate is {min(lr):g} in step {k}, and {self.name!r} divides by it. Let schedules begin and end "
                "above 0."
            )
        alpha = self.flat.each([1 - each for each in momentum])
        return self._saying(self.loop.make(self.flat.each(lr), alpha))

    def decay(self, optimizer: Optimizer) -> list[float]:
        return [float(group["weight_decay"]) for group in optimizer.param_groups]

    def _saying(self, method: Algorithm) -> Algorithm:
        return method if self.form is None else method.compressed(self.form)


class Local(Problem):
    """What a method sees of a training loop in one step: a gradient that is there already, and no r."""

    reg, n, batch = Zero(), 1, ()

    def __init__(self, g: NodeTensor) -> None:
        self.g, self.d, self.dtype, self.device = g, g.shape[-1], g.dtype, g.device

    def grad(self, x: NodeTensor) -> NodeTensor:
        return self.g

    def value(self, x: NodeTensor) -> NodeScalar:
        raise InvalidInput("the loss of a training loop is its own affair: a method sees its gradient alone.")

    def lipschitz(self) -> NodeScalar:
        raise InvalidInput("the loss of a training loop has no known Lipschitz constant.")

    @property
    def knows_lipschitz(self) -> bool:
        return False

    def at(self, nodes: Any) -> Local:
        return self
