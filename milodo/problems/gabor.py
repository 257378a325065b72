"""Synthetic image patches: what an optimizer that never saw a photograph can learn of problems with correlated columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.problems.base import stream
from milodo.problems.lasso import LeastSquares
from milodo.problems.linear import LinearModel
from milodo.problems.linear_family import LinearFamily
from milodo.problems.synthetic import TRUTH

NARROWEST = 0.6
"""Standard deviation of the window of an atom in pixels, at least; at most the side of the patch."""
LONGEST = 1.2
"""Logarithm of how many times longer than wide a window may be."""
FREQUENCY, HIGHEST = 0.8, 2.5
"""Mean and maximum of the frequency of an atom's wave, in radians a pixel. With these the singular values of a 100 x 200
dictionary fall as those of one learnt from photographs: from 33 over 8 (the 20th) and 4 (the 40th) to 0.2 (the 80th)."""
CONTRAST = (5.0, 60.0)
"""Standard deviation of a patch, in grey levels, evenly on a logarithmic scale."""
CROP = 4
"""A patch is cut from a periodic random field so many times as wide."""


@dataclass(frozen=True)
class GaborLasso(LinearFamily):
    """Sparse codes of random patches by random Gabor functions (Daugman 1985), as dictionaries of photographs look.

    The patch is a random field whose amplitudes fall as 1/frequency, as those of photographs do (Field 1987), minus its mean; an
    atom is a plane wave in a Gaussian window. Node i holds rows iN to (i+1)N of both, and atoms have one common length, such that
    the largest L_i is (√d + √N)²/N, as in BSDSLasso.
    """

    n: int = 10
    d: int = 200
    N: int = 10
    lam: float = 0.05

    model: ClassVar[type[LinearModel]] = LeastSquares

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side**2 != self.n * self.N or self.side < 2:
            raise InvalidInput(
                f"{self.name}: the {self.n * self.N} pixels that {self.n} nodes with {self.N} each hold make no square. "
                "Choose n and N whose product is one, as 10 and 10."
            )

    @property
    def side(self) -> int:
        return math.isqrt(self.n * self.N)

    @property
    def kind(self) -> str:
        return "gabor-lasso"

    def fill(self, A: Tensor, b: Tensor, seed: int, nodes: Sequence[int]) -> None:
        rng, held = stream(seed, TRUTH), list(nodes)
        atoms = gabor_functions(self.side, self.d, rng).reshape(self.n, self.N, self.d)
        largest = np.linalg.norm(atoms, ord=2, axis=(1, 2)).max()
        A[:] = torch.from_numpy((math.sqrt(self.d) + math.sqrt(self.N)) / largest * atoms[held])
        b[:] = torch.from_numpy(random_patch(self.side, rng).reshape(self.n, self.N)[held])


def gabor_functions(side: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """d of them on side x side pixels, with norm 1 and without their mean [side², d]."""
    x0, y0 = rng.uniform(0, side - 1, (2, d, 1))
    angle, phase = rng.uniform(0, np.pi, (d, 1)), rng.uniform(0, 2 * np.pi, (d, 1))
    width = np.exp(rng.uniform(math.log(NARROWEST), math.log(side), (d, 1)))
    length = width * np.exp(rng.uniform(0, LONGEST, (d, 1)))
    frequency = np.minimum(rng.exponential(FREQUENCY, (d, 1)), HIGHEST)
    y, x = (axis.reshape(1, -1) for axis in np.mgrid[0:side, 0:side].astype(float))
    across = (x - x0) * np.cos(angle) + (y - y0) * np.sin(angle)
    along = (y - y0) * np.cos(angle) - (x - x0) * np.sin(angle)
    window = np.exp(-((across / width) ** 2 + (along / length) ** 2) / 2)
    atoms = window * np.cos(frequency * across + phase)
    atoms -= atoms.mean(1, keepdims=True)
    return (atoms / np.linalg.norm(atoms, axis=1, keepdims=True)).T


def random_patch(side: int, rng: np.random.Generator) -> np.ndarray:
    """Minus its mean [side, side]."""
    wide = CROP * side
    frequency = np.hypot(np.fft.fftfreq(wide)[:, None], np.fft.fftfreq(wide)[None])
    frequency[0, 0] = np.inf
    field = np.fft.ifft2(np.fft.fft2(rng.standard_normal((wide, wide))) / frequency).real[:side, :side]
    field = field - field.mean()
    return np.exp(rng.uniform(*np.log(CONTRAST))) * field / field.std()
