"""Folds of a cross-validation that lie inside the sites: each deals out its own samples, and tells nobody which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, whole
from milodo.fit.pooled import Total
from milodo.network import Network
from milodo.problems.base import stream
from milodo.problems.linear import LinearModel
from milodo.types import NodeTensor

SITES = "sites"
"""Leave one site out: every fold is all of a site."""

ROUNDING = 1e-12
"""Of a share, below which it is none."""


def deal_folds(targets: Sequence[Tensor], net: Network, folds: int | str, seed: int, *, classes: bool) -> list[Tensor]:
    """The fold of each sample of the nodes held here: every site deals its own out like cards, each class by itself, in an order
    that the seed and the number of the node decide. Nodes begin with different folds, so small sites do not all fill the first."""
    count = fold_count(folds, net)
    if folds == SITES:
        return [torch.full((len(y),), node) for node, y in zip(net.nodes, targets, strict=True)]
    found = []
    for node, y in zip(net.nodes, targets, strict=True):
        order = stream(seed, node).permutation(len(y))
        if classes:
            order = order[np.argsort(y.numpy()[order], kind="stable")]
        fold = np.empty(len(y), dtype=np.int64)
        fold[order] = (np.arange(len(y)) + node) % count
        found.append(torch.from_numpy(fold))
    return found


def fold_count(folds: int | str, net: Network) -> int:
    if folds != SITES:
        return whole("the number of folds", folds, least=2)
    if net.topology.n < 2:
        raise InvalidInput("to leave one site out there must be two at least, and there is one. Use folds of its rows.", "folds")
    return net.topology.n


@dataclass(frozen=True)
class Folds:
    """Folds as the problem of all samples sees them."""

    of: Tensor
    """The fold of each sample [n, N]; -1 where a node was filled up."""
    share: Tensor
    """Of all samples, by weight, what each fold has [folds]; the same at every node."""

    @classmethod
    def of_sites(cls, problem: LinearModel, dealt: Sequence[Tensor], count: int, total: Total, n: int) -> Folds:
        """One sum of a number a fold, two for classes. Refuses folds that are empty, or leave one class to learn from."""
        of = torch.full((problem.n, problem.samples), -1)
        for i, fold in enumerate(dealt):
            of[i, : len(fold)] = fold
        inside = problem.weigh((of == torch.arange(count)[:, None, None]).to(problem.dtype))  # [folds, n, N]
        parts = [inside.mean(-1).mT]
        if not problem.attained:
            parts.append((inside * problem.b).mean(-1).mT)
        mass = total(torch.cat(parts, dim=-1))[0] / n
        share, second = mass[:count], mass[count:]
        for k, size in enumerate(share.tolist()):
            if not 0 < size < 1:
                held = "no sample" if size <= 0 else "all samples"
                raise InvalidInput(f"fold {k + 1} of {count} has {held} of all sites together. Use fewer folds.", "folds")
        left = (second.sum() - second) / (1 - share[: len(second)])  # what the second class has of the samples outside
        alone = (left < ROUNDING) | (left > 1 - ROUNDING)
        if bool(alone.any()):
            k = int(alone.nonzero()[0])
            raise InvalidInput(
                f"without fold {k + 1} of {count} only one class is left to learn from. Use fewer folds, or folds inside the sites.",
                "folds",
            )
        return cls(of, share)

    @property
    def count(self) -> int:
        return len(self.share)

    def inside(self, problem: LinearModel) -> Tensor:
        """Weights of the samples in each fold [folds, n, N]."""
        return problem.weigh((self.of == torch.arange(self.count)[:, None, None]).to(problem.dtype))

    def training(self, problem: LinearModel) -> Tensor:
        """Weights of all samples, and of those outside of each fold [1 + folds, n, N].

        Where λ weighs against a mean, as alpha of scikit-learn's Lasso does, those outside have mean weight one again. The C of
        its LogisticRegression weighs against a sum: then they are what they were.
        """
        outside = problem.weigh((self.of != torch.arange(self.count)[:, None, None]).to(problem.dtype))
        if problem.attained:
            outside = outside / (1 - self.share)[:, None, None]
        everything = problem.weigh(torch.ones_like(problem.b))
        return torch.cat((everything.unsqueeze(0), outside))

    def losses(self, problem: LinearModel, x: NodeTensor, total: Total, n: int) -> Tensor:
        """Mean losses of each fold's samples under the model that has not seen them [folds]; one sum of a number a fold."""
        each = (self.inside(problem) * problem.loss(problem.predict(x))).mean(-1)  # [folds, n]
        return total(each.mT.contiguous())[0] / n / self.share
