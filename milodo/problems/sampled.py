"""Problems whose f_i is a mean over samples, f_i(x) = (1/N) Σ_j s_ij ℓ(u_ij, b_ij), and sees x only through u_i, linear in x."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from decimal import Decimal, localcontext
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor

from milodo.errors import InvalidInput, quoted
from milodo.network import Observer
from milodo.problems.base import Problem, check_finite
from milodo.problems.regularizers import Regularizer
from milodo.types import NodeScalar, NodeTensor, Point

AT_ONCE = 1 << 22
"""Numbers of A worked on at a time: building or certifying a large instance needs little more memory than the instance."""
SETTLING = 50
"""Newton steps at most to settle intercepts."""
ROUNDING = 1e-15
"""Of the intercepts, of slopes or of log odds: a step this short is none."""


class Sampled(Problem):
    """Data A [*batch, n, N, *] and b [*batch, n, N] or [*batch, n, N, k]; a subclass says what u is, and what ℓ is.

    `weights` s [*batch, n, N] are 1 unless given. A sample of weight 0 counts for nothing: nodes with fewer samples than others
    are filled up with such. Leading axes that weights have and b has not are instances too: other weights of the same samples.
    """

    curvature: float
    """An upper bound of the eigenvalues of ∇²ℓ."""
    homogeneous: bool
    """Whether ℓ(t u, t b) = t² ℓ(u, b)."""
    translates: bool
    """Whether ℓ(u + t, b + t) = ℓ(u, b)."""
    attained: bool
    """Whether ℓ has a minimum; if not, it falls for ever on one side."""

    def __init__(self, A: Tensor, b: Tensor, reg: Regularizer, weights: Tensor | None = None) -> None:
        if not isinstance(reg, Regularizer):
            raise InvalidInput(f"reg is {quoted(reg)}, but it must be a regularizer such as L1(0.1).")
        shape, b = self.hold(A), _tensor("b", b)
        self.check_shapes(shape, b)
        self.outputs = b.ndim - len(shape) + 1
        samples = b.shape[: len(shape) - 1]
        if 0 in shape or b.numel() == 0:
            raise InvalidInput(f"A {shape} is empty: a problem needs at least one node, one sample and one unknown.")
        if self.dtype != b.dtype or not self.dtype.is_floating_point:
            raise InvalidInput(f"A is in {self.dtype} and b in {b.dtype}. Give both in the same floating-point dtype.")
        self.check_data()
        check_finite("b", b)
        if weights is not None:
            weights = _tensor("weights", weights)
            if weights.shape[-len(samples) :] != samples or weights.dtype != b.dtype:
                raise InvalidInput(f"weights {tuple(weights.shape)} do not fit b {tuple(b.shape)}: expected one for each sample.")
            check_finite("weights", weights)
            if bool((weights < 0).any()):
                raise InvalidInput("weights of samples must not be negative.")
        self.b, self.reg, self.weights = b, reg, weights
        self.batch = tuple(shape[:-3] if weights is None else weights.shape[:-2])
        self.n, self.samples, self.d = shape[-3:]

    def hold(self, A: Any) -> tuple[int, ...]:
        """Keeps the data, and says their shape [*batch, n, N, *]."""
        self.A = _tensor("A", A)
        self.dtype, self.device = self.A.dtype, self.A.device
        return tuple(self.A.shape)

    def check_data(self) -> None:
        check_finite("A", self.A)

    @staticmethod
    @abstractmethod
    def check_shapes(A: tuple[int, ...], b: Tensor) -> None:
        """Refuses data of this shape that do not fit b."""

    @abstractmethod
    def predict(self, x: NodeTensor) -> Tensor:
        """u_i [*batch, n, N] or [*batch, n, N, k]."""

    @abstractmethod
    def loss(self, u: Tensor) -> Tensor:
        """ℓ(u, b) [*batch, n, N]."""

    @abstractmethod
    def loss_slope(self, u: Tensor) -> Tensor:
        """∇ℓ(u, b), of the shape of u."""

    @abstractmethod
    def pull_back(self, v: Tensor) -> NodeTensor:
        """(1/N) Σ_j s_ij (∂u_ij/∂x)ᵀ v_ij: the gradient, if v is the slope of the loss."""

    @abstractmethod
    def constant(self, mean: Tensor) -> Tensor:
        """The u that is best for all samples alike, whose b have this mean."""

    @property
    @abstractmethod
    def largest_trace(self) -> float:
        """That ∇²ℓ can have."""

    def falling(self, u: Tensor) -> Tensor:
        """Which samples have a loss that falls for ever along t u, t → ∞ [*batch, n, N]."""
        return self.margin(u) > 0

    def margin(self, u: Tensor) -> Tensor:
        """By how much u is on the side of a sample's own class [*batch, n, N]; 0 where there are no classes."""
        return torch.zeros(u.shape[: u.ndim - self.outputs], dtype=u.dtype, device=u.device)

    @abstractmethod
    def fenchel_gap(self, u: Tensor, v: Tensor) -> Tensor:
        """ℓ(u) + ℓ*(v) - ⟨u, v⟩ >= 0 [*batch, n, N], computed without cancellation; 0 exactly where v = ∇ℓ(u)."""

    @abstractmethod
    def intercept_step(self, u: Tensor, v: Tensor, observer: Observer) -> Tensor:
        """Newton's, for the intercepts alone [*batch, intercepts], where losses have slopes v."""

    @abstractmethod
    def balanced(self, u: Tensor, v: Tensor, step: Tensor) -> Tensor:
        """v - ∇²ℓ(u) step, whose mean over all samples vanishes to first order; NaN where that leads out of dom ℓ*."""

    def weigh(self, v: Tensor) -> Tensor:
        """s_ij v_ij."""
        return v if self.weights is None else self.weights * v

    def by_node(self, v: Tensor) -> NodeScalar:
        """(1/N) Σ_j v_ij [*batch, n]."""
        return v.sum(-1) / self.samples

    def value(self, x: NodeTensor) -> NodeScalar:
        return self.by_node(self.weigh(self.loss(self.predict(x))))

    def grad(self, x: NodeTensor) -> NodeTensor:
        return self.pull_back(self.loss_slope(self.predict(x)))

    def look(self, x: NodeTensor) -> Tensor:
        return self.predict(x)

    def value_from(self, u: Tensor) -> NodeScalar:
        return self.by_node(self.weigh(self.loss(u)))

    def value_and_grad_from(self, u: Tensor) -> tuple[NodeScalar, NodeTensor]:
        return self.value_from(u), self.pull_back(self.loss_slope(u))

    def mean(self, v: Tensor, observer: Observer) -> Tensor:
        """(1/n) Σ_i (1/N) Σ_j s_ij v_ij over all samples of all nodes [*batch]."""
        return observer.mean(self.by_node(self.weigh(v)), dim=-1)

    def lipschitz(self) -> NodeScalar:
        return self._lipschitz

    @cached_property
    def _lipschitz(self) -> NodeScalar:
        A = self.A if self.weights is None else self.weights.sqrt().unsqueeze(-1) * self.A
        return self.curvature * squared_norm(A) / self.samples

    def half(self) -> tuple[NodeScalar, NodeScalar, NodeScalar]:
        rows = slice(None, None, 2)  # samples of weight 0, which fill nodes up, are the last
        weights = self.A.new_ones(self.A.shape[:-1]) if self.weights is None else self.weights
        A = weights[..., rows].sqrt().unsqueeze(-1) * self.A[..., rows, :]
        total = weights.sum(-1)
        count = (weights > 0).sum(-1).to(self.dtype)
        share = torch.where(total > 0, weights[..., rows].sum(-1) / total, 1.0)  # a node may have no samples at all
        trace = self.by_node(self.weigh(self.A.square().sum(-1)))
        return count, self.curvature * squared_norm(A) / self.samples / share, self.largest_trace * trace

    @property
    def knows_hessian(self) -> bool:
        return True

    def at(self, nodes: Sequence[int]) -> Self:
        rows, axis = torch.as_tensor(nodes, device=self.device), self.A.ndim - 3
        weights = None if self.weights is None else self.weights.index_select(-2, rows)
        return type(self)(self.A.index_select(axis, rows), self.b.index_select(axis, rows), self.reg, weights)

    def under(self, reg: Regularizer) -> Self:
        """The same data under another r; what has been found out about the data stays known."""
        other = copy(self)
        other.reg = reg
        return other

    def reweighed(self, weights: Tensor) -> Self:
        """The same samples under other weights [*instances, n, N]."""
        other = copy(self)
        other.weights, other.batch, other.column = weights, tuple(weights.shape[:-2]), None
        vars(other).pop("_lipschitz", None)
        return other

    def placed(self, values: Sequence[Tensor], fill: float = 0) -> Tensor:
        """Numbers of the samples of each node [N_i, *], each where b has that of its sample."""
        placed = torch.full((self.n, self.samples, *values[0].shape[1:]), fill, dtype=values[0].dtype)
        for i, own in enumerate(values):
            placed[i, : len(own)] = own
        return placed

    def empty(self, observer: Observer) -> Point:
        return self.settled(super().empty(observer), observer)

    @torch.no_grad()
    def settled(self, x: Point, observer: Observer) -> Point:
        """By Newton steps in the intercepts alone, each by a sum of few numbers."""
        intercepts = self.reg.unpenalized
        if not intercepts:
            return x
        x, unit, u = x.clone(), None, self.predict(self.everywhere(x))
        for _ in range(SETTLING):
            if unit is None:  # slopes that cancel round like what they are made of; log odds need no unit
                unit = self.rounds_like(u, observer) if self.homogeneous else torch.ones_like(x[..., 0])
            step = self.settling(u, observer)
            step = torch.where(step.isfinite(), step, 0.0)
            before = x[..., -intercepts:].clone()
            x[..., -intercepts:] -= step
            length = torch.abs if intercepts == 1 else partial(torch.linalg.vector_norm, dim=-1, keepdim=True)
            size = torch.maximum(length(before), length(x[..., -intercepts:])).maximum(unit.unsqueeze(-1))
            near = (length(step) <= ROUNDING * size).all()
            if intercepts > 1:  # norms, and small systems that are solved, may round differently in different processes
                told = observer.agreed(torch.cat((x[..., -intercepts:].flatten(), near.to(self.dtype).reshape(1))))
                x[..., -intercepts:], near = told[:-1].view_as(before), told[-1] > 0.5
            if bool(near):
                break
            u = self.moved(u, x, step)
        return x

    def rounds_like(self, u: Tensor, observer: Observer) -> Tensor:
        """The mean of what slopes are made of where u is predicted [*batch]."""
        return self.mean(self.loss_slope(u).abs() + u.abs(), observer)

    def settling(self, u: Tensor, observer: Observer) -> Tensor:
        """Newton's step for the intercepts alone [*batch, intercepts], where u is predicted."""
        return self.intercept_step(u, self.loss_slope(u), observer)

    def moved(self, u: Tensor, x: Point, step: Tensor) -> Tensor:
        """What is predicted at x, whose intercepts have just moved by -step from where u was."""
        return self.predict(self.everywhere(x))

    def feasible(self, u: Tensor, v: Tensor, observer: Observer) -> Tensor:
        """The dual v = ∇ℓ(u) as unpenalised intercepts allow it, Σ s v = 0; NaN where that leads out of dom ℓ*."""
        return self.balanced(u, v, self.intercept_step(u, v, observer)) if self.reg.unpenalized else v

    @torch.no_grad()
    def certificate(
        self, x: Point, observer: Observer, gradient: Point | None = None, curvature: Tensor | None = None
    ) -> Tensor | None:
        """The duality gap at x with the dual s ∇ℓ(u)."""
        if not self.certifies:
            return None
        u = self.predict(self.everywhere(x))
        v = self.loss_slope(u)
        if self.reg.unpenalized:
            step = self.intercept_step(u, v, observer)
            v = self.balanced(u, v, step)
            known = gradient is not None and curvature is not None  # pulling back is linear
            gradient = gradient - (curvature @ step.unsqueeze(-1)).squeeze(-1) if known else None  # type: ignore[operator]
        if gradient is None:
            gradient = observer.mean(self.pull_back(v), dim=-2)
        return self.duality_gap(x, u, v, gradient, observer)

    @property
    def certifies(self) -> bool:
        ones = torch.ones(self.d - self.reg.unpenalized, dtype=self.dtype, device=self.device)
        return self.reg.penalized.dual_scaling(ones) is not None

    def duality_gap(self, x: Point, u: Tensor, v: Tensor, gradient: Point, observer: Observer) -> Tensor | None:
        """[f(x) + f*(dual)] + [r(x) + r*(-g)] with dual = s v / M, written as two sums of non-negative terms:

        (1/M) Σ_j ℓ(u_j) + ℓ*(s v_j) - ⟨u_j, s v_j⟩   +   Σ_l ρ(x_l) + ρ*(-s g_l) + s g_l x_l,     g what v is pulled back to

        s <= 1 is the largest that makes the dual feasible; inf where v is NaN, None where only v = 0 would be.
        """
        reg, few = self.reg.penalized, self.d - self.reg.unpenalized
        x, gradient = x[..., :few], gradient[..., :few]
        s = reg.dual_scaling(-gradient)
        if s is None:
            return None
        dual = -s.unsqueeze(-1) * gradient
        smooth = self.by_node(self.weigh(self.fenchel_gap(u, s.reshape(*s.shape, *[1] * (v.ndim - s.ndim)) * v)))
        rest = (reg.each(x) + reg.conjugate(dual) - dual * x).clamp(min=0).sum(-1)
        # The rest is averaged with it: sums of the same numbers round differently in different processes.
        return observer.mean(smooth + rest.unsqueeze(-1), dim=-1).nan_to_num(nan=torch.inf, posinf=torch.inf)


