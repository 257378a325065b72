"""Small data sets in the formats of the real ones, written by the tests themselves."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from milodo.problems import dictionary
from milodo.problems.datasets import adult, cifar, idx
from milodo.problems.datasets.store import File, checksum

REAL = Path(__file__).parents[2] / "shared" / "data"
"""The real ones, where they are at hand."""
ROWS = 90
"""Of each part of the small census."""
WORK, SEX = ("Private", "State-gov", "Never-worked"), ("Male", "Female")


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def cifar_bytes(images: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels.astype(np.uint8)[:, None], images.reshape(len(images), -1)], axis=1).tobytes()


def digits_of(part: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(["train", "test"].index(part))
    return rng.integers(0, 256, (7, 28, 28), np.uint8), rng.integers(0, 10, 7)


def pictures_of(batch: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(list(batch.encode()))
    return rng.integers(0, 256, (4, 3, 32, 32), np.uint8), rng.integers(0, 10, 4)


def people_of(part: str) -> list[list[str]]:
    """Rows as in adult.data, every tenth with a gap."""
    rng = np.random.default_rng(5 + ["train", "test"].index(part))
    rows = []
    for k in range(ROWS):
        numbers = [str(value) for value in rng.integers(1, 80, 6)]
        words = [WORK[k % 3], *("Some" for _ in range(6)), SEX[rng.integers(2)]]
        row = [numbers.pop(0) if column in adult.NUMBERS else words.pop(0) for column in range(14)]
        rows.append([*row, "<=50K" if rng.random() < 0.6 else ">50K"])
    for row in rows[::10]:
        row[1] = "?"
    return rows


def write(data: Path) -> None:
    """All four sets, as their publishers lay them out."""
    for (part, what), file in idx.FILES.items():
        images, labels = digits_of(part)
        put(data / "mnist" / file.name, gzip.compress(idx_bytes(images if what == "images" else labels.astype(np.uint8))))
    for file in (*cifar.FILES["train"][:2], *cifar.FILES["test"]):
        put(data / "cifar10" / file.name, cifar_bytes(*pictures_of(Path(file.name).stem)))
    for part, stop, remark in (("train", "", ""), ("test", ".", "|1x3 Cross validator\n")):
        lines = [", ".join(row) + stop + "\n" for row in people_of(part)]
        put(data / "adult" / adult.FILES[part].name, (remark + "".join(lines) + "\n").encode())
        for k in range(3):
            photograph(data / "bsds500" / "images" / part / f"{k}.jpg", seed=10 * k + len(part))


def photograph(path: Path, seed: int = 0, size: tuple[int, int] = (20, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)).save(path)


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def publish(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These files, and no others, are now what the publishers give out."""

    def as_written(dataset: str, file: File) -> File:
        path = data / dataset / file.name
        return File(file.name, path.stat().st_size, checksum(path, "md5"), checksum(path, "sha1")) if path.exists() else file

    monkeypatch.setattr(idx, "FILES", {key: as_written("mnist", file) for key, file in idx.FILES.items()})
    monkeypatch.setattr(adult, "FILES", {key: as_written("adult", file) for key, file in adult.FILES.items()})
    batches = {part: [as_written("cifar10", file) for file in files] for part, files in cifar.FILES.items()}
    monkeypatch.setattr(cifar, "FILES", batches)


def learn_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dictionary, "PATCHES", 120)
    monkeypatch.setattr(dictionary, "ROUNDS", 2)
