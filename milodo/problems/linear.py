"""Problems whose f_i see x only through A_i x: f_i(x) = (1/N) Σ_j s_ij ℓ(a_ijᵀ x, b_ij)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network import Observer
from milodo.problems.sampled import AT_ONCE, Sampled
from milodo.problems.units import own_units
from milodo.solvers.certificates import (
    OBSERVER,
    Certificate,
    DualityGap,
    KKTResidual,
    NotNegative,
    StrongConvexity,
)
from milodo.solvers.lanczos import largest_eigenvalue
from milodo.solvers.triangles import pack
from milodo.types import NodeTensor, Point

__all__ = ["AT_ONCE", "LinearModel", "apply"]
GRAM_LIMIT = 2000
"""Rows or columns of pooled data up to which their own Lipschitz constant is computed from their products; beyond, by Lanczos."""


class LinearModel(Sampled):
    """Data A [*batch, n, N, d] and b [*batch, n, N]; a subclass says what ℓ is."""

    bending: float
    """The smallest τ with |ℓ'''| <= τ ℓ''."""
    canonical: bool = False
    """Whether ℓ'(u, b) = h(u) - b for some h."""
    reach: float
    """The largest |t| for which ℓ'(u) - t ℓ''(u) lies in dom ℓ* for every u."""

    @staticmethod
    def check_shapes(A: tuple[int, ...], b: Tensor) -> None:
        if len(A) < 3 or A[:-1] != tuple(b.shape):
            raise InvalidInput(f"A {A} and b {tuple(b.shape)} do not fit: expected [*, n, N, d] and [*, n, N].")

    @abstractmethod
    def loss_curvature(self, u: Tensor) -> Tensor:
        """ℓ''(u, b)."""

    @property
    def largest_trace(self) -> float:
        return self.curvature

    def predict(self, x: NodeTensor) -> Tensor:
        """A_i x_i [*batch, n, N]."""
        return apply(self.A, x)

    def pull_back(self, v: Tensor) -> NodeTensor:
        """(1/N) A_iᵀ s_i v_i."""
        return apply(self.A.mT, self.weigh(v) / self.samples)

    def hessian_from(self, u: Tensor) -> Tensor:
        weight = self.weigh(self.loss_curvature(u)) / self.samples
        return pack(self.A.mT @ (weight.unsqueeze(-1) * self.A))

    @property
    def lacks_rank(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.n * self.samples < self.d

    def in_own_units(self) -> tuple[LinearModel, Tensor]:
        scaled, units = own_units(self)
        return scaled, units.scale

    def mean_lipschitz(self) -> Tensor:
        """Where all data lie at one node their own constant, which is smaller than the mean of the nodes'."""
        if self.n > 1 or min(self.samples, self.d) <= GRAM_LIMIT:
            return super().mean_lipschitz()
        found = torch.empty(*self.batch, 1, dtype=self.dtype)
        for index in np.ndindex(self.batch):
            A, w = self.A[index][0], self.weigh(torch.ones_like(self.b))[index][0]
            found[index] = largest_eigenvalue(lambda v, A=A, w=w: A.mT @ (w * (A @ v)), self.d)
        return self.curvature / self.samples * found

    def exact_gradient(self, x: Point) -> tuple[Point, tuple[Tensor, Tensor]]:
        """Rounded to fp64 once at the end, and u = A x and ℓ'(u).

        In plain fp64 the cancellation in A x - b leaves an error in ∇f that shows as a relative duality gap of 1e-14 on
        LASSO(10,300,10,0.1); sums in extended precision bring it to 2e-15. Where a long double is a double only that is lost.
        """
        A = self.A.numpy(force=True).reshape(-1, self.n, self.samples, self.d)
        points = x.numpy(force=True).reshape(-1, self.d).astype(np.longdouble)
        high = np.empty(A.shape[:-1])
        low = np.empty(A.shape[:-1])
        for k, i, rows in _blocks(A.shape):
            u = A[k, i, rows].astype(np.longdouble) @ points[k]
            high[k, i, rows] = u
            low[k, i, rows] = u - high[k, i, rows]
        u = torch.from_numpy(high).reshape(self.b.shape)
        slope = self.loss_slope(u) + self.loss_curvature(u) * torch.from_numpy(low).reshape(u.shape)
        flat = self.weigh(slope).numpy().reshape(A.shape[:-1])
        total = np.zeros((A.shape[0], self.d), dtype=np.longdouble)
        for k, i, rows in _blocks(A.shape):
            total[k] += flat[k, i, rows].astype(np.longdouble) @ A[k, i, rows].astype(np.longdouble)
        gradient = (total / (self.n * self.samples)).astype(np.float64)
        return torch.from_numpy(gradient).reshape(x.shape), (u, slope)

    def exact_gap(self, x: Point, gradient: Point, slopes: tuple[Tensor, Tensor]) -> Tensor | None:
        u, v = slopes
        dual = self.feasible(u, v, OBSERVER)
        pulled = gradient if dual is v else OBSERVER.mean(self.pull_back(dual), dim=-2)
        return self.duality_gap(x, u, dual, pulled, OBSERVER)

    def gradient_size(self, x: Point) -> Tensor:
        v = self.loss_slope(self.predict(self.everywhere(x)))
        return self.mean(v.abs() * torch.linalg.vector_norm(self.A, dim=-1), OBSERVER)

    def mean_hessian(self, x: Point, index: tuple[int, ...]) -> Tensor:
        A, weight = self._rows(x, index)
        return A.mT @ (weight.unsqueeze(-1) * A)

    def hessian_blocks(self, x: Point, index: tuple[int, ...], free: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
        A, weight = self._rows(x, index)
        A_free = A[:, free]
        return A_free.mT @ (weight.unsqueeze(-1) * A_free), A_free.mT @ (weight * (A @ fixed))

    def _rows(self, x: Point, index: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """All samples of one instance [n N, d], and ℓ'' of each with its share in the mean."""
        bent = self.weigh(self.loss_curvature(self.predict(self.everywhere(x))))
        return self.A[index].flatten(0, 1), bent[index].flatten() / (self.n * self.samples)

    def separates(self, x: Point, index: tuple[int, ...]) -> bool:
        if self.attained:
            return False
        counted = self.weigh(torch.ones_like(self.b)) > 0
        return bool((self.falling(self.predict(self.everywhere(x))) | ~counted)[index].all())

    def certificates(self) -> tuple[Certificate, ...]:
        return DualityGap(), StrongConvexity(), KKTResidual(), NotNegative()

    def pooled(self) -> LinearModel:
        """The same objective with all data at one node: (1/n) Σ (1/N) Σ is the mean over all samples. A view, not a copy."""
        weights = None if self.weights is None else self.weights.flatten(-2).unsqueeze(-2)
        return type(self)(self.A.flatten(-3, -2).unsqueeze(-3), self.b.flatten(-2).unsqueeze(-2), self.reg, weights)

    @property
    def quadratic(self) -> bool:
        return self.bending == 0

    def turning(self, index: tuple[int, ...]) -> float:
        return self.bending * float(torch.linalg.vector_norm(self.A[index], dim=-1).max()) if self.bending else 0.0

    @torch.no_grad()
    def certificate(
        self, x: Point, observer: Observer, gradient: Point | None = None, curvature: Tensor | None = None
    ) -> Tensor | None:
        if self.reg.unpenalized != 1 or self.column is None or gradient is None or curvature is not None or not self.certifies:
            return super().certificate(x, observer, gradient, curvature)
        return self._gap_beside_an_intercept(x, gradient, self.column, observer)

    def _gap_beside_an_intercept(self, x: Point, gradient: Point, column: float, observer: Observer) -> Tensor:
        """`duality_gap` where the dual v - t ℓ''(u), whose mean is 0, is not pulled back: with q = (1/M) Aᵀℓ'', which is nowhere
        more than ℓ'' at most times `column`, its gradient is g - t q. So

        |g - t q|_l <= |g|_l + |t| max ℓ'' column     in r*, which grows with |·| for the penalties of fits (L1, elastic net)
        ⟨g - t q, x⟩ = ⟨g, x⟩ - t (1/M) Σ ℓ''(u - x_0)     exactly, x_0 the intercept: one more number beside those that give t
        """
        reg, rest, g = self.reg.penalized, x[..., :-1], gradient[..., :-1]
        u = self.predict(self.everywhere(x))
        v, bent = self.loss_slope(u), self.loss_curvature(u)
        own = [self.by_node(self.weigh(each)) for each in (v, bent, bent * (u - x[..., -1, None, None]))]
        slope, size, along = observer.mean(torch.stack(own, dim=-1), dim=-2).unbind(-1)
        t = slope / size
        wide = (t.abs() * self.curvature * column).unsqueeze(-1)
        most = torch.where(g < 0, g - wide, g + wide)
        s = reg.dual_scaling(-most)
        assert s is not None
        scale = s.unsqueeze(-1)
        each = reg.each(rest) + reg.conjugate(-scale * most) + scale * g * rest
        each = torch.maximum(each, -scale * wide * rest.abs())  # below that it is rounding
        beside = (each.sum(-1) - s * t * along).clamp(min=0)
        dual = s.reshape(*s.shape, *[1] * (v.ndim - s.ndim)) * self.balanced(u, v, t.unsqueeze(-1))
        smooth = self.by_node(self.weigh(self.fenchel_gap(u, dual)))
        return observer.mean(smooth + beside.unsqueeze(-1), dim=-1).nan_to_num(nan=torch.inf, posinf=torch.inf)

    def intercept_step(self, u: Tensor, v: Tensor, observer: Observer) -> Tensor:
        own = [self.by_node(self.weigh(each)) for each in (v, self.loss_curvature(u))]
        slope, curvature = observer.mean(torch.stack(own, dim=-1), dim=-2).split(1, dim=-1)
        return slope / curvature

    def balanced(self, u: Tensor, v: Tensor, step: Tensor) -> Tensor:
        step = step.unsqueeze(-1)  # [*batch, 1, 1]
        return torch.where(step.abs() <= self.reach, v - step * self.loss_curvature(u), torch.nan)


def apply(A: Tensor, x: Tensor) -> Tensor:
    """A_i x_i. Leading axes that x has and A has not become rows of one product, so that A is read once for all of them.

    Written as xᵀAᵀ: many small products of a row with a matrix run 5 times faster than of a matrix with a column
    (benchmarks/step.py choices).
    """
    extra = x.ndim - (A.ndim - 1)
    if extra <= 0:
        return (x.unsqueeze(-2) @ A.mT).squeeze(-2)
    rows = x.flatten(0, extra - 1).movedim(0, -2)  # [*batch, n, rows, d]
    # Contiguous: everything after it is elementwise against tensors laid out the ordinary way (benchmarks/step.py choices).
    return (rows @ A.mT).movedim(-2, 0).contiguous().unflatten(0, x.shape[:extra])


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, int, slice]]:
    """Rows of A [batch, n, N, d] few enough that their copy in extended precision is small."""
    batch, n, N, d = shape
    size = max(1, AT_ONCE // d)
    for k, i, block in np.ndindex(batch, n, -(-N // size)):
        yield k, i, slice(block * size, (block + 1) * size)
