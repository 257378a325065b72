"""Where the samples of nodes of any sizes lie, and how a pass reads them: without copies of what is large.

Nodes with few samples are put together by size into tensors [nodes, N, columns], filled up with samples of weight 0, because one
batched product is faster than many small ones. Nodes with many samples stay where they are: a pass reads them in blocks that fit
the cache, and centres each block there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from milodo.problems.base import check_finite
from milodo.problems.blocks import padded, spread
from milodo.problems.sampled import bound_above
from milodo.types import NodeTensor

BLOCK = 1 << 18
"""Numbers of a block: 2 MB in fp64, which stay in the cache between the steps of a pass. A node with more is never copied, unless
its rows lie apart."""
ALIKE = 1.5
"""The longest node of a group over the shortest, at most."""
SPARE = 1 << 17
"""Numbers that groups may be filled up with beyond that: small data lie in one group, whatever the sizes."""
FEWEST = 64
"""Rows of a block, however many columns there are."""
READ = 2
"""Passes after which rows that lie apart, past those of others, are put together."""
Result = TypeVar("Result")


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


@dataclass(frozen=True)
class Block:
    """Some samples of a large node, or all of a group."""

    group: Group
    at: slice
    """Their places."""
    A: Tensor
    """[nodes, N, columns]; of a large node centred, but not divided by its scale."""
    wide: Tensor
    """A with columns of zeros after it."""


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
        groups.append(Group(sorted(nodes), start, size, is_large(size, columns)))
        start = groups[-1].stop
    return groups


def is_large(size: int, columns: int) -> bool:
    return size * columns > BLOCK


def rows_at_once(columns: int) -> int:
    """Of a block."""
    return max(FEWEST, BLOCK // columns)


class Rows:
    """a_ij of the nodes held here: features (X_i - mean_i) / scale_i, and a last column of ones where there is an intercept.

    Samples of all nodes stand in one row of `length` places, group by group; b and weights stand in the same places. Nodes that
    are `finite` need not be looked through.
    """

    def __init__(
        self, features: Sequence[Tensor], mean: NodeTensor, scale: NodeTensor, *, intercept: bool, finite: Container[int] = ()
    ) -> None:
        for i, X in enumerate(features):
            if i not in finite:
                check_finite("A", X)
        self.features, self.mean, self.scale, self.intercept = list(features), mean, scale, intercept
        self.n, self.columns = len(features), features[0].shape[1] + intercept
        self.groups = grouped([len(X) for X in features], self.columns)
        self.length = self.groups[-1].stop
        self.begins = {i: g.start + k * g.size for g in self.groups for k, i in enumerate(g.nodes)}
        self.copied = {g.start: self._copied(g) for g in self.groups if not g.large}
        """Small groups, by where they start."""
        self._width = padded(self.columns)
        self._read = 0

    @property
    def together(self) -> Tensor | None:
        """All nodes in one tensor [n, N, columns], where they are of about the same size, and small."""
        return self.copied.get(0) if len(self.groups) == 1 else None

    @property
    def inverse(self) -> NodeTensor:
        """What columns of blocks still have to be multiplied by [n, columns]; 1 where they have been scaled."""
        found = torch.ones(self.n, self.columns, dtype=torch.float64)
        for group in self.groups:
            if group.large:
                found[group.nodes, : self.columns - self.intercept] = 1 / self.scale[group.nodes]  # 0 where it is infinite
        return found

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

    def over(self, work: Callable[[Block], Result], groups: Sequence[Group] | None = None) -> Iterator[Result]:
        """work(block) for every sample of these groups (of all unless given) once, in order. A block is gone when the work on it
        is done, unless gradients flow through it."""
        groups = self.groups if groups is None else groups
        self._gather(groups)
        step, d, own = rows_at_once(self.columns), self.columns - self.intercept, threading.local()
        parts = [
            (group, first, min(first + step, group.size))
            for group in groups
            for first in (range(0, group.size, step) if group.large else (0,))
        ]

        def one(part: tuple[Group, int, int]) -> Result:
            group, first, last = part
            if not group.large:
                A = self.copied[group.start]
                return work(Block(group, slice(group.start, group.stop), A, A))
            wide: Tensor | None = getattr(own, "wide", None)
            if wide is None or torch.is_grad_enabled():
                own.wide = wide = torch.zeros(step, self._width, dtype=torch.float64)
                wide[:, d : self.columns] = 1
            (node,), wide = group.nodes, wide[: last - first]
            torch.sub(self.features[node][first:last], self.mean[node], out=wide[:, :d])
            at = slice(group.start + first, group.start + last)
            return work(Block(group, at, wide[:, : self.columns].unsqueeze(0), wide.unsqueeze(0)))

        return spread(one, parts)

    def _gather(self, groups: Sequence[Group]) -> None:
        """Copies rows that lie apart, if there has been more than a look or two."""
        self._read += 1
        if self._read > READ:
            for group in groups:
                if group.large and not self.features[group.nodes[0]].is_contiguous():
                    self.features[group.nodes[0]] = self.features[group.nodes[0]].contiguous()

    def place(self, values: Sequence[Tensor], fill: float = 0) -> Tensor:
        """Numbers of the samples of each node [N_i, *], each at the place of its sample [1, length, *]."""
        placed = torch.full((1, self.length, *values[0].shape[1:]), fill, dtype=values[0].dtype)
        for i, own in enumerate(values):
            placed[0, self.begins[i] : self.begins[i] + len(own)] = own
        return placed

    def at(self, nodes: Sequence[int]) -> tuple[Rows, Tensor]:
        """The same rows of these nodes only, and where their samples stood, -1 where there was none."""
        held = torch.as_tensor(nodes)
        rows = Rows(
            [self.features[i] for i in nodes], self.mean[held], self.scale[held], intercept=self.intercept,
            finite=range(len(nodes)),
        )  # fmt: skip
        stood = [torch.arange(self.begins[i], self.begins[i] + len(self.features[i])) for i in nodes]
        return rows, rows.place(stood, -1)[0]

    def squared_norm(self, group: Group, weights: Tensor) -> Tensor:
        """‖√s A‖₂² of a large node, for weights [*instances, length], from the smaller Gram matrix [*instances]."""
        (node,) = group.nodes
        s, N, inverse = weights[..., group.start : group.stop], group.size, self.inverse[node]
        if self.columns < N:
            parts = self.over(lambda block: block.A[0].mT @ (weights[..., block.at].unsqueeze(-1) * block.A[0]), [group])
            gram = sum(parts, weights.new_zeros(())) * inverse.unsqueeze(-1) * inverse
        else:  # a few columns at a time
            step = rows_at_once(N)
            part, kernel = torch.empty(N, step + 1, dtype=torch.float64), weights.new_full((N, N), float(self.intercept))
            for first in range(0, self.columns - self.intercept, step):
                width = min(step, self.columns - self.intercept - first)
                A = self._scaled(node, slice(None), part[:, :width], slice(first, first + width))
                kernel += A @ A.mT
            gram = s.sqrt().unsqueeze(-1) * kernel * s.sqrt().unsqueeze(-2)
        return torch.linalg.eigvalsh(gram)[..., -1] * bound_above(torch.float64, N, self.columns)
