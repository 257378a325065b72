"""The paper's synthetic families (Appendix E.2): normal data, a truth that is 75 % zero, one stream of numbers a node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from milodo.errors import LARGEST, InvalidInput, quoted, whole
from milodo.memory import need_memory
from milodo.problems.base import Family, checked_seeds, stream
from milodo.problems.linear import AT_ONCE, LinearModel
from milodo.problems.regularizers import L1, Regularizer, Zero

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
class SyntheticFamily(Family):
    """Shape (n, d, N, lam): A_i [N, d] standard normal at each of n nodes, labels made from A x, r = lam ‖x‖₁ or any `reg`."""

    n: int
    d: int
    N: int
    lam: float = 0.1
    reg: Regularizer | None = None

    model: ClassVar[type[LinearModel]]

    def __post_init__(self) -> None:
        for name in ("n", "d", "N"):
            whole(name, getattr(self, name), least=1, most=LARGEST)
        if not isinstance(self.regularizer(), Regularizer):
            raise InvalidInput(f"reg is {quoted(self.reg)}, but it must be a regularizer such as L1(0.1).")

    @abstractmethod
    def labels(self, u: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """b_i from u = A_i x."""

    def regularizer(self) -> Regularizer:
        if self.reg is not None:
            return self.reg
        return Zero() if self.lam == 0 else L1(self.lam)

    @property
    def name(self) -> str:
        kind, shape = type(self).__name__.lower(), f"{self.n},{self.d},{self.N}"
        lam = repr(float(self.lam)).removesuffix(".0")  # in full: a name stands for one family
        return f"{kind}({shape},{lam})" if self.reg is None else f"{kind}({shape}) + {self.reg}"

    def sample(
        self, seeds: Sequence[int], nodes: Sequence[int] | None = None,
        *, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu",
    ) -> LinearModel:  # fmt: skip
        seeds = checked_seeds(seeds, self.name)
        if nodes is not None and not all(node in range(self.n) for node in nodes):
            raise InvalidInput(f"{self.name}: asked for nodes {quoted(list(nodes))}, but there are only 0 to {self.n - 1}.")
        nodes = range(self.n) if nodes is None else nodes
        needed = self.memory(len(seeds), len(nodes), dtype)
        need_memory(needed, f"{len(seeds)} instances of {self.name}", "Sample fewer of them, or make n, d or N smaller.")
        A = torch.empty(len(seeds), len(nodes), self.N, self.d, dtype=dtype)
        b = torch.empty(len(seeds), len(nodes), self.N, dtype=dtype)
        for k, seed in enumerate(seeds):
            truth = sparse_truth(self.d, seed)
            for i, node in enumerate(nodes):
                b[k, i] = torch.from_numpy(self._draw_node(A[k, i], truth, stream(seed, node)))
        return self.model(A.to(device), b.to(device), self.regularizer())

    def memory(self, instances: int = 1, nodes: int | None = None, dtype: torch.dtype = torch.float64) -> int:
        return instances * (self.n if nodes is None else nodes) * self.N * (self.d + 1) * dtype.itemsize

    def _draw_node(self, A: torch.Tensor, truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Fills A and returns b. Rows are drawn in fp64 and stored in A's dtype: an instance is the same in every precision."""
        u = np.empty(self.N)
        size = max(1, AT_ONCE // self.d)
        for start in range(0, self.N, size):
            rows = rng.standard_normal((min(size, self.N - start), self.d))
            A[start : start + size] = torch.from_numpy(rows)
            u[start : start + size] = rows @ truth
        return self.labels(u, rng)
