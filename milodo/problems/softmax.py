"""Several classes: multinomial logistic regression."""

from __future__ import annotations

import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network import Observer
from milodo.network.sums import in_order
from milodo.problems.regularizers import Regularizer
from milodo.problems.sampled import Sampled, exact_log
from milodo.solvers.prox_newton import intercept_inverse
from milodo.solvers.triangles import pack
from milodo.types import NodeScalar, NodeTensor


class Softmax(Sampled):
    """f_i(X) = (1/N) Σ_j s_ij (ln Σ_c exp(a_ijᵀX_c) - a_ijᵀX_{b_ij}), with a column X_c for each of k classes.

    Data A [*batch, n, N, p] and b [*batch, n, N, k], 1 at a sample's class and 0 elsewhere. The point x is X [p, k], flat, row by
    row: where A's last column is all ones, its last k numbers are the intercepts. One number added to a row changes nothing.
    """

    curvature = 0.5  # diag(q) - qqᵀ has no larger eigenvalue (Böhning 1992)
    homogeneous = translates = attained = False

    def __init__(self, A: Tensor, b: Tensor, reg: Regularizer, weights: Tensor | None = None) -> None:
        super().__init__(A, b, reg, weights)
        self.p, self.k = self.d, self.b.shape[-1]
        self.d = self.p * self.k
        counted = self.b if self.weights is None else self.b[(self.weights > 0).reshape(-1, *self.b.shape[:-1]).any(0)]
        if bool(((counted != 0) & (counted != 1)).any()) or bool((counted.sum(-1) != 1).any()):
            raise InvalidInput("b must be 1 at the class of each sample and 0 at the others.")

    @staticmethod
    def check_shapes(A: tuple[int, ...], b: Tensor) -> None:
        if len(A) < 3 or A[:-1] != tuple(b.shape[:-1]) or b.shape[-1] < 2:
            raise InvalidInput(f"A {A} and b {tuple(b.shape)} do not fit: expected [*, n, N, p] and [*, n, N, k >= 2].")

    @property
    def largest_trace(self) -> float:
        return 1 - 1 / self.k

    def predict(self, x: NodeTensor) -> Tensor:
        return self.A @ x.unflatten(-1, (self.p, self.k))

    def pull_back(self, v: Tensor) -> NodeTensor:
        return (self.A.mT @ (self._weigh_all(v) / self.samples)).flatten(-2)

    def look(self, x: NodeTensor) -> Tensor:
        """u_i, flat [*batch, n, N k]: methods combine looks node by node."""
        return self.predict(x).flatten(-2)

    def value_from(self, u: Tensor) -> NodeScalar:
        return super().value_from(self._by_class(u))

    def value_and_grad_from(self, u: Tensor) -> tuple[NodeScalar, NodeTensor]:
        v = self.loss_slope(self._by_class(u))
        return self.value_from(u), self.pull_back(v)

    def _by_class(self, u: Tensor) -> Tensor:
        return u.unflatten(-1, (-1, self.k))

    def _weigh_all(self, v: Tensor) -> Tensor:
        """s_ij v_ij of all classes."""
        return v if self.weights is None else self.weights.unsqueeze(-1) * v

    def loss(self, u: Tensor) -> Tensor:
        return u.logsumexp(-1) - (self.b * u).sum(-1)

    def loss_slope(self, u: Tensor) -> Tensor:
        return u.softmax(-1) - self.b

    def constant(self, mean: Tensor) -> Tensor:
        log = exact_log(mean)
        return log - in_order(log) / log.shape[-1]

    def margin(self, u: Tensor) -> Tensor:
        return (self.b * u).sum(-1) - torch.where(self.b == 1, -torch.inf, u).amax(-1)

    def fenchel_gap(self, u: Tensor, v: Tensor) -> Tensor:
        # ℓ*(v) is the negative entropy of q = v + b, so the gap is the Kullback-Leibler divergence of q from softmax(u).
        q = (v + self.b).clamp(0, 1)
        return (torch.special.xlogy(q, q) - q * u.log_softmax(-1)).sum(-1).clamp(min=0)

    def hessian_from(self, u: Tensor) -> Tensor:
        """∇²f_i = Σ_j s_ij/N a_ij a_ijᵀ ⊗ (diag(q_ij) - q_ij q_ijᵀ) with q = softmax(u)."""
        q = self._by_class(u).softmax(-1)
        H = u.new_empty(*u.shape[:-1], self.p, self.k, self.p, self.k)
        for c in range(self.k):
            for e in range(c, self.k):
                weight = self.weigh(q[..., c] * (float(c == e) - q[..., e])) / self.samples
                H[..., :, c, :, e] = H[..., :, e, :, c] = self.A.mT @ (weight.unsqueeze(-1) * self.A)
        return pack(H.flatten(-4, -3).flatten(-2))

    def intercept_step(self, u: Tensor, v: Tensor, observer: Observer) -> Tensor:
        q = u.softmax(-1)
        pairs = [(c, e) for c in range(self.k) for e in range(c, self.k)]
        sums = [self.by_node(self.weigh(v[..., c])) for c in range(self.k)]
        sums += [self.by_node(self.weigh(q[..., c] * (float(c == e) - q[..., e]))) for c, e in pairs]
        means = observer.mean(torch.stack(sums, dim=-1), dim=-2)  # [*batch, k + k (k + 1) / 2]
        g, H = means[..., : self.k], means.new_empty(*means.shape[:-1], self.k, self.k)
        for place, (c, e) in enumerate(pairs, self.k):
            H[..., c, e] = H[..., e, c] = means[..., place]
        return (intercept_inverse(H) @ g.unsqueeze(-1)).squeeze(-1)

    def balanced(self, u: Tensor, v: Tensor, step: Tensor) -> Tensor:
        q, t = u.softmax(-1), step[..., None, None, :]
        inside = (step.amax(-1) - step.amin(-1) <= 1)[..., None, None, None]  # then q (1 - t + qᵀt), the dual + b, is >= 0
        return torch.where(inside, v - q * (t - (q * t).sum(-1, keepdim=True)), torch.nan)
