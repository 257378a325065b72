"""What tuning may choose of a method: the values it searches, and those a person may give."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from milodo.errors import InvalidInput, quoted


class Parameter(ABC):
    """One of a method's numbers."""

    relative: ClassVar[bool] = False
    """Whether it is searched in units of 1/L, L being the largest Lipschitz constant of a node."""

    @abstractmethod
    def check(self, what: str, value: Any) -> None:
        """One sentence for a value that cannot work; `what` says whose it is."""


@dataclass(frozen=True)
class Choice(Parameter):
    """A whole number, each value tried in turn."""

    values: tuple[int, ...]

    def up_to(self, most: float) -> tuple[int, ...]:
        """Also larger ones, each half as large again as the one before."""
        found = list(self.values)
        while (more := math.ceil(1.5 * found[-1])) <= most:
            found.append(more)
        return tuple(found)

    def check(self, what: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidInput(f"{what} is {quoted(value)}, but it must be a whole number >= 1.")


@dataclass(frozen=True)
class Given(Choice):
    """One that is not searched further."""

    def up_to(self, most: float) -> tuple[int, ...]:
        return self.values


@dataclass(frozen=True)
class Share(Choice):
    """A number from low to high, of which tuning tries the values given."""

    values: tuple[float, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    low: float
    high: float

    def up_to(self, most: float) -> tuple[float, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.values

    def check(self, what: str, value: Any) -> None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high:
            raise InvalidInput(f"{what} is {quoted(value)}, but it must be a number from {self.low:g} to {self.high:g}.")


@dataclass(frozen=True)
class Continuous(Parameter):
    """A number > 0, or a tensor of them; searched on a logarithmic grid from low to high."""

    low: float
    high: float

    def grid(self, points: int, unit: float) -> np.ndarray:
        return np.geomspace(self.low * unit, self.high * unit, points)

    def allowed(self, values: np.ndarray) -> np.ndarray:
        """Those that make sense."""
        return values

    def check(self, what: str, value: Any) -> None:
        if not isinstance(value, int | float | torch.Tensor) or isinstance(value, bool):
            raise InvalidInput(f"{what} is {quoted(value)}, but it must be a number.")
        if isinstance(value, torch.Tensor) and value.numel() == 0:
            raise InvalidInput(f"{what} is an empty tensor, but it must hold at least one number.")
        numbers = value.detach().double().flatten().cpu().numpy() if isinstance(value, torch.Tensor) else [value]
        for number in _off(numbers):
            said = f"{number:g}" if isinstance(number, float) else quoted(number)
            raise InvalidInput(f"{what} is {said}, but a step size must be a finite number > 0.")
        numbers = np.array([float(number) for number in numbers]) if isinstance(numbers, list) else numbers
        if len(over := np.setdiff1d(numbers, self.allowed(numbers))):
            raise InvalidInput(f"{what} is {over[0]:g}, but it must lie in (0, 1].")


def _off(numbers: np.ndarray | list[Any]) -> list[Any]:
    """The first of them that is not finite and positive, if any is; a whole number may lie beyond what a float holds."""
    if isinstance(numbers, list):
        return [number for number in numbers if not 0 < number <= sys.float_info.max]
    return numbers[~((numbers > 0) & (numbers <= sys.float_info.max))][:1].tolist()


@dataclass(frozen=True)
class StepSize(Continuous):
    """From low/L to high/L."""

    relative = True


@dataclass(frozen=True)
class Factor(Continuous):
    """Without a unit."""


@dataclass(frozen=True)
class Fraction(Continuous):
    """In (0, 1]."""

    def allowed(self, values: np.ndarray) -> np.ndarray:
        return values[values <= 1]


Space = dict[str, Parameter]
