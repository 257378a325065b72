"""Families of linear models: n nodes with N samples each, d unknowns, r = lam ‖x‖₁ or any other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from milodo.errors import LARGEST, InvalidInput, quoted, whole
from milodo.memory import need_memory
from milodo.problems.base import Family, checked_seeds
from milodo.problems.linear import LinearModel
from milodo.problems.regularizers import L1, Regularizer, Zero


@dataclass(frozen=True)
class LinearFamily(Family):
    """Shape (n, d, N, lam): A_i [N, d] and b_i [N] at each of n nodes; a subclass says what stands in them."""

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
    def fill(self, A: Tensor, b: Tensor, seed: int, nodes: Sequence[int]) -> None:
        """Writes the data of these nodes in one instance to A [nodes, N, d] and b [nodes, N].

        Numbers are drawn in fp64 and stored in the dtype of A: an instance is the same in every precision.
        """

    def weights(self, nodes: Sequence[int]) -> Tensor | None:
        """Of samples [nodes, N], where some nodes hold fewer than N; None where all hold as many."""
        return None

    def regularizer(self) -> Regularizer:
        if self.reg is not None:
            return self.reg
        return Zero() if self.lam == 0 else L1(self.lam)

    @property
    def kind(self) -> str:
        """The name without the shape."""
        return type(self).__name__.lower()

    @property
    def name(self) -> str:
        shape = f"{self.n},{self.d},{self.N}"
        lam = repr(float(self.lam)).removesuffix(".0")  # in full: a name stands for one family
        return f"{self.kind}({shape},{lam})" if self.reg is None else f"{self.kind}({shape}) + {self.reg}"

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
            self.fill(A[k], b[k], seed, nodes)
        weights = self.weights(nodes)
        if weights is not None:
            weights = weights.to(device, dtype).expand_as(b)
        return self.model(A.to(device), b.to(device), self.regularizer(), weights)

    def memory(self, instances: int = 1, nodes: int | None = None, dtype: torch.dtype = torch.float64) -> int:
        return instances * (self.n if nodes is None else nodes) * self.N * (self.d + 1) * dtype.itemsize
