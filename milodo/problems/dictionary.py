"""A dictionary for patches of photographs, learnt by K-SVD (Aharon, Elad, Bruckstein 2006) and kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from milodo.errors import InvalidInput
from milodo.files import atomic, cache_folder
from milodo.problems.base import stream
from milodo.problems.datasets.bsds import patch, photographs
from milodo.problems.datasets.store import data_folder

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

PATCHES = 5000
"""Learnt from."""
SPARSITY = 5
"""Atoms that K-SVD may use for a patch; neither this nor the other two numbers are in the paper."""
ROUNDS = 12
"""Of coding and updating; later ones take less than 1 % off the error each."""
PRUNED = 3
"""Rounds after which atoms are looked at that resemble others or are hardly used."""
ALIKE = 0.9
"""Cosine of two atoms that resemble each other."""
RARE = 0.25
"""An atom used less often than this part of the average is hardly used."""
RECIPE = 1
"""Raised when a change of the library changes what is learnt; dictionaries on disk are then forgotten."""


def dictionary(side: int, atoms: int) -> np.ndarray:
    """D float64 [side², atoms] with columns of norm 1, for patches of the training part of BSDS500; read-only.

    Deterministic, and the same for all instances. Learning the paper's 100 x 200 takes half a minute, once: the result is kept in
    the cache folder, under a name made of everything it depends on.
    """
    if atoms > PATCHES:
        raise InvalidInput(f"d is {atoms}, but a dictionary of more atoms than the {PATCHES} patches it is learnt from is none.")
    return _dictionary(side, atoms, data_folder(), cache_folder())


@cache
def _dictionary(side: int, atoms: int, data: Path, kept: Path) -> np.ndarray:
    paths = photographs("train")
    sizes = [(path.name, path.stat().st_size) for path in paths]
    key = json.dumps([RECIPE, side, atoms, PATCHES, SPARSITY, ROUNDS, PRUNED, ALIKE, RARE, sizes])
    path = kept / "dictionaries" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.npy"
    with _turn(path):
        found = _load(path, (atoms, side * side))
        if found is None:
            rng = stream(side, atoms)
            found = ksvd(np.stack([patch(paths, side, rng) for _ in range(PATCHES)]), atoms, min(SPARSITY, atoms), ROUNDS)
            _store(path, found)
    found.setflags(write=False)
    return found.T


def ksvd(signals: np.ndarray, atoms: int, sparsity: int, rounds: int) -> np.ndarray:
    """Atoms of norm 1 [atoms, m] with few of which each of the signals [M, m] is nearly a combination.

    As its authors have it, it starts from signals, and now and then it replaces atoms that resemble others or are hardly used by
    the signals that are coded worst. dictlearn replaces only those not used at all, and so finds less of a planted dictionary.
    """
    try:
        from dictlearn import DictionaryLearning
    except ImportError as error:
        raise InvalidInput(
            "a dictionary for patches is learnt with dictlearn, which is not installed. Install milodo[data]."
        ) from error
    found = _unit(signals[stream(len(signals), atoms).permutation(len(signals))[:atoms]])
    for done in range(0, rounds, PRUNED):
        learner = DictionaryLearning(
            atoms, fit_algorithm="ksvd", n_nonzero_coefs=sparsity, max_iter=min(PRUNED, rounds - done), dict_init=found,
            random_state=0,
        ).fit(signals)  # fmt: skip
        found = learner.components_
        if done + PRUNED < rounds:
            found = _pruned(found, learner.transform(signals), signals)
    return found


def _pruned(found: np.ndarray, codes: np.ndarray, signals: np.ndarray) -> np.ndarray:
    alike = np.triu(np.abs(found @ found.T), 1).max(0) > ALIKE  # to an earlier atom, which stays
    used = (codes != 0).sum(0)
    bad = np.flatnonzero(alike | (used < RARE * used.mean()))
    worst = np.argsort(-np.linalg.norm(signals - codes @ found, axis=1), kind="stable")[: len(bad)]
    replaced = found.copy()
    replaced[bad[: len(worst)]] = _unit(signals[worst])
    return replaced


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """One process learns while others that want the same wait for it. Where nothing can be locked, each learns for itself."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.with_suffix(".lock").open("w", encoding="utf-8"))
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _load(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """What was stored; None if nothing, or something that cannot be it."""
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    fits = isinstance(found, np.ndarray) and found.shape == shape and found.dtype == np.float64
    return found if fits and bool(np.isfinite(found).all()) else None


def _store(path: Path, found: np.ndarray) -> None:
    """A cache that cannot be written costs time later, not the result now."""
    with contextlib.suppress(OSError), atomic(path) as part, part.open("wb") as file:
        np.save(file, found, allow_pickle=False)
