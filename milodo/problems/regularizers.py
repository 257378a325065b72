"""The shared, possibly non-smooth part r of the objective, separable over coordinates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from milodo.errors import InvalidInput, as_float, quoted
from milodo.types import Step


class Regularizer(ABC):
    """r(x) = Σ_l ρ(x_l), with what solvers and certificates ask of it."""

    vanishes: bool = False
    """Whether r = 0."""
    unpenalized: int = 0
    """How many of the last coordinates are intercepts, which are left free."""

    @property
    def penalized(self) -> Regularizer:
        """r of the coordinates that are not intercepts."""
        return self

    def with_penalized(self, reg: Regularizer) -> Regularizer:
        """The same intercepts beside another r."""
        return reg

    @abstractmethod
    def each(self, x: Tensor) -> Tensor:
        """ρ(x_l), coordinate by coordinate."""

    def value(self, x: Tensor) -> Tensor:
        """r(x), summed over the last axis."""
        return self.each(x).sum(-1)

    @abstractmethod
    def prox(self, v: Tensor, step: Step) -> Tensor:
        """argmin_x r(x) + ½ ‖x - v‖² in the metric Diag(step)⁻¹; step is a number or a tensor that broadcasts against v."""

    @abstractmethod
    def distance(self, x: Tensor, v: Tensor) -> Tensor:
        """Distance of v_l to the subdifferential ∂ρ(x_l), coordinate by coordinate. Optimality of x: distance(x, -∇f(x)) = 0."""

    @abstractmethod
    def conjugate(self, v: Tensor) -> Tensor:
        """ρ*(v_l), coordinate by coordinate, for v in the domain of r*."""

    @abstractmethod
    def dual_scaling(self, v: Tensor) -> Tensor | None:
        """The largest s in [0, 1] with s·v in the domain of r* (one s for the last axis); None where only v = 0 is."""

    @abstractmethod
    def free(self, x: Tensor) -> Tensor:
        """Whether ρ is differentiable at x_l: away from kinks and walls."""

    @abstractmethod
    def slope(self, x: Tensor) -> Tensor:
        """ρ'(x_l) where x_l is free."""

    def project(self, x: Tensor) -> Tensor:
        """The nearest point at which r is finite."""
        return x

    def rescaled(self, scale: Tensor, factor: Tensor) -> Regularizer:
        """factor · r(z / scale)."""
        return Rescaled(self, scale, factor)

    @property
    def walled(self) -> bool:
        """Whether r = ∞ somewhere, so that `inside` may move a point. It is known without looking at one."""
        return type(self).project is not Regularizer.project

    def curvature(self, x: Tensor) -> Tensor:
        """ρ''(x_l) where x_l is free; every ρ here is piecewise quadratic, so it is the same wherever that is."""
        return torch.zeros_like(x)


def _penalty(name: str, value: float) -> float:
    number = as_float(value)
    if number is None or not (math.isfinite(number) and number >= 0):
        raise InvalidInput(f"{name} is {quoted(value)}, but a penalty must be a finite number >= 0.")
    return number


def _soft(v: Tensor, threshold: Step) -> Tensor:
    # torch takes numbers or tensors; its stubs know either, not their union
    return v - v.clamp(-threshold, threshold)  # pyright: ignore[reportCallIssue, reportArgumentType]


