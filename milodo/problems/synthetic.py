"""The paper's synthetic families (Appendix E.2): normal data, a truth that is 75 % zero, one stream of numbers a node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from milodo.problems.base import stream
from milodo.problems.linear import AT_ONCE
from milodo.problems.linear_family import LinearFamily

SPARSITY = 0.75
"""Fraction of the true x that is zero: its smallest entries (Appendix E.2)."""
TRUTH = 1 << 32
"""Stands in a stream's key where a node's id would: what all nodes share."""


def sparse_truth(d: int, seed: int) -> np.ndarray:
    """Normal entries, the 75 % smallest of them set to zero."""
    x = stream(seed, TRUTH).standard_normal(d)
    x[np.argsort(np.abs(x))[: int(SPARSITY * d)]] = 0
    return x


@dataclass(frozen=True)
class SyntheticFamily(LinearFamily):
    """A_i [N, d] standard normal at each of n nodes, labels made from A x."""

    @abstractmethod
    def labels(self, u: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """b_i from u = A_i x."""

    def fill(self, A: Tensor, b: Tensor, seed: int, nodes: Sequence[int]) -> None:
        truth = sparse_truth(self.d, seed)
        for i, node in enumerate(nodes):
            b[i] = torch.from_numpy(self._draw_node(A[i], truth, stream(seed, node)))

    def _draw_node(self, A: Tensor, truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Fills A and returns b."""
        u = np.empty(self.N)
        size = max(1, AT_ONCE // self.d)
        for start in range(0, self.N, size):
            rows = rng.standard_normal((min(size, self.N - start), self.d))
            A[start : start + size] = torch.from_numpy(rows)
            u[start : start + size] = rows @ truth
        return self.labels(u, rng)
