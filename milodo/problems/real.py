"""Families of problems made of real data: BSDS500 (Appendix E.2), Census Income, and breast cancer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.files import cache_folder
from milodo.problems.base import purpose_of, stream
from milodo.problems.datasets import breast_cancer, census, data_folder
from milodo.problems.datasets.bsds import patch, photographs
from milodo.problems.dictionary import dictionary
from milodo.problems.lasso import LeastSquares
from milodo.problems.linear import LinearModel
from milodo.problems.linear_family import LinearFamily
from milodo.problems.logistic import LogisticRegression
from milodo.problems.regularizers import Regularizer

PATIENTS = 569
"""Rows of the breast-cancer data."""


def part_for(seed: int) -> str:
    """Instances to be tested on come from the test part of a data set, all others from its training part."""
    return "test" if purpose_of(seed) == "test" else "train"


@dataclass(frozen=True)
class BSDSLasso(LinearFamily):
    """Sparse codes of patches: b in R^{nN} a square patch of a photograph minus its mean, A [nN, d] learnt by K-SVD.

    Node i holds rows iN to (i+1)N of both; with the paper's n = N = 10 that is one line of a 10 x 10 patch. The paper leaves two
    units open. Grey goes from 0 to 255, as in the files: in [0, 1] the best code of four patches in five would be 0 at
    lam = 0.05. The atoms have one common length, such that the largest L_i is (√d + √N)²/N, what a standard normal A_i has: the
    published step sizes are those of such matrices, and with atoms of length 1 they would be 30 times too short.
    """

    n: int = 10
    d: int = 200
    N: int = 10
    lam: float = 0.05
    reg: Regularizer | None = None

    model: ClassVar[type[LinearModel]] = LeastSquares

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side**2 != self.n * self.N:
            raise InvalidInput(
                f"{self.name}: the {self.n * self.N} pixels that {self.n} nodes with {self.N} each hold make no square. "
                "Choose n and N whose product is one, as 10 and 10."
            )

    @property
    def side(self) -> int:
        return math.isqrt(self.n * self.N)

    @property
    def kind(self) -> str:
        return "bsds-lasso"

    def fill(self, A: Tensor, b: Tensor, seed: int, nodes: Sequence[int]) -> None:
        rows = patch(photographs(part_for(seed)), self.side, stream(seed)).reshape(self.n, self.N)
        held = list(nodes)
        A[:] = torch.from_numpy(_atoms(self.n, self.N, self.d, data_folder(), cache_folder())[held])
        b[:] = torch.from_numpy(rows[held])


@cache
def _atoms(n: int, N: int, d: int, data: Path, kept: Path) -> np.ndarray:
    """The dictionary [n, N, d], with the length of atoms that BSDSLasso speaks of."""
    A = dictionary(math.isqrt(n * N), d).reshape(n, N, d)
    largest = np.linalg.norm(A, ord=2, axis=(1, 2)).max()
    return (math.sqrt(d) + math.sqrt(N)) / largest * A


@dataclass(frozen=True)
class Census(LinearFamily):
    """Who earns more than 50K: nN rows of Census Income, drawn without replacement and dealt to the nodes."""

    n: int = 10
    d: int = 14
    N: int = 100
    lam: float = 0.1
    reg: Regularizer | None = None

    model: ClassVar[type[LinearModel]] = LogisticRegression

    def __post_init__(self) -> None:
        super().__post_init__()
        _fixed(self, 14, "attributes")

    def fill(self, A: Tensor, b: Tensor, seed: int, nodes: Sequence[int]) -> None:
        part = part_for(seed)
        X, y = census(part)
        if self.n * self.N > len(y):
            raise InvalidInput(
                f"{self.name} needs {self.n * self.N:,} rows, but the {part} part of Census Income has {len(y):,}. "
                "Choose a smaller n or N."
            )
        rows = stream(seed).permutation(len(y))[: self.n * self.N].reshape(self.n, self.N)[list(nodes)]
        A[:], b[:] = torch.from_numpy(X[rows]), torch.from_numpy(y[rows])


@dataclass(frozen=True)
class BreastCancer(LinearFamily):
    """Benign or not: patients dealt to n hospitals, all 569 of them unless N says how many each has. Needs no download.

    If 569 is no multiple of n, some nodes have one patient fewer; weights see to it that all patients count alike. The data have
    no part for tests: instances for every purpose are the same patients, dealt (and, with N, drawn) differently.
    """

    n: int = 10
    d: int = 30
    N: int = None  # type: ignore[assignment]  # becomes a number below
    lam: float = 0.01
    reg: Regularizer | None = None

    model: ClassVar[type[LinearModel]] = LogisticRegression

    def __post_init__(self) -> None:
        if self.N is None:
            object.__setattr__(self, "N", -(-PATIENTS // max(1, self.n)))
        super().__post_init__()
        _fixed(self, 30, "features")
        if self.n * (self.N - 1) >= PATIENTS or self.n > PATIENTS:
            raise InvalidInput(
                f"{self.name} needs {self.n * self.N:,} patients, but there are {PATIENTS}. Choose a smaller n or N."
            )

    @property
    def kind(self) -> str:
        return "breast-cancer"

    @property
    def patients(self) -> int:
        return min(self.n * self.N, PATIENTS)

    def weights(self, nodes: Sequence[int]) -> Tensor | None:
        if self.patients == self.n * self.N:
            return None
        held = (torch.arange(self.n * self.N) < self.patients).reshape(self.N, self.n).T
        return held[list(nodes)].double() * (self.n * self.N / self.patients)

    def fill(self, A: Tensor, b: Tensor, seed: int, nodes: Sequence[int]) -> None:
        X, y = breast_cancer()
        rows = stream(seed).permutation(PATIENTS)[: self.patients]
        A.zero_()
        b.zero_()
        for i, node in enumerate(nodes):
            own = rows[node :: self.n]
            A[i, : len(own)], b[i, : len(own)] = torch.from_numpy(X[own]), torch.from_numpy(y[own])


def _fixed(family: LinearFamily, d: int, what: str) -> None:
    if family.d != d:
        raise InvalidInput(f"{family.name}: d is {family.d}, but these data have {d} {what}. Leave d out.")
