"""What turns a network's output into a weight: bounded, as the theorem asks, or plain, as the paper ran it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import PlainSerializer, PlainValidator
from torch import Tensor

from milodo.errors import InvalidInput, quoted


class Activation(ABC):
    kind: ClassVar[str]

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
    kind = "bounded"

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

    kind = "relu"

    def __call__(self, o: Tensor) -> Tensor:
        return o.relu()

    def inverse(self, p: Tensor) -> Tensor:
        return p


@dataclass(frozen=True)
class Exp(Activation):
    """exp(o), the paper's choice for p_ij,1. Unbounded."""

    kind = "exp"

    def __call__(self, o: Tensor) -> Tensor:
        return o.exp()

    def inverse(self, p: Tensor) -> Tensor:
        return p.log()


@dataclass(frozen=True)
class Activations:
    """Of p_i, p̃_ij,1 and p_ij,2."""

    m: Activation
    s: Activation
    u: Activation


BOUNDED = Activations(Bounded(1e-3, 0.25), Bounded(0.05, 30.0), Bounded(1e-3, 0.45))
"""For LASSO(10,300,10,0.1) on a ring, where L_i is about 42 and the special weights at γ = 0.03 are 0.03, 5.6 and 1/6; the best
constant ones lie near 0.12, 1 and 1/3 (docs/training.md)."""
PLAIN = Activations(ReLU(), Exp(), ReLU())
"""As the paper ran it."""
WORDS = {"bounded": BOUNDED, "plain": PLAIN}


def read_activations(said: Any) -> Activations:
    """What an experiment or a card says: 'bounded', 'plain', or one for each of m, s and u."""
    if isinstance(said, Activations):
        return said
    if isinstance(said, str) and said in WORDS:
        return WORDS[said]
    if isinstance(said, dict) and set(said) == {"m", "s", "u"}:
        return Activations(**{name: _read(part) for name, part in said.items()})
    raise ValueError(
        f"activations are {quoted(said)}: write 'bounded', 'plain', or bounds, {{ m = [0.001, 0.25], s = [...], u = [...] }}"
    )


def _read(said: Any) -> Activation:
    """[low, high], or a table with the kind, as cards have it."""
    kinds = {kind.kind: kind for kind in (Bounded, ReLU, Exp)}
    table = {"kind": "bounded", "low": said[0], "high": said[1]} if isinstance(said, list) and len(said) == 2 else said
    if isinstance(table, dict) and isinstance(table.get("kind"), str) and table["kind"] in kinds:
        given = {name: value for name, value in table.items() if name != "kind"}
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in given.values()):
            try:
                return kinds[table["kind"]](**given)
            except TypeError:
                raise ValueError(f"the activation {table['kind']!r} cannot take {', '.join(given) or 'no bounds'}") from None
    raise ValueError(f"an activation is {quoted(said)}: write [low, high], or a table with its kind: {', '.join(kinds)}")


def write_activations(activations: Activations) -> dict[str, dict[str, Any]]:
    """As cards have them."""
    return {name: {"kind": part.kind, **asdict(part)} for name, part in vars(activations).items()}  # type: ignore[call-overload]


ActivationsField = Annotated[Activations, PlainValidator(read_activations), PlainSerializer(write_activations)]
"""Of a pydantic model."""
