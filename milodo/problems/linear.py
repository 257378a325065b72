"""Problems whose f_i see x only through A_i x: f_i(x) = (1/N) Σ_j s_ij ℓ(a_ijᵀ x, b_ij)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.problems.base import Problem, check_finite
from milodo.problems.regularizers import Regularizer
from milodo.types import NodeScalar, NodeTensor


class LinearModel(Problem):
    """Data A [*batch, n, N, d] and b [*batch, n, N]; a subclass says what ℓ is.

    `weights` s [*batch, n, N] are 1 unless given. A sample of weight 0 counts for nothing: nodes with fewer samples than others
    are filled up with such (milodo.problems.pooled).
    """

    curvature: float
    """An upper bound of ℓ''."""

    def __init__(self, A: Tensor, b: Tensor, reg: Regularizer, weights: Tensor | None = None) -> None:
        A, b = torch.as_tensor(A), torch.as_tensor(b)  # numpy arrays are welcome
        if A.ndim < 3 or A.shape[:-1] != b.shape:
            raise InvalidInput(f"A {tuple(A.shape)} and b {tuple(b.shape)} do not fit: expected [*, n, N, d] and [*, n, N].")
        if A.numel() == 0:
            raise InvalidInput(f"A {tuple(A.shape)} is empty: a problem needs at least one node, one sample and one unknown.")
        if A.dtype != b.dtype or not A.is_floating_point():
            raise InvalidInput(f"A is in {A.dtype} and b in {b.dtype}. Give both in the same floating-point dtype.")
        check_finite("A", A)
        check_finite("b", b)
        if weights is not None:
            if weights.shape != b.shape or weights.dtype != b.dtype:
                raise InvalidInput(f"weights {tuple(weights.shape)} do not fit b {tuple(b.shape)}: expected one for each sample.")
            check_finite("weights", weights)
            if bool((weights < 0).any()):
                raise InvalidInput("weights of samples must not be negative.")
        self.A, self.b, self.reg, self.weights = A, b, reg, weights
        self.batch = tuple(A.shape[:-3])
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
    def fenchel_gap(self, u: Tensor, v: Tensor) -> Tensor:
        """ℓ(u) + ℓ*(v) - u v >= 0, computed without cancellation; 0 exactly where v = ℓ'(u)."""

    def predict(self, x: NodeTensor) -> Tensor:
        """A_i x_i [*batch, n, N]."""
        return apply(self.A, x)

    def weigh(self, v: Tensor) -> Tensor:
        """s_ij v_ij."""
        return v if self.weights is None else self.weights * v

    def value(self, x: NodeTensor) -> NodeScalar:
        return self.weigh(self.loss(self.predict(x))).mean(-1)

    def grad(self, x: NodeTensor) -> NodeTensor:
        return apply(self.A.mT, self.weigh(self.loss_slope(self.predict(x))) / self.samples)

    def lipschitz(self) -> NodeScalar:
        return self._lipschitz

    @cached_property
    def _lipschitz(self) -> NodeScalar:
        A = self.A if self.weights is None else self.weights.sqrt().unsqueeze(-1) * self.A
        return self.curvature * squared_norm(A) / self.samples

    def at(self, nodes: Sequence[int]) -> Self:
        rows = torch.as_tensor(nodes, device=self.device)
        weights = None if self.weights is None else self.weights.index_select(-2, rows)
        return type(self)(self.A.index_select(-3, rows), self.b.index_select(-2, rows), self.reg, weights)


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
    """‖A‖₂² from the smaller Gram matrix, one node at a time; rounded up so that it bounds."""
    flat = A.reshape(-1, *A.shape[-2:])
    gram = torch.stack([torch.linalg.eigvalsh(M @ M.mT if M.shape[-2] <= M.shape[-1] else M.mT @ M)[-1] for M in flat])
    return gram.reshape(A.shape[:-2]) * (1 + 10 * torch.finfo(A.dtype).eps * max(A.shape[-2:]) ** 0.5)
