"""How the rows of a labelled data set are dealt to nodes: at random, by label, or in proportions drawn from Dirichlet(α)."""

from __future__ import annotations

import math
import re

import numpy as np

from milodo.errors import InvalidInput, quoted, whole
from milodo.problems.base import stream

SPLIT = 1 << 34
"""Stands in a stream's key for: which rows belong to which node."""
KINDS = "'uniform', 'label' or 'dirichlet(0.3)'"
Rows = list[np.ndarray]
"""Row numbers of each node."""


def check_split(how: str) -> float | None:
    """One sentence for a word that is no split; α of a Dirichlet split."""
    if how in ("uniform", "label"):
        return None
    said = re.fullmatch(r"dirichlet\((.+)\)", how) if isinstance(how, str) else None
    try:
        alpha = float(said[1]) if said else math.nan
    except ValueError:
        alpha = math.nan
    if not 0 < alpha < math.inf:
        raise InvalidInput(f"split is {quoted(how)}, but it must be {KINDS}, with a number > 0.")
    return alpha


def split(how: str, labels: np.ndarray, n: int, N: int | None = None, *, seed: int = 0) -> Rows:
    """Rows of n nodes, no row twice: N each, or all rows as evenly as the split allows. The seed alone decides.

    uniform       a random deal
    label         rows sorted by label and cut into n pieces: a node sees few labels, often one or two
    dirichlet(α)  each node's proportions of labels are drawn from Dirichlet(α C π), C labels of frequencies π in the data: the
                  smaller α, the fewer labels a node sees; for large α it is the uniform split

    Within a node the order is random, so any part of its rows is like all of them.
    """
    alpha, labels = check_split(how), np.asarray(labels)
    whole("n", n, least=1)
    asked = n * N if N is not None else len(labels)
    if asked > len(labels) or len(labels) < n:
        size = f"{n} nodes with {N:,} samples each" if N is not None else f"{n} nodes"
        raise InvalidInput(f"{size} need {max(asked, n):,} samples, but there are only {len(labels):,}. Make n or N smaller.")
    rng = stream(seed, SPLIT)
    rows = rng.permutation(len(labels))
    if alpha is None:
        rows = rows[:asked]
        if how == "label":
            order = rng.permutation(len(np.unique(labels)))  # which labels are neighbours is chance, too
            rows = rows[np.argsort(order[np.unique(labels, return_inverse=True)[1][rows]], kind="stable")]
        parts = np.array_split(rows, n)
    else:
        parts = _dirichlet(alpha, rows, labels, [len(part) for part in np.array_split(rows[:asked], n)], rng)
    return [rng.permutation(part) for part in parts]


def _dirichlet(alpha: float, rows: np.ndarray, labels: np.ndarray, sizes: list[int], rng: np.random.Generator) -> Rows:
    """Where a label runs out, those after ask for the others in the proportions that are left."""
    classes, counts = np.unique(labels, return_counts=True)
    heaps = [list(rows[labels[rows] == label]) for label in classes]
    parts: Rows = []
    for size in sizes:
        share = rng.dirichlet(np.maximum(alpha * len(classes) * counts / counts.sum(), 1e-9))
        part: list[int] = []
        while len(part) < size:
            left = np.array([len(heap) for heap in heaps])
            wanted = np.where(left > 0, np.maximum(share, 1e-12), 0.0)
            take = np.minimum(rng.multinomial(size - len(part), wanted / wanted.sum()), left)
            for heap, count in zip(heaps, take, strict=True):
                part += [heap.pop() for _ in range(count)]
        parts.append(np.array(part, dtype=np.int64))
    return parts
