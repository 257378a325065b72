"""What turns a network's output into a weight: bounded, as the theorem asks, or plain, as the paper ran it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from milodo.errors import InvalidInput, unknown


class Activation(ABC):
    @abstractmethod
    def __call__(self, o: Tensor) -> Tensor: ...

    @abstractmethod
    def inverse(self, p: Tensor) -> Tensor:
        """The output o that gives the weight p."""


@dataclass(frozen=True)
class Bounded(Activation):
    """low + (high - low) σ(o): Theorem 2 needs 0 < m <= p <= M, and the bounds keep training from blowing up."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (0 < self.low < self.high < math.inf):
            raise InvalidInput(f"the bounds [{self.low}, {self.high}] must satisfy 0 < low < high < inf: Theorem 2 needs them.")

    def __call__(self, o: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * o.sigmoid()

    def inverse(self, p: Tensor) -> Tensor:
        if not bool(((p > self.low) & (p < self.high)).all()):
            low, high = float(p.min()), float(p.max())
            raise InvalidInput(
                f"weights {low:g} to {high:g} do not lie inside the bounds ({self.low:g}, {self.high:g}). Widen the bounds."
            )
        return torch.logit((p - self.low) / (self.high - self.low))


@dataclass(frozen=True)
class ReLU(Activation):
    """max(o, 0), the paper's choice for p_i and p_ij,2. It reaches 0, where Theorem 2 no longer speaks."""

    def __call__(self, o: Tensor) -> Tensor:
        return o.relu()

    def inverse(self, p: Tensor) -> Tensor:
        return p


@dataclass(frozen=True)
class Exp(Activation):
    """exp(o), the paper's choice for p_ij,1. Unbounded."""

    def __call__(self, o: Tensor) -> Tensor:
        return o.exp()

    def inverse(self, p: Tensor) -> Tensor:
        return p.log()


ACTIVATIONS: dict[str, type[Activation]] = {"bounded": Bounded, "relu": ReLU, "exp": Exp}


def activation_settings(activation: Activation) -> dict[str, Any]:
    """As JSON, for cards."""
    kind = next(name for name, cls in ACTIVATIONS.items() if type(activation) is cls)
    return {"kind": kind, **asdict(activation)}  # type: ignore[call-overload]  # every activation is a dataclass


def activation_from(settings: dict[str, Any]) -> Activation:
    kind = settings.get("kind", "")
    if kind not in ACTIVATIONS:
        raise unknown("activation", str(kind), ACTIVATIONS)
    return ACTIVATIONS[kind](**{name: value for name, value in settings.items() if name != "kind"})