@dataclass(frozen=True)
class Zero(Regularizer):
    """r = 0."""

    vanishes = True

    def rescaled(self, scale: Tensor, factor: Tensor) -> Regularizer:
        return self

    def each(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def prox(self, v: Tensor, step: Step) -> Tensor:
        return v

    def distance(self, x: Tensor, v: Tensor) -> Tensor:
        return v.abs()

    def conjugate(self, v: Tensor) -> Tensor:
        return torch.zeros_like(v)

    def dual_scaling(self, v: Tensor) -> Tensor | None:
        return None

    def free(self, x: Tensor) -> Tensor:
        return torch.ones_like(x, dtype=torch.bool)

    def slope(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class L1(Regularizer):
    """r(x) = lam ‖x‖₁."""

    lam: float

    def __post_init__(self) -> None:
        _penalty("lam", self.lam)

    def each(self, x: Tensor) -> Tensor:
        return self.lam * x.abs()

    def value(self, x: Tensor) -> Tensor:
        return self.lam * x.abs().sum(-1)

    def prox(self, v: Tensor, step: Step) -> Tensor:
        return _soft(v, step * self.lam)

    def distance(self, x: Tensor, v: Tensor) -> Tensor:
        return torch.where(x == 0, (v.abs() - self.lam).clamp(min=0), (v - self.lam * x.sign()).abs())

    def conjugate(self, v: Tensor) -> Tensor:
        return torch.zeros_like(v)

    def dual_scaling(self, v: Tensor) -> Tensor | None:
        return (self.lam / v.abs().amax(-1)).clamp(max=1) if self.lam else None

    def free(self, x: Tensor) -> Tensor:
        return x != 0

    def slope(self, x: Tensor) -> Tensor:
        return self.lam * x.sign()


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """r(x) = lam ‖x‖₁ + mu/2 ‖x‖²."""

    lam: float
    mu: float

    def __post_init__(self) -> None:
        _penalty("lam", self.lam)
        _penalty("mu", self.mu)

    def each(self, x: Tensor) -> Tensor:
        return self.lam * x.abs() + self.mu / 2 * x * x

    def value(self, x: Tensor) -> Tensor:
        return self.lam * x.abs().sum(-1) + self.mu / 2 * x.square().sum(-1)

    def prox(self, v: Tensor, step: Step) -> Tensor:
        return _soft(v, step * self.lam) / (1 + step * self.mu)

    def distance(self, x: Tensor, v: Tensor) -> Tensor:
        return L1(self.lam).distance(x, v - self.mu * x)

    def conjugate(self, v: Tensor) -> Tensor:
        return (v.abs() - self.lam).clamp(min=0).square() / (2 * self.mu) if self.mu else torch.zeros_like(v)

    def dual_scaling(self, v: Tensor) -> Tensor | None:
        return v.new_ones(v.shape[:-1]) if self.mu > 0 else L1(self.lam).dual_scaling(v)

    def free(self, x: Tensor) -> Tensor:
        return x != 0

    def slope(self, x: Tensor) -> Tensor:
        return self.lam * x.sign() + self.mu * x

    def curvature(self, x: Tensor) -> Tensor:
        return torch.full_like(x, self.mu)


@dataclass(frozen=True)
class Box(Regularizer):
    """r(x) = 0 where low <= x <= high in every coordinate, +∞ elsewhere."""

    low: float
    high: float

    def __post_init__(self) -> None:
        low, high = as_float(self.low), as_float(self.high)
        if low is None or high is None or not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InvalidInput(
                f"the box [{quoted(self.low)}, {quoted(self.high)}] must be finite with low < high. For x >= 0 use NonNegative()."
            )

    def each(self, x: Tensor) -> Tensor:
        # An average of points on a wall may round to beyond it.
        slack = 8 * torch.finfo(x.dtype).eps * max(abs(self.low), abs(self.high))
        return torch.where((x >= self.low - slack) & (x <= self.high + slack), 0.0, math.inf).to(x.dtype)

    def prox(self, v: Tensor, step: Step) -> Tensor:
        return self.project(v)

    def project(self, x: Tensor) -> Tensor:
        return x.clamp(self.low, self.high)

    def distance(self, x: Tensor, v: Tensor) -> Tensor:
        # ∂ρ is (-∞, 0] at the lower end, [0, ∞) at the upper, {0} between, and empty outside.
        at = torch.where(x <= self.low, v.clamp(min=0), torch.where(x >= self.high, v.clamp(max=0), v)).abs()
        return torch.where((x < self.low) | (x > self.high), math.inf, at)

    def conjugate(self, v: Tensor) -> Tensor:
        return torch.maximum(self.low * v, self.high * v)

    def dual_scaling(self, v: Tensor) -> Tensor | None:
        return v.new_ones(v.shape[:-1])

    def free(self, x: Tensor) -> Tensor:
        return (x > self.low) & (x < self.high)

    def slope(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class NonNegative(Regularizer):
    """r(x) = lam Σ x where x >= 0 in every coordinate, +∞ elsewhere."""

    lam: float = 0.0

    def __post_init__(self) -> None:
        _penalty("lam", self.lam)

    def each(self, x: Tensor) -> Tensor:
        return torch.where(x >= 0, self.lam * x, math.inf)

    def project(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    def prox(self, v: Tensor, step: Step) -> Tensor:
        return (v - step * self.lam).clamp(min=0)

    def distance(self, x: Tensor, v: Tensor) -> Tensor:
        at = torch.where(x == 0, (v - self.lam).clamp(min=0), (v - self.lam).abs())
        return torch.where(x < 0, math.inf, at)

    def conjugate(self, v: Tensor) -> Tensor:
        return torch.zeros_like(v)

    def dual_scaling(self, v: Tensor) -> Tensor | None:
        return (self.lam / v.amax(-1).clamp(min=self.lam)).clamp(max=1) if self.lam else None

    def free(self, x: Tensor) -> Tensor:
        return x > 0

    def slope(self, x: Tensor) -> Tensor:
        return torch.full_like(x, self.lam)


@dataclass(frozen=True)
class UnpenalizedIntercept(Regularizer):
    """r of all coordinates but the last, which is free, or the last few: intercepts are not penalised."""

    reg: Regularizer
    unpenalized: int = 1

    @property
    def penalized(self) -> Regularizer:
        return self.reg

    def with_penalized(self, reg: Regularizer) -> Regularizer:
        return replace(self, reg=reg)

    def rescaled(self, scale: Tensor, factor: Tensor) -> Regularizer:
        return UnpenalizedIntercept(self.reg.rescaled(self._rest(scale), factor), self.unpenalized)

    def _rest(self, x: Tensor) -> Tensor:
        return x[..., : -self.unpenalized]

    def _free(self, x: Tensor) -> Tensor:
        return x[..., -self.unpenalized :]

    def _joined(self, rest: Tensor, free: Tensor) -> Tensor:
        return torch.cat((rest, free), dim=-1)

    def each(self, x: Tensor) -> Tensor:
        return self._joined(self.reg.each(self._rest(x)), torch.zeros_like(self._free(x)))

    def value(self, x: Tensor) -> Tensor:
        return self.reg.value(self._rest(x))

    def prox(self, v: Tensor, step: Step) -> Tensor:
        own = self._rest(step) if isinstance(step, Tensor) and step.ndim and step.shape[-1] > 1 else step
        return self._joined(self.reg.prox(self._rest(v), own), self._free(v))

    def distance(self, x: Tensor, v: Tensor) -> Tensor:
        return self._joined(self.reg.distance(self._rest(x), self._rest(v)), self._free(v).abs())

    def conjugate(self, v: Tensor) -> Tensor:
        return self._joined(self.reg.conjugate(self._rest(v)), torch.zeros_like(self._free(v)))

    def dual_scaling(self, v: Tensor) -> Tensor | None:
        return None

    def free(self, x: Tensor) -> Tensor:
        return self._joined(self.reg.free(self._rest(x)), torch.ones_like(self._free(x), dtype=torch.bool))

    def slope(self, x: Tensor) -> Tensor:
        return self._joined(self.reg.slope(self._rest(x)), torch.zeros_like(self._free(x)))

    @property
    def walled(self) -> bool:
        return self.reg.walled

    def project(self, x: Tensor) -> Tensor:
        return self._joined(self.reg.project(self._rest(x)), self._free(x))

    def curvature(self, x: Tensor) -> Tensor:
        return self._joined(self.reg.curvature(self._rest(x)), torch.zeros_like(self._free(x)))


@dataclass(frozen=True, eq=False)
class Rescaled(Regularizer):
    """r in other units: factor · r(z / scale), for variables z = scale · x and an objective counted in 1/factor.

    Powers of two as scale and factor change no digit: what is found in the new units is what stands in the old ones.
    """

    reg: Regularizer
    scale: Tensor
    """Broadcasts against z."""
    factor: Tensor
    """Broadcasts against z."""

    def each(self, x: Tensor) -> Tensor:
        return self.factor * self.reg.each(x / self.scale)

    def prox(self, v: Tensor, step: Step) -> Tensor:
        return self.scale * self.reg.prox(v / self.scale, step * (self.factor / self.scale) / self.scale)

    def distance(self, x: Tensor, v: Tensor) -> Tensor:
        return self.factor / self.scale * self.reg.distance(x / self.scale, v * (self.scale / self.factor))

    def conjugate(self, v: Tensor) -> Tensor:
        return self.factor * self.reg.conjugate(v * (self.scale / self.factor))

    def dual_scaling(self, v: Tensor) -> Tensor | None:
        return self.reg.dual_scaling(v * (self.scale / self.factor))

    def free(self, x: Tensor) -> Tensor:
        return self.reg.free(x / self.scale)

    def slope(self, x: Tensor) -> Tensor:
        return self.factor / self.scale * self.reg.slope(x / self.scale)

    @property
    def walled(self) -> bool:
        return self.reg.walled

    def project(self, x: Tensor) -> Tensor:
        return self.scale * self.reg.project(x / self.scale)

    def curvature(self, x: Tensor) -> Tensor:
        return self.reg.curvature(x) * (self.factor / self.scale) / self.scale


REGULARIZERS: dict[str, type[Regularizer]] = {
    "zero": Zero, "l1": L1, "elastic_net": ElasticNet, "box": Box, "non_negative": NonNegative,
}  # fmt: skip
