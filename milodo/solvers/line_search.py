"""How far to go along a direction: the best of a few lengths, whose values travel in one short message or in two."""

from __future__ import annotations

import torch
from torch import Tensor

LENGTHS = (0.0, 1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)
"""Parts of a step that are tried: none of it, all of it, and less."""
FIRST = 3
"""Of these, how many are looked at first where every value costs a pass over the data: most steps are taken whole."""
WHOLE = 1
"""The place of a whole step among them."""
ROUNDINGS = 10
"""Of the value where one is: a step whose gain is less is taken whole, because there Newton's method knows better than values."""


def lengths_like(x: Tensor) -> Tensor:
    """LENGTHS as a tensor beside x."""
    return torch.tensor(LENGTHS, dtype=x.dtype, device=x.device)


def best_length(values: Tensor) -> Tensor:
    """Which of the lengths to take, where these are the values at the first of them [lengths, *]."""
    rounding = ROUNDINGS * torch.finfo(values.dtype).eps * values[0].abs()
    return torch.where(values[WHOLE] <= values.amin(0) + rounding, WHOLE, values.argmin(0))