def _tensor(name: str, data: Any) -> Tensor:
    """Numpy arrays are welcome."""
    try:
        return torch.as_tensor(data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{name} is {quoted(data)}, but it must be a tensor or an array of numbers.") from error


def exact_log(x: Tensor) -> Tensor:
    """ln x of few numbers >= 0 in decimal arithmetic, which every machine rounds alike: sites begin at one point."""
    with localcontext(prec=30):
        found = [
            float(Decimal(value).ln()) if value > 0 else -math.inf if value == 0 else math.nan for value in x.flatten().tolist()
        ]
    return x.new_tensor(found).view_as(x)


def squared_norm(A: Tensor) -> Tensor:
    """‖A‖₂² from the smaller Gram matrix, as many nodes at a time as fit a little memory; rounded up so that it bounds."""
    N, d = A.shape[-2:]
    parts = A.reshape(-1, N, d).split(max(1, AT_ONCE // (N * d)))
    gram = torch.cat([torch.linalg.eigvalsh(M @ M.mT if d >= N else M.mT @ M)[..., -1] for M in parts])
    return gram.reshape(A.shape[:-2]) * bound_above(A.dtype, N, d)


def bound_above(dtype: torch.dtype, N: int, d: int) -> float:
    """What a squared norm is multiplied by so that rounding leaves it a bound."""
    return 1 + 10 * torch.finfo(dtype).eps * max(N, d) ** 0.5
