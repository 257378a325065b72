"""Problems whose nodes have numbers of samples of their own, as sums over blocks of samples, each an ordinary problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from milodo.problems.blocks import spread
from milodo.problems.regularizers import Regularizer
from milodo.problems.rows import Block, Group, Rows
from milodo.problems.sampled import Sampled, bound_above, squared_norm
from milodo.solvers.triangles import pack, packed_size, unpack
from milodo.types import NodeScalar, NodeTensor, Point

CHUNK = 1 << 15
"""Samples whose losses are computed at a time: they, and what is made of them on the way, stay in the cache."""


@dataclass(frozen=True)
class Origin:
    """What sums over its samples told of a large node beforehand."""

    gram: Tensor
    """(1/N) Σ_j s_ij a_ij a_ijᵀ, its upper half row by row."""
    cross: Tensor
    """(1/N) Σ_j s_ij b_ij a_ij [columns], or [columns, k]."""


class InBlocks(Sampled):
    """b [1, length] or [1, length, k] and weights [*instances, 1, length] stand in the places of the rows, and so does u. With
    N = length f_i is (1/N) Σ_j s_ij ℓ(u_ij, b_ij) over the samples of node i. f_i sees all of x_i: methods that combine looks
    combine points.
    """

    plain: type[Sampled]
    """The same loss for nodes of one size, of which blocks are."""
    rows: Rows

    def __init__(
        self, rows: Rows, b: Tensor, reg: Regularizer, weights: Tensor, origins: dict[int, Origin] | None = None
    ) -> None:
        super().__init__(rows, b, reg, weights)  # type: ignore[arg-type]
        self.n = rows.n
        self.origins = origins or {}
        """Of large nodes, as far as they are known."""
        self.inverse = rows.inverse.repeat_interleave(b.shape[-1], dim=-1) if self.outputs else rows.inverse
        """Columns of large nodes are not scaled: instead x is before a pass, and what the pass finds is after it."""

    def hold(self, A: Any) -> tuple[int, ...]:
        self.rows, self.dtype, self.device = A, torch.float64, torch.device("cpu")
        return (1, A.length, A.columns)

    def check_data(self) -> None:
        """Rows have been looked at when they were put together."""

    def _problem(self, group: Group, at: slice, A: Tensor | None = None) -> Sampled:
        """Samples of a group as an ordinary problem; without A only its losses are known."""
        block = object.__new__(self.plain)
        vars(block).update(vars(self))
        vars(block).pop("_lipschitz", None)  # of all samples
        assert self.weights is not None
        block.n = len(group.nodes)
        if A is not None:
            block.A = A
        block.b = self.b[0, at].unflatten(0, (block.n, -1))
        block.weights = self.weights[..., 0, at].unflatten(-1, (block.n, -1))
        return block

    def _over(self, part: Callable[[Sampled, Block], Any], groups: Sequence[Group] | None = None) -> Iterator[tuple[Group, Any]]:
        """part(problem, block) for every block, in order."""
        return self.rows.over(lambda block: (block.group, part(self._problem(block.group, block.at, block.A), block)), groups)

    def _added(self, parts: Iterator[tuple[Group, Tensor]]) -> Tensor:
        """Σ over the blocks of each node of parts [*batch, nodes, numbers], at that node."""
        total: Tensor | None = None
        for group, own in parts:
            if total is None:
                total = own.new_zeros(*own.shape[:-2], self.n, own.shape[-1])
            total[..., group.nodes, :] += own
        assert total is not None
        return total

    def _of_losses(self, part: Callable[..., Tensor], *along: Tensor) -> Tensor:
        """Σ over the samples of each node of part(problem, *) [*batch, nodes, numbers], of tensors that stand in the places of
        the samples [1, length] or [1, length, k]: no pass over the rows."""

        def one(place: tuple[Group, slice]) -> tuple[Group, Tensor]:
            group, at = place
            return group, part(self._problem(group, at), *(v[0, at].unflatten(0, (len(group.nodes), -1)) for v in along))

        places = []
        for group in self.rows.groups:
            step = CHUNK if group.large else group.stop - group.start
            places += [(group, slice(k, min(k + step, group.stop))) for k in range(group.start, group.stop, step)]
        return self._added(spread(one, places))

    def predict(self, x: NodeTensor) -> Tensor:
        after, z = -1 - self.outputs, x * self.inverse
        parts = self._over(lambda block, at: block.predict(z[..., at.group.nodes, :]).flatten(after - 1, after))
        return torch.cat([u for _, u in parts], dim=after).unsqueeze(after - 1)

    def pull_back(self, v: Tensor) -> NodeTensor:
        after = -1 - self.outputs
        v = v.squeeze(after - 1)

        def part(block: Sampled, at: Block) -> Tensor:
            return block.pull_back(v.narrow(after, at.at.start, at.at.stop - at.at.start).unflatten(after, (block.n, -1)))

        return self._added(self._over(part)) * self.inverse

    def by_node(self, v: Tensor) -> NodeScalar:
        total = v.new_zeros(*v.shape[:-2], self.n)
        for group in self.rows.groups:
            total[..., group.nodes] = v[..., 0, group.start : group.stop].unflatten(-1, (-1, group.size)).sum(-1)
        return total / self.samples

    def value(self, x: NodeTensor) -> NodeScalar:
        z = x * self.inverse
        return self._added(self._over(lambda block, at: block.value(z[..., at.group.nodes, :]).unsqueeze(-1))).squeeze(-1)

    def grad(self, x: NodeTensor) -> NodeTensor:
        return self.value_and_grad_from(x)[1]

    def look(self, x: NodeTensor) -> Tensor:
        return x

    def value_from(self, u: Tensor) -> NodeScalar:
        return self.value(u)

    def value_and_grad_from(self, u: Tensor) -> tuple[NodeScalar, NodeTensor]:
        z = u * self.inverse

        def both(block: Sampled, at: Block) -> Tensor:
            value, grad = block.value_and_grad_from(block.look(z[..., at.group.nodes, :]))
            return torch.cat((value.unsqueeze(-1), grad), dim=-1)

        found = self._added(self._over(both))
        return found[..., 0], found[..., 1:] * self.inverse

    def hessian_from(self, u: Tensor) -> Tensor:
        if self.quadratic:
            return self._gram
        if not self.outputs:
            return self._bending(self.predict(u))
        z = u * self.inverse
        found = self._added(self._over(lambda block, at: block.hessian_from(block.look(z[..., at.group.nodes, :]))))
        return found * self._inverses

    def _bending(self, u: Tensor | None, groups: Sequence[Group] | None = None) -> Tensor:
        """(1/N) Σ_j s_ij ℓ''_ij a_ij a_ijᵀ, the upper halves, where u is predicted; without u as if ℓ'' were 1. Of these groups,
        or of all."""

        def part(block: Any, at: Block) -> Tensor:
            own = block.weights
            if u is not None:
                own = block.weigh(block.loss_curvature(u[..., 0, at.at].unflatten(-1, (block.n, -1))))
            H = at.wide.mT @ ((own / self.samples).unsqueeze(-1) * at.wide)
            return pack(H[..., : self.rows.columns, : self.rows.columns])

        return self._added(self._over(part, groups)) * self._inverses

    @property
    def _inverses(self) -> Tensor:
        """By which the upper halves of Hessians are multiplied."""
        return pack(self.inverse.unsqueeze(-1) * self.inverse.unsqueeze(-2))

    @cached_property
    def _gram(self) -> Tensor:
        """(1/N) Σ_j s_ij a_ij a_ijᵀ, the upper halves [*batch, n, *], for problems with one output."""
        assert self.weights is not None
        left = [group for group in self.rows.groups if group.nodes[0] not in self.origins]
        found = self._bending(None, left) if left else self.weights.new_zeros(self.n, packed_size(self.d))
        for i, origin in self.origins.items():
            found[..., i, :] = origin.gram
        return found

    @cached_property
    def _lipschitz(self) -> NodeScalar:
        assert self.weights is not None
        rows, weights = self.rows, self.weights[..., 0, :]
        found = weights.new_zeros(*weights.shape[:-1], self.n)
        for group in rows.groups:
            A, first = rows.copied.get(group.start), group.nodes[0]
            if A is not None:
                s = weights[..., group.start : group.stop].unflatten(-1, (-1, group.size))
                norm = squared_norm(s.sqrt().unsqueeze(-1) * A)
            elif first in self.origins or (self.quadratic and group.size > rows.columns):
                gram = self.origins[first].gram if first in self.origins else self._gram[..., first, :]
                largest = torch.linalg.eigvalsh(unpack(gram, rows.columns))[..., -1:]
                norm = largest * self.samples * bound_above(self.dtype, group.size, rows.columns)
            else:
                norm = rows.squared_norm(group, weights).unsqueeze(-1)
            found[..., group.nodes] = norm
        return self.curvature * found / self.samples

    def half(self) -> tuple[NodeScalar, NodeScalar, NodeScalar]:
        assert self.weights is not None
        second = torch.cat([torch.arange(g.stop - g.start) % g.size % 2 == 0 for g in self.rows.groups])
        halved = self.reweighed(self.weights * second)
        total, part = self.by_node(self.weights), halved.by_node(halved.weights)  # type: ignore[arg-type]
        share = torch.where(total > 0, part / total, 1.0)
        count = (self.by_node((self.weights > 0).to(self.dtype)) * self.samples).round()
        units = self.rows.inverse.square().unsqueeze(-1)

        def squares(block: Sampled, at: Block) -> Tensor:
            return block.by_node(block.weigh((block.A.square() @ units[at.group.nodes]).squeeze(-1))).unsqueeze(-1)

        trace = self._added(self._over(squares)).squeeze(-1)
        return count, halved.lipschitz() / share, self.largest_trace * trace

    def at(self, nodes: Sequence[int]) -> Self:
        assert self.weights is not None
        rows, stood = self.rows.at(nodes)
        b, weights = self.b[:, stood.clamp(min=0)], self.weights[..., stood.clamp(min=0)]
        b[:, stood < 0], weights[..., stood < 0] = 0, 0
        return type(self)(rows, b, self.reg, weights * (rows.length / self.samples))

    def reweighed(self, weights: Tensor) -> Self:
        other = copy(super().reweighed(weights))
        vars(other).pop("_gram", None)
        other.origins = {}
        return other

    def moved(self, u: Tensor, x: Point, step: Tensor) -> Tensor:
        return u - step.unflatten(-1, (1, 1, -1) if self.outputs else (1, -1))  # the last column is all ones

    def placed(self, values: Sequence[Tensor], fill: float = 0) -> Tensor:
        return self.rows.place(values, fill)

    def pooled(self) -> Sampled:
        assert self.weights is not None
        A, inverse = torch.empty(self.rows.length, self.rows.columns, dtype=self.dtype), self.rows.inverse

        def copied(block: Block) -> None:
            A[block.at] = (block.A * inverse[block.group.nodes].unsqueeze(-2)).flatten(0, 1)

        for _ in self.rows.over(copied):
            pass
        return self.plain(A.unsqueeze(0), self.b, self.reg, self.weights / self.n)
