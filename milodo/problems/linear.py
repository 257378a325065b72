"""Problems whose f_i see x only through A_i x: f_i(x) = (1/N) Σ_j s_ij ℓ(a_ijᵀ x, b_ij)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from milodo.errors import InvalidInput, quoted
from milodo.network import Observer
from milodo.problems.base import Problem, check_finite
from milodo.problems.regularizers import Regularizer, Sparing
from milodo.types import NodeScalar, NodeTensor, Point

AT_ONCE = 1 << 22
"""Numbers of A worked on at a time: building or certifying a large instance needs little more memory than the instance."""
SETTLING = 50
"""Newton steps at most to settle an intercept."""


class LinearModel(Problem):
    """Data A [*batch, n, N, d] and b [*batch, n, N]; a subclass says what ℓ is.

    `weights` s [*batch, n, N] are 1 unless given. A sample of weight 0 counts for nothing: nodes with fewer samples than others
    are filled up with such. Leading axes that weights have and b has not are instances too: other weights of the same samples.
    """

    curvature: float
    """An upper bound of ℓ''."""
    bending: float
    """The smallest τ with |ℓ'''| <= τ ℓ''."""
    homogeneous: bool
    """Whether ℓ(t u, t b) = t² ℓ(u, b)."""
    translates: bool
    """Whether ℓ(u + t, b + t) = ℓ(u, b)."""
    attained: bool
    """Whether ℓ has a minimum; if not, it falls for ever on one side."""
    reach: float
    """The largest |t| for which ℓ'(u) - t ℓ''(u) lies in dom ℓ* for every u."""

    def __init__(self, A: Tensor, b: Tensor, reg: Regularizer, weights: Tensor | None = None) -> None:
        if not isinstance(reg, Regularizer):
            raise InvalidInput(f"reg is {quoted(reg)}, but it must be a regularizer such as L1(0.1).")
        A, b = _tensor("A", A), _tensor("b", b)
        if A.ndim < 3 or A.shape[:-1] != b.shape:
            raise InvalidInput(f"A {tuple(A.shape)} and b {tuple(b.shape)} do not fit: expected [*, n, N, d] and [*, n, N].")
        if A.numel() == 0:
            raise InvalidInput(f"A {tuple(A.shape)} is empty: a problem needs at least one node, one sample and one unknown.")
        if A.dtype != b.dtype or not A.is_floating_point():
            raise InvalidInput(f"A is in {A.dtype} and b in {b.dtype}. Give both in the same floating-point dtype.")
        check_finite("A", A)
        check_finite("b", b)
        if weights is not None:
            weights = _tensor("weights", weights)
            if weights.shape[-b.ndim :] != b.shape or weights.dtype != b.dtype:
                raise InvalidInput(f"weights {tuple(weights.shape)} do not fit b {tuple(b.shape)}: expected one for each sample.")
            check_finite("weights", weights)
            if bool((weights < 0).any()):
                raise InvalidInput("weights of samples must not be negative.")
        self.A, self.b, self.reg, self.weights = A, b, reg, weights
        self.batch = tuple(A.shape[:-3] if weights is None else weights.shape[:-2])
        self.n, self.samples, self.d = A.shape[-3:]
        self.dtype, self.device = A.dtype, A.device

    @abstractmethod
    def loss(self, u: Tensor) -> Tensor:
        """ℓ(u, b)."""

    @abstractmethod
    def loss_slope(self, u: Tensor) -> Tensor:
        """ℓ'(u, b)."""

    @abstractmethod
    def loss_curvature(self, u: Tensor) -> Tensor:
        """ℓ''(u, b)."""

    @abstractmethod
    def constant(self, mean: Tensor) -> Tensor:
        """The u that is best for all samples alike, whose b have this mean."""

    def falling(self, u: Tensor) -> Tensor:
        """Which samples have a loss that falls for ever along t u, t → ∞."""
        return torch.zeros_like(u, dtype=torch.bool)

    @abstractmethod
    def fenchel_gap(self, u: Tensor, v: Tensor) -> Tensor:
        """ℓ(u) + ℓ*(v) - u v >= 0, computed without cancellation; 0 exactly where v = ℓ'(u)."""

    def predict(self, x: NodeTensor) -> Tensor:
        """A_i x_i [*batch, n, N]."""
        return apply(self.A, x)

    def weigh(self, v: Tensor) -> Tensor:
        """s_ij v_ij."""
        return v if self.weights is None else self.weights * v

    def value(self, x: NodeTensor) -> NodeScalar:
        return self.value_from(self.predict(x))

    def grad(self, x: NodeTensor) -> NodeTensor:
        return self.pull_back(self.loss_slope(self.predict(x)))

    def look(self, x: NodeTensor) -> Tensor:
        return self.predict(x)

    def value_from(self, u: Tensor) -> NodeScalar:
        return self.weigh(self.loss(u)).mean(-1)

    def value_and_grad_from(self, u: Tensor) -> tuple[NodeScalar, NodeTensor]:
        return self.value_from(u), self.pull_back(self.loss_slope(u))

    def pull_back(self, v: Tensor) -> NodeTensor:
        """(1/N) A_iᵀ s_i v_i: the gradient, if v is the slope of the loss."""
        return apply(self.A.mT, self.weigh(v) / self.samples)

    def mean(self, v: Tensor, observer: Observer) -> Tensor:
        """(1/n) Σ_i (1/N) Σ_j s_ij v_ij over all samples of all nodes [*batch]."""
        return observer.mean(self.weigh(v).mean(-1), dim=-1)

    def lipschitz(self) -> NodeScalar:
        return self._lipschitz

    @cached_property
    def _lipschitz(self) -> NodeScalar:
        A = self.A if self.weights is None else self.weights.sqrt().unsqueeze(-1) * self.A
        return self.curvature * squared_norm(A) / self.samples

    def half(self) -> tuple[NodeScalar, NodeScalar, NodeScalar]:
        rows = slice(None, None, 2)  # samples of weight 0, which fill nodes up, are the last
        weights = torch.ones_like(self.b) if self.weights is None else self.weights
        A = weights[..., rows].sqrt().unsqueeze(-1) * self.A[..., rows, :]
        count, share = (weights > 0).sum(-1).to(self.dtype), weights[..., rows].sum(-1) / weights.sum(-1)
        trace = self.weigh(self.A.square().sum(-1)).mean(-1)
        return count, self.curvature * squared_norm(A) / self.samples / share, self.curvature * trace

    @property
    def knows_hessian(self) -> bool:
        return True

    def hessian_from(self, u: Tensor) -> Tensor:
        weight = self.weigh(self.loss_curvature(u)) / self.samples
        rows, columns = torch.triu_indices(self.d, self.d, device=self.device)
        return (self.A.mT @ (weight.unsqueeze(-1) * self.A))[..., rows, columns]

    @property
    def quadratic(self) -> bool:
        return self.bending == 0

    def at(self, nodes: Sequence[int]) -> Self:
        rows = torch.as_tensor(nodes, device=self.device)
        weights = None if self.weights is None else self.weights.index_select(-2, rows)
        return type(self)(self.A.index_select(-3, rows), self.b.index_select(-2, rows), self.reg, weights)

    def under(self, reg: Regularizer) -> Self:
        """The same data under another r; what has been found out about the data stays known."""
        other = copy(self)
        other.reg = reg
        return other

    def reweighed(self, weights: Tensor) -> Self:
        """The same samples under other weights [*instances, n, N]."""
        return type(self)(self.A, self.b, self.reg, weights)

    def turning(self, index: tuple[int, ...]) -> float:
        """R with |d/dt ∇²f(x + t v)| <= R ‖v‖ ∇²f(x + t v), for one instance: how fast the curvature can change."""
        return self.bending * float(torch.linalg.vector_norm(self.A[index], dim=-1).max()) if self.bending else 0.0

    def empty(self, observer: Observer) -> Point:
        return self.settled(super().empty(observer), observer)

    @torch.no_grad()
    def settled(self, x: Point, observer: Observer) -> Point:
        """x with the intercept, if there is one, that is best beside the other coefficients: Newton steps in one unknown."""
        if not self.reg.spares:
            return x
        x = x.clone()
        for _ in range(SETTLING):
            u = self.predict(self.everywhere(x))
            step = self._intercept_step(u, self.loss_slope(u), observer)
            step = torch.where(step.isfinite(), step, 0.0)
            before = x[..., -1].clone()
            x[..., -1] -= step
            if bool((step.abs() <= 1e-15 * torch.maximum(before.abs(), x[..., -1].abs())).all()):
                break
        return x

    def _intercept_step(self, u: Tensor, v: Tensor, observer: Observer) -> Tensor:
        """Newton's, for the intercept alone."""
        return self.mean(v, observer) / self.mean(self.loss_curvature(u), observer)

    def feasible(self, u: Tensor, v: Tensor, observer: Observer) -> Tensor:
        """The dual v = ℓ'(u) as an unpenalised intercept allows it, Σ s v = 0; NaN where that leads out of dom ℓ*."""
        if not self.reg.spares:
            return v
        step = self._intercept_step(u, v, observer)[..., None, None]
        return torch.where(step.abs() <= self.reach, v - step * self.loss_curvature(u), torch.nan)

    @torch.no_grad()
    def certificate(self, x: Point, observer: Observer) -> Tensor | None:
        """The duality gap at x with the dual s ℓ'(Ax)."""
        u = self.predict(self.everywhere(x))
        v = self.feasible(u, self.loss_slope(u), observer)
        return self.duality_gap(x, u, v, observer.mean(self.pull_back(v), dim=-2), observer)

    def duality_gap(self, x: Point, u: Tensor, v: Tensor, gradient: Point, observer: Observer) -> Tensor | None:
        """[f(x) + f*(dual)] + [r(x) + r*(-Aᵀ dual)] with dual = s v / M, written as two sums of non-negative terms:

        (1/M) Σ_j ℓ(u_j) + ℓ*(s v_j) - u_j s v_j   +   Σ_l ρ(x_l) + ρ*(-s g_l) + s g_l x_l,     g = Aᵀ v / M

        s <= 1 is the largest that makes the dual feasible; inf where v is NaN, None where only v = 0 would be.
        """
        reg = self.reg
        if isinstance(reg, Sparing):
            reg, x, gradient = reg.reg, x[..., :-1], gradient[..., :-1]
        s = reg.shrink(-gradient)
        if s is None:
            return None
        dual = -s.unsqueeze(-1) * gradient
        smooth = self.mean(self.fenchel_gap(u, s[..., None, None] * v), observer)
        rest = (reg.each(x) + reg.conjugate(dual) - dual * x).clamp(min=0).sum(-1)
        return (smooth + rest).nan_to_num(nan=torch.inf, posinf=torch.inf)


def _tensor(name: str, data: Any) -> Tensor:
    """Numpy arrays are welcome."""
    try:
        return torch.as_tensor(data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{name} is {quoted(data)}, but it must be a tensor or an array of numbers.") from error


def apply(A: Tensor, x: Tensor) -> Tensor:
    """A_i x_i. Leading axes that x has and A has not become rows of one product, so that A is read once for all of them.

    Written as xᵀAᵀ: many small products of a row with a matrix run 5 times faster than of a matrix with a column
    (benchmarks/choices.py).
    """
    extra = x.ndim - (A.ndim - 1)
    if extra <= 0:
        return (x.unsqueeze(-2) @ A.mT).squeeze(-2)
    rows = x.flatten(0, extra - 1).movedim(0, -2)  # [*batch, n, rows, d]
    # Contiguous, because everything after it is elementwise against tensors laid out the ordinary way (benchmarks/choices.py).
    return (rows @ A.mT).movedim(-2, 0).contiguous().unflatten(0, x.shape[:extra])


def squared_norm(A: Tensor) -> Tensor:
    """‖A‖₂² from the smaller Gram matrix, as many nodes at a time as fit a little memory; rounded up so that it bounds."""
    N, d = A.shape[-2:]
    parts = A.reshape(-1, N, d).split(max(1, AT_ONCE // (N * d)))
    gram = torch.cat([torch.linalg.eigvalsh(M @ M.mT if d >= N else M.mT @ M)[..., -1] for M in parts])
    return gram.reshape(A.shape[:-2]) * (1 + 10 * torch.finfo(A.dtype).eps * max(N, d) ** 0.5)
