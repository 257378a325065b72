"""What one-machine solvers ask of a problem F = f + r, f the mean of the f_i held here; every `Problem` is one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.func import hessian

from milodo.network import Observer, StackedObserver
from milodo.solvers.certificates import Certificate, KKTResidualWithHessian
from milodo.types import NodeScalar, NodeTensor, Point

OBSERVER = StackedObserver()


class Penalty(Protocol):
    """What a model is minimised beside: r = Σ_l ρ(x_l), smooth away from 0."""

    @property
    def unpenalized(self) -> int:
        """How many of the last coordinates are intercepts, which it leaves free."""
        ...

    @property
    def penalized(self) -> Penalty:
        """r of the other coordinates."""
        ...

    def slope(self, x: Tensor) -> Tensor:
        """ρ'(x_l)."""
        ...

    def curvature(self, x: Tensor) -> Tensor:
        """ρ''(x_l)."""
        ...


class Objective(ABC):
    """Leading axes *batch are instances. A subclass that knows its structure answers better than these do."""

    reg: Any
    """r: a `milodo.problems.Regularizer`."""
    d: int
    batch: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    lacks_rank: bool = False
    """Whether ∇²f is known to be singular everywhere."""

    @abstractmethod
    def value(self, x: NodeTensor) -> NodeScalar: ...

    @abstractmethod
    def grad(self, x: NodeTensor) -> NodeTensor: ...

    @abstractmethod
    def lipschitz(self) -> NodeScalar: ...

    @abstractmethod
    def everywhere(self, x: Point) -> NodeTensor: ...

    @abstractmethod
    def objective(self, x: Point, observer: Observer) -> Tensor: ...

    def pooled(self) -> Objective:
        """The same objective with all data at one node, where that is known."""
        return self

    def in_own_units(self) -> tuple[Objective, Tensor]:
        """The same in units in which its numbers are about 1, where such are known, and by what x is multiplied there."""
        return self, torch.ones(*self.batch, self.d, dtype=self.dtype, device=self.device)

    def mean_lipschitz(self) -> Tensor:
        """A Lipschitz constant of ∇f [*batch, 1]."""
        return OBSERVER.mean(self.lipschitz(), dim=-1).unsqueeze(-1)

    def mean_gradient(self, x: Point) -> Point:
        """∇f(x)."""
        return OBSERVER.mean(self.grad(self.everywhere(x)), dim=-2)

    def exact_gradient(self, x: Point) -> tuple[Point, Any]:
        """∇f(x) as exactly as it can be had, and what `exact_gap` asks for beside it."""
        return self.mean_gradient(x), None

    def exact_gap(self, x: Point, gradient: Point, slopes: Any) -> Tensor | None:
        """The duality gap at x; None where the problem knows none."""
        return None

    def gradient_size(self, x: Point) -> Tensor:
        """The size of the gradients whose mean is ∇f(x): of all nodes, or of all samples."""
        return OBSERVER.mean(self.grad(self.everywhere(x)).norm(dim=-1), dim=-1)

    def mean_hessian(self, x: Point, index: tuple[int, ...]) -> Tensor:
        """∇²f(x) of one instance [d, d]."""

        def objective(point: Tensor) -> Tensor:
            return self.value(self.everywhere(point.expand(*self.batch, -1))).mean(-1)[index]

        return cast(Tensor, hessian(objective)(x[index]))

    def hessian_blocks(self, x: Point, index: tuple[int, ...], free: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
        """∇²f(x) of one instance restricted to the free coordinates, and ∇²f(x) · fixed there."""
        full = self.mean_hessian(x, index)
        return full[free][:, free], full[free] @ fixed

    def turning(self, index: tuple[int, ...]) -> float:
        """R with |d/dt ∇²f(x + t v)| <= R ‖v‖ ∇²f(x + t v), for one instance: how fast curvature can change."""
        return math.inf

    def separates(self, x: Point, index: tuple[int, ...]) -> bool:
        """Whether x tells two classes apart without a mistake: t x does so ever better as t grows, and f falls."""
        return False

    def certificates(self) -> tuple[Certificate, ...]:
        """What may prove that a point is near the minimum, in the order in which it is tried."""
        return (KKTResidualWithHessian(),)
