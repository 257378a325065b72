"""What turns a network's output into a weight: bounded, as the theorem asks, or plain, as the paper ran it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from milodo.errors import InvalidInput


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


class ActivationSettings(BaseModel):
    """An activation on a card."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    kind: Literal["bounded", "relu", "exp"]
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, activation: Activation) -> ActivationSettings:
        kind = next(name for name, kind in ACTIVATIONS.items() if type(activation) is kind)
        return cls(kind=kind, **vars(activation))  # type: ignore[arg-type]  # pydantic checks it

    def build(self) -> Activation:
        given = {name: value for name, value in (("low", self.low), ("high", self.high)) if value is not None}
        try:
            return ACTIVATIONS[self.kind](**given)
        except TypeError:
            raise InvalidInput(f"the activation {self.kind!r} cannot take {', '.join(given) or 'no bounds'}") from None
