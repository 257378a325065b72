"""Samples at nodes of any sizes, without copies of what is large: what a node of few samples costs does not depend on the others.

Nodes with few samples are put together by size into tensors [nodes, N, columns], filled up with samples of weight 0, because one
batched product is faster than many small ones. Nodes with many samples stay where they are: a pass reads them in blocks that fit
the cache, and scales each block there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Self

import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.problems.base import check_finite
from milodo.problems.regularizers import Regularizer
from milodo.problems.sampled import Sampled, bound_above, squared_norm
from milodo.types import NodeScalar, NodeTensor, Point

BLOCK = 1 << 18
"""Numbers of a block: 2 MB in fp64, which stay in the cache between the steps of a pass. A node with more is never copied."""
ALIKE = 1.5
"""The longest node of a group over the shortest, at most."""
SPARE = 1 << 17
"""Numbers that groups may be filled up with beyond that: small data lie in one group, whatever the sizes."""
FEWEST = 64
"""Rows of a block, however many columns there are."""


@dataclass(frozen=True)
class Group:
    """Nodes of about the same size; a large node is alone."""

    nodes: list[int]
    start: int
    """Where its samples begin among those of all groups."""
    size: int
    """Samples of each node, filled up."""
    large: bool

    @property
    def stop(self) -> int:
        return self.start + len(self.nodes) * self.size


def grouped(sizes: Sequence[int], columns: int) -> list[Group]:
    """Which nodes lie together; the memory they take is at most ALIKE times that of their samples and SPARE numbers."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    members: list[list[int]] = []
    spare = SPARE
    for i in order:
        longest = sizes[members[-1][0]] if members else 0
        filled = (longest - sizes[i]) * columns
        if members and longest * columns <= BLOCK and (longest <= ALIKE * sizes[i] or filled <= spare):
            spare -= 0 if longest <= ALIKE * sizes[i] else filled
            members[-1].append(i)
        else:
            members.append([i])
    groups, start = [], 0
    for nodes in members:
        size = max(sizes[nodes[0]], 1)
        groups.append(Group(sorted(nodes), start, size, size * columns > BLOCK))
        start = groups[-1].stop
    return groups


