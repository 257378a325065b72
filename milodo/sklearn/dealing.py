"""Which site holds which row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, quoted, shortened, whole


@dataclass(frozen=True)
class Dealt:
    """Rows as the sites hold them: features [N_i, d], targets [N_i] or [N_i, k], weights [N_i]."""

    features: list[Tensor]
    targets: list[Tensor]
    weights: list[Tensor] | None
    names: list[Any]
    """Of the sites, in the order of the graph's nodes."""

    @property
    def called(self) -> list[str]:
        """How messages to people call the sites."""
        return [f"site {shortened(name, 40)}" for name in self.names]

    @property
    def weight(self) -> float:
        """Of all rows together: their number unless they were weighed."""
        return float(sum(len(X) if s is None else s.sum() for X, s in zip(self.features, self._each, strict=True)))

    @property
    def _each(self) -> Sequence[Tensor | None]:
        return self.weights or [None] * len(self.features)


def rows_of(n_samples: int, n_sites: Any, sites: Any = None) -> dict[Any, np.ndarray | slice]:
    """Site -> its rows. `sites` names the site of each row, and sites stand in sorted order; without it rows are dealt out like
    cards to n_sites of them. A slice, where rows lie evenly, is one that arrays need not be copied for."""
    if sites is None:
        n = whole("n_sites", n_sites, least=1)
        if n_samples < n:
            raise InvalidInput(
                f"there are fewer samples than sites: n_samples={n_samples} for n_sites={n}. Give more rows, or fewer sites."
            )
        return {k: slice(k, n_samples, n) for k in range(n)}
    named = np.asarray(sites)
    if named.shape != (n_samples,):
        raise InvalidInput(
            f"sites has shape {named.shape}, but X has {n_samples} rows. Name the site of each row, in an array of {n_samples}."
        )
    missing = [k for k, name in enumerate(named.tolist()) if name is None or name != name]  # NaN is not itself
    if missing:
        raise InvalidInput(f"sites is {quoted(named[missing[0]])} for row {missing[0]}. Say where that row lies, or remove it.")
    try:
        names, place = np.unique(named, return_inverse=True)
    except TypeError as error:
        raise InvalidInput("sites mixes names and numbers, which have no order. Write them all as text.") from error
    return {name: _sliced(np.flatnonzero(place == k)) for k, name in enumerate(names.tolist())}


def _sliced(rows: np.ndarray) -> np.ndarray | slice:
    """Rows one after another, as a slice."""
    first, last = int(rows[0]), int(rows[-1]) + 1
    return slice(first, last) if last - first == len(rows) else rows


def deal(X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, rows: Mapping[Any, np.ndarray | slice]) -> Dealt:
    """What can be seen in the caller's array is not copied; nothing is written there."""

    def parts(array: np.ndarray) -> list[Tensor]:
        array = np.asarray(array, dtype=np.float64)
        if not array.flags.writeable or min(array.strides, default=0) < 0:  # which torch does not look at
            array = array.copy()
        return [torch.from_numpy(array[k]) for k in rows.values()]

    return Dealt(parts(X), parts(y), None if weights is None else parts(weights), list(rows))
