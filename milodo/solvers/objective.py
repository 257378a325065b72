"""What one-machine solvers ask of a problem F = f + r, f the mean of all f_i: `milodo.problems.Problem` has it all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from milodo.network import Observer
from milodo.types import NodeTensor, Point, Step

if TYPE_CHECKING:
    from milodo.solvers.certificates import Certificate


class Penalty(Protocol):
    """r = Σ_l ρ(x_l)."""

    @property
    def unpenalized(self) -> int:
        """How many of the last coordinates are intercepts, which it leaves free."""
        ...

    @property
    def penalized(self) -> Penalty:
        """r of the other coordinates."""
        ...

    def value(self, x: Tensor) -> Tensor: ...

    def prox(self, v: Tensor, step: Step) -> Tensor: ...

    def distance(self, x: Tensor, v: Tensor) -> Tensor:
        """Of v_l to the subdifferential ∂ρ(x_l)."""
        ...

    def project(self, x: Tensor) -> Tensor:
        """The nearest point at which r is finite."""
        ...

    def free(self, x: Tensor) -> Tensor:
        """Whether ρ is differentiable at x_l."""
        ...

    def slope(self, x: Tensor) -> Tensor:
        """ρ'(x_l) where it exists."""
        ...

    def curvature(self, x: Tensor) -> Tensor:
        """ρ''(x_l) where it exists."""
        ...


class Objective(Protocol):
    """Leading axes *batch are instances."""

    @property
    def reg(self) -> Penalty: ...

    @property
    def d(self) -> int: ...

    @property
    def batch(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def lacks_rank(self) -> bool:
        """Whether ∇²f is known to be singular everywhere."""
        ...

    def grad(self, x: NodeTensor) -> NodeTensor: ...

    def everywhere(self, x: Point) -> NodeTensor: ...

    def objective(self, x: Point, observer: Observer) -> Tensor: ...

    def pooled(self) -> Objective:
        """The same objective with all data at one node, where that is known."""
        ...

    def in_own_units(self) -> tuple[Objective, Tensor]:
        """The same in units in which its numbers are about 1, and by what x is multiplied there [*batch, d]."""
        ...

    def mean_lipschitz(self) -> Tensor:
        """A Lipschitz constant of ∇f [*batch, 1]."""
        ...

    def exact_gradient(self, x: Point) -> tuple[Point, Any]:
        """∇f(x) as exactly as the problem can, and what `exact_gap` asks for beside it."""
        ...

    def exact_gap(self, x: Point, gradient: Point, slopes: Any) -> Tensor | None:
        """The duality gap at x; None where the problem knows none."""
        ...

    def gradient_size(self, x: Point) -> Tensor:
        """The size of the gradients whose mean is ∇f(x): of all samples, or of all nodes."""
        ...

    def mean_hessian(self, x: Point, index: tuple[int, ...]) -> Tensor:
        """∇²f of one instance [d, d]."""
        ...

    def hessian_blocks(self, x: Point, index: tuple[int, ...], free: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
        """∇²f of one instance restricted to the free coordinates, and ∇²f · fixed there."""
        ...

    def turning(self, index: tuple[int, ...]) -> float:
        """R with |d/dt ∇²f(x + t v)| <= R ‖v‖ ∇²f(x + t v), for one instance: how fast the curvature can change."""
        ...

    def separates(self, x: Point, index: tuple[int, ...]) -> bool:
        """Whether x tells two classes apart without a mistake: t x does so ever better as t grows, and F without a penalty
        falls."""
        ...

    def certificates(self) -> tuple[Certificate, ...]:
        """What may prove that a point is near the minimum, in the order in which it is tried."""
        ...
