"""The largest eigenvalue of a matrix that is known by its products only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

MARGIN = 1.02
"""Times what Lanczos finds, which is from below, to a thousandth."""


def largest_eigenvalue(product: Callable[[Tensor], Tensor], d: int) -> float:
    """A bound from above, of a symmetric matrix H ⪰ 0 [d, d] with product(v) = Hv."""

    def matvec(v: np.ndarray) -> np.ndarray:
        return product(torch.from_numpy(v.ravel())).numpy()

    operator = LinearOperator((d, d), matvec=matvec, dtype=np.float64)  # type: ignore[call-arg]
    start = np.random.default_rng(0).standard_normal(d)
    found = eigsh(operator, k=1, tol=1e-3, v0=start, return_eigenvectors=False)  # type: ignore[arg-type]
    return MARGIN * float(found[0])
