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
from milodo.problems.sampled import Sampled
from milodo.types import NodeTensor

SITES = "sites"
"""Leave one site out: every fold is all of a site."""

ROUNDING = 1e-12
"""A share of all samples below which it is none."""


def deal_folds(targets: Sequence[Tensor], net: Network, folds: int | str, seed: int, *, classes: bool) -> list[Tensor]:
    """The fold of each sample of the nodes held here: every site deals its own out like cards, each class by itself, in an order
    that the seed and the number of the node decide. Nodes begin with different folds: small sites do not all fill the first."""
    count = fold_count(folds, net)
    if folds == SITES:
        return [torch.full((len(y),), node) for node, y in zip(net.nodes, targets, strict=True)]
    found = []
    for node, y in zip(net.nodes, targets, strict=True):
        order = stream(seed, node).permutation(len(y))
        if classes:
            label = (y if y.ndim == 1 else y.argmax(-1)).numpy()
            order = order[np.argsort(label[order], kind="stable")]
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
    def of_sites(
        cls, problem: Sampled, dealt: Sequence[Tensor], count: int, total: Total, n: int, *, classes: bool = False
    ) -> Folds:
        """One sum of a number a fold, and of one more for each class. Refuses folds that are empty, or hold all of a class."""
        of = problem.placed(dealt, -1)
        inside = problem.weigh((of == torch.arange(count)[:, None, None]).to(problem.dtype))  # [folds, n, N]
        sums = [problem.by_node(inside)]
        if classes:
            labels = problem.b.unbind(-1) if problem.b.ndim == 3 else (1 - problem.b, problem.b)
            sums += [problem.by_node(inside * label) for label in labels]
        own = torch.stack(sums, dim=-1)  # [folds, n, 1 and classes]
        mass = (total(own.movedim(0, 1).flatten(1))[0] / n).view(count, -1)
        share = mass[:, 0]
        for k, size in enumerate(share.tolist()):
            if not ROUNDING < size < 1 - ROUNDING:
                held = "no sample" if size <= ROUNDING else "all samples"
                raise InvalidInput(f"fold {k + 1} of {count} has {held} of all sites together. Use fewer folds.", "folds")
        lost = ((mass[:, 1:].sum(0) - mass[:, 1:]) < ROUNDING).any(-1)
        if bool(lost.any()):
            raise InvalidInput(
                f"all samples of a class lie in fold {int(lost.nonzero()[0]) + 1} of {count}, so without it there is nothing to "
                "learn that class from. Use fewer folds, inside the sites.",
                "folds",
            )  # fmt: skip
        return cls(of, share)

    @property
    def count(self) -> int:
        return len(self.share)

    def inside(self, problem: Sampled) -> Tensor:
        """Weights of the samples in each fold [folds, n, N]."""
        return problem.weigh((self.of == torch.arange(self.count)[:, None, None]).to(problem.dtype))

    def training(self, problem: Sampled) -> Tensor:
        """Weights of all samples, and of those outside of each fold [1 + folds, n, N].

        Where λ weighs against a mean, as alpha of scikit-learn's Lasso does, those outside have mean weight one again. The C of
        its LogisticRegression weighs against a sum: then they are what they were.
        """
        outside = problem.weigh((self.of != torch.arange(self.count)[:, None, None]).to(problem.dtype))
        if problem.attained:
            outside = outside / (1 - self.share)[:, None, None]
        everything = problem.weigh(torch.ones_like(outside[0]))
        return torch.cat((everything.unsqueeze(0), outside))

    def losses(self, problem: Sampled, x: NodeTensor) -> NodeTensor:
        """Of the samples of each fold under the model that has not seen them, x [folds, n, d]: each node's part of the mean over
        all sites [n, folds]."""
        each = problem.reweighed(self.inside(problem)).value(x)  # [folds, n]
        return each.mT / self.share