class Rows:
    """a_ij of the nodes held here: features (X_i - mean_i) / scale_i, and a last column of ones where there is an intercept.

    Samples of all nodes stand in one row of `length` places, group by group; b and weights stand in the same places.
    """

    def __init__(self, features: Sequence[Tensor], mean: NodeTensor, scale: NodeTensor, *, intercept: bool) -> None:
        for X in features:
            check_finite("A", X)
        self.features, self.mean, self.scale, self.intercept = list(features), mean, scale, intercept
        self.n, self.columns = len(features), features[0].shape[1] + intercept
        self.groups = grouped([len(X) for X in features], self.columns)
        self.length = self.groups[-1].stop
        self.begins = {i: g.start + k * g.size for g in self.groups for k, i in enumerate(g.nodes)}
        self.copied = {g.start: self._copied(g) for g in self.groups if not g.large}
        """Small groups, by where they start."""

    @property
    def together(self) -> Tensor | None:
        """All nodes in one tensor [n, N, columns], where they are of about the same size, and small."""
        return self.copied.get(0) if len(self.groups) == 1 else None

    def _copied(self, group: Group) -> Tensor:
        A = torch.zeros(len(group.nodes), group.size, self.columns, dtype=torch.float64)
        for k, i in enumerate(group.nodes):
            self._scaled(i, slice(None), A[k, : len(self.features[i])])
        return A

    def _scaled(self, node: int, rows: slice, out: Tensor, columns: slice = slice(None)) -> Tensor:
        """Rows of one node, written to `out`; columns of features, if not all."""
        X = self.features[node][rows, columns]
        torch.sub(X, self.mean[node, columns], out=out[:, : X.shape[1]]).div_(self.scale[node, columns])
        out[:, X.shape[1] :] = 1
        return out

    def blocks(self, groups: Sequence[Group] | None = None) -> Iterator[tuple[Group, slice, Tensor]]:
        """Every sample of these groups (of all unless given) once: A [nodes, N, columns] of the nodes of a group, and its places.
        A block is gone when the next one comes, unless gradients flow through it."""
        buffer = torch.empty(0, dtype=torch.float64)
        step = max(FEWEST, BLOCK // self.columns)
        for group in self.groups if groups is None else groups:
            if (A := self.copied.get(group.start)) is not None:
                yield group, slice(group.start, group.stop), A
                continue
            (node,) = group.nodes
            for first in range(0, group.size, step):
                last = min(first + step, group.size)
                if not len(buffer) or torch.is_grad_enabled():
                    buffer = torch.empty(step, self.columns, dtype=torch.float64)
                block = self._scaled(node, slice(first, last), buffer[: last - first])
                yield group, slice(group.start + first, group.start + last), block.unsqueeze(0)

    def place(self, values: Sequence[Tensor], fill: float = 0) -> Tensor:
        """Numbers of the samples of each node [N_i, *], each at the place of its sample [1, length, *]."""
        placed = torch.full((1, self.length, *values[0].shape[1:]), fill, dtype=values[0].dtype)
        for i, own in enumerate(values):
            placed[0, self.begins[i] : self.begins[i] + len(own)] = own
        return placed

    def at(self, nodes: Sequence[int]) -> tuple[Rows, Tensor]:
        """The same rows of these nodes only, and where their samples stood, -1 where there was none."""
        held = torch.as_tensor(nodes)
        rows = Rows([self.features[i] for i in nodes], self.mean[held], self.scale[held], intercept=self.intercept)
        stood = [torch.arange(self.begins[i], self.begins[i] + len(self.features[i])) for i in nodes]
        return rows, rows.place(stood, -1)[0]

    def squared_norm(self, group: Group, weights: Tensor) -> Tensor:
        """‖√s A‖₂² of a large node, for weights [*instances, length], from the smaller Gram matrix [*instances]."""
        (node,) = group.nodes
        s, N = weights[..., group.start : group.stop], group.size
        small = min(N, self.columns)
        gram = weights.new_zeros(*weights.shape[:-1], small, small)
        if self.columns < N:
            for _, at, A in self.blocks([group]):
                gram += A[0].mT @ (weights[..., at].unsqueeze(-1) * A[0])
        else:  # a few columns at a time
            step = max(FEWEST, BLOCK // N)
            part, kernel = torch.empty(N, step + 1, dtype=torch.float64), weights.new_full((N, N), float(self.intercept))
            for first in range(0, self.columns - self.intercept, step):
                width = min(step, self.columns - self.intercept - first)
                A = self._scaled(node, slice(None), part[:, :width], slice(first, first + width))
                kernel += A @ A.mT
            gram = s.sqrt().unsqueeze(-1) * kernel * s.sqrt().unsqueeze(-2)
        return torch.linalg.eigvalsh(gram)[..., -1] * bound_above(torch.float64, N, self.columns)


class Ragged(Sampled):
    """A problem whose nodes have numbers of samples of their own: `ragged(LeastSquares)(rows, b, reg, weights)`.

    b [1, length] or [1, length, k] and weights [*instances, 1, length] stand in the places of the rows, and so does u. With N =
    length f_i is (1/N) Σ_j s_ij ℓ(u_ij, b_ij) over the samples of node i. A sum over samples is one over blocks, each of which is
    an ordinary problem. f_i sees all of x_i: methods that combine looks combine points.
    """

    plain: type[Sampled]
    """The same loss for nodes of one size, of which blocks are."""
    rows: Rows

    def __init__(self, rows: Rows, b: Tensor, reg: Regularizer, weights: Tensor) -> None:
        super().__init__(rows, b, reg, weights)  # type: ignore[arg-type]
        self.n = rows.n
        self._last: tuple[Point, Tensor] | None = None
        """Coefficients of features, and what they predicted."""
        self._found: tuple[Point, NodeScalar, NodeTensor] | None = None
        """The last common point, f_i and ∇f_i there: a stopping rule and the next step ask for the same."""

    def hold(self, A: Any) -> tuple[int, ...]:
        self.rows, self.dtype, self.device = A, torch.float64, torch.device("cpu")
        return (1, A.length, A.columns)

    def check_data(self) -> None:
        """Rows have been looked at when they were put together."""

    def _blocks(self) -> Iterator[tuple[Group, slice, Sampled]]:
        kept = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        for group, at, A in self.rows.blocks():
            block = object.__new__(self.plain)
            vars(block).update(kept)
            nodes, N = A.shape[:2]
            assert self.weights is not None
            block.A, block.n, block.b = A, nodes, self.b[0, at].unflatten(0, (nodes, N))
            block.weights = self.weights[..., 0, at].unflatten(-1, (nodes, N))
            yield group, at, block

    def _summed(self, part: Callable[[Sampled, NodeTensor], Tensor], x: NodeTensor) -> Tensor:
        """Σ over the blocks of each node of a part [*batch, nodes, numbers], at that node."""
        total: Tensor | None = None
        for group, _, block in self._blocks():
            own = part(block, x[..., group.nodes, :])
            if total is None:
                total = own.new_zeros(*own.shape[:-2], self.n, own.shape[-1])
            total[..., group.nodes, :] += own
        assert total is not None
        return total

    def predict(self, x: NodeTensor) -> Tensor:
        """At a point that all nodes share, features are not multiplied again if they were the last time: certificate, objective
        and intercepts ask for the same."""
        if not self._common(x):
            return self._predict(x)
        spared = (self.b.shape[-1] if self.outputs else 1) * self.rows.intercept
        features = x[0, : self.d - spared]
        if self._last is None or not torch.equal(self._last[0], features):
            alone = torch.cat((features, features.new_zeros(spared)))
            self._last = features.clone(), self._predict(self.everywhere(alone))
        return self._last[1] + x[0, self.d - spared :] if spared else self._last[1]

    def _predict(self, x: NodeTensor) -> Tensor:
        after = -1 - self.outputs
        parts = [block.predict(x[..., group.nodes, :]).flatten(after - 1, after) for group, _, block in self._blocks()]
        return torch.cat(parts, dim=after).unsqueeze(after - 1)

    def pull_back(self, v: Tensor) -> NodeTensor:
        after = -1 - self.outputs
        v, total = v.squeeze(after - 1), None
        for group, at, block in self._blocks():
            own = block.pull_back(v.narrow(after, at.start, at.stop - at.start).unflatten(after, (block.n, -1)))
            total = own.new_zeros(*own.shape[:-2], self.n, self.d) if total is None else total
            total[..., group.nodes, :] += own
        assert total is not None
        return total

    def by_node(self, v: Tensor) -> NodeScalar:
        total = v.new_zeros(*v.shape[:-2], self.n)
        for group in self.rows.groups:
            total[..., group.nodes] = v[..., 0, group.start : group.stop].unflatten(-1, (-1, group.size)).sum(-1)
        return total / self.samples

    def value(self, x: NodeTensor) -> NodeScalar:
        return self._summed(lambda block, own: block.value(own).unsqueeze(-1), x).squeeze(-1)

    def grad(self, x: NodeTensor) -> NodeTensor:
        return self.value_and_grad_from(x)[1]

    def look(self, x: NodeTensor) -> Tensor:
        return x

    def value_from(self, u: Tensor) -> NodeScalar:
        return self.value(u)

    def value_and_grad_from(self, u: Tensor) -> tuple[NodeScalar, NodeTensor]:
        def both(block: Sampled, own: NodeTensor) -> Tensor:
            value, grad = block.value_and_grad_from(block.look(own))
            return torch.cat((value.unsqueeze(-1), grad), dim=-1)

        common = self._common(u)
        if common and self._found is not None and torch.equal(self._found[0], u[0]):
            return self._found[1], self._found[2]
        found = self._summed(both, u)
        value, grad = found[..., 0], found[..., 1:]
        if common:
            self._found = u[0].clone(), value, grad
        return value, grad

    def _common(self, x: NodeTensor) -> bool:
        """Whether x is one point that all nodes share, and no gradient flows through it."""
        return x.ndim == 2 and x.stride(0) == 0 and not torch.is_grad_enabled()

    def hessian_from(self, u: Tensor) -> Tensor:
        return self._curved if self.quadratic else self._hessian(u)

    def _hessian(self, u: Tensor) -> Tensor:
        return self._summed(lambda block, own: block.hessian_from(block.look(own)), u)

    @cached_property
    def _curved(self) -> Tensor:
        """∇²f_i where it is the same everywhere."""
        return self._hessian(torch.zeros(self.n, self.d, dtype=self.dtype))

    @cached_property
    def _lipschitz(self) -> NodeScalar:
        assert self.weights is not None
        rows, weights = self.rows, self.weights[..., 0, :]
        found = weights.new_zeros(*weights.shape[:-1], self.n)
        for group in rows.groups:
            A = rows.copied.get(group.start)
            if A is None and self.quadratic and group.size > rows.columns:
                own = self._curved[..., group.nodes, :]  # from a pass that Newton's method makes, too
                norm = torch.linalg.eigvalsh(full(own, self.d))[..., -1] * self.samples
                norm = norm * bound_above(self.dtype, group.size, rows.columns)
            elif A is None:
                norm = rows.squared_norm(group, weights).unsqueeze(-1)
            else:
                s = weights[..., group.start : group.stop].unflatten(-1, (-1, group.size))
                norm = squared_norm(s.sqrt().unsqueeze(-1) * A)
            found[..., group.nodes] = norm
        return self.curvature * found / self.samples

    def half(self) -> tuple[NodeScalar, NodeScalar, NodeScalar]:
        assert self.weights is not None
        second = torch.cat([torch.arange(g.stop - g.start) % g.size % 2 == 0 for g in self.rows.groups])
        halved = self.reweighed(self.weights * second)
        total, part = self.by_node(self.weights), halved.by_node(halved.weights)  # type: ignore[arg-type]
        share = torch.where(total > 0, part / total, 1.0)
        count = (self.by_node((self.weights > 0).to(self.dtype)) * self.samples).round()
        squares = self._summed(lambda block, _: block.by_node(block.weigh(block.A.square().sum(-1))).unsqueeze(-1), self.zeros())
        return count, halved.lipschitz() / share, self.largest_trace * squares.squeeze(-1)

    def at(self, nodes: Sequence[int]) -> Self:
        assert self.weights is not None
        rows, stood = self.rows.at(nodes)
        b, weights = self.b[:, stood.clamp(min=0)], self.weights[..., stood.clamp(min=0)]
        b[:, stood < 0], weights[..., stood < 0] = 0, 0
        return type(self)(rows, b, self.reg, weights * (rows.length / self.samples))

    def reweighed(self, weights: Tensor) -> Self:
        other = copy(super().reweighed(weights))
        vars(other).pop("_curved", None)
        other._found = None
        return other

    def moved(self, u: Tensor, x: Point, step: Tensor) -> Tensor:
        return u - step.unflatten(-1, (1, 1, -1) if self.outputs else (1, -1))  # the last column is all ones

    def placed(self, values: Sequence[Tensor], fill: float = 0) -> Tensor:
        return self.rows.place(values, fill)

    def pooled(self) -> Sampled:
        assert self.weights is not None
        A = torch.empty(self.rows.length, self.rows.columns, dtype=self.dtype)
        for _, at, block in self.rows.blocks():
            A[at] = block.flatten(0, 1)
        return self.plain(A.unsqueeze(0), self.b, self.reg, self.weights / self.n)


def full(halves: Tensor, d: int) -> Tensor:
    """Symmetric matrices [*, d, d] from their upper halves, row by row [*, d (d + 1) / 2]."""
    rows, columns = torch.triu_indices(d, d, device=halves.device)
    H = halves.new_zeros(*halves.shape[:-1], d, d)
    H[..., rows, columns] = H[..., columns, rows] = halves
    return H


@cache
def ragged(loss: type[Sampled]) -> type[Ragged]:
    """The loss for nodes of any sizes."""
    if not issubclass(loss, Sampled) or issubclass(loss, Ragged):
        raise InvalidInput(f"{loss.__name__} is not a loss for nodes of one size, such as LeastSquares.")
    return type(f"Ragged{loss.__name__}", (Ragged, loss), {"plain": loss, "__doc__": Ragged.__doc__})
