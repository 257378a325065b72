"""CIFAR-10 (Krizhevsky 2009), the binary version: 50,000 + 10,000 colour images of ten classes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from milodo.errors import InvalidInput
from milodo.files import is_file, is_folder
from milodo.problems.datasets.store import HOMES, File, checked_part, data_folder, located, obtained, shown

FOLDER = "cifar-10-batches-bin"
SIZE = 30_730_000
"""Bytes of a batch: 10,000 records."""
FILES = {
    "train": [
        File(f"{FOLDER}/data_batch_1.bin", SIZE, sha1="aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
        File(f"{FOLDER}/data_batch_2.bin", SIZE, sha1="c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
        File(f"{FOLDER}/data_batch_3.bin", SIZE, sha1="1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
        File(f"{FOLDER}/data_batch_4.bin", SIZE),
        File(f"{FOLDER}/data_batch_5.bin", SIZE),
    ],
    "test": [File(f"{FOLDER}/test_batch.bin", SIZE, sha1="67eb016db431130d61cd03c7ad570b013799c88c")],
}
"""Batches 4 and 5 are taken by their size and their format: no checksum of them was at hand when this was written."""
IMAGE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32
"""Bytes: the label, then the red, green and blue planes."""
CLASSES = 10
PICKLES = ("cifar-10-batches-py", "cifar-10-python.tar.gz", "data_batch_1", "test_batch")
"""What the python version is called."""


def cifar10(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [M, 3, 32, 32] and labels int64 [M] of 'train' or 'test'; read-only, because all callers share them.

    Of the five batches of the training part as many are taken as are there.
    """
    return _cifar10(checked_part("CIFAR-10", part), data_folder())


@cache
def _cifar10(part: str, data: Path) -> tuple[np.ndarray, np.ndarray]:
    here = [file for file in FILES[part] if located(data / "cifar10", file.name)]
    if not here:
        _refuse_pickles(data / "cifar10")
    everything = [*FILES["train"], *FILES["test"]]
    paths = [obtained(data, "cifar10", file, everything) for file in here or FILES[part]]
    records = np.concatenate([_read(path) for path in paths])
    images = np.ascontiguousarray(records[:, 1:]).reshape(-1, *IMAGE)
    labels = records[:, 0].astype(np.int64)
    for array in (images, labels):
        array.setflags(write=False)
    return images, labels


def _read(path: Path) -> np.ndarray:
    content = np.fromfile(path, np.uint8)
    if not len(content) or len(content) % RECORD:
        raise InvalidInput(
            f"{shown(path)} has {len(content):,} bytes, but a batch is made of records of {RECORD:,}: it was cut short or "
            "changed. Put the original there."
        )
    records = content.reshape(-1, RECORD)
    if records[:, 0].max() >= CLASSES:
        raise InvalidInput(f"{shown(path)}: a label is {records[:, 0].max()}, but classes are 0 to 9. Put the original there.")
    return records


def _refuse_pickles(folder: Path) -> None:
    """The python version is told by its names."""
    for path in (
        folder / "cifar-10-batches-py",
        folder / "cifar-10-python.tar.gz",
        folder / "data_batch_1",
        folder / "test_batch",
    ):
        if is_folder(path) or is_file(path):
            raise InvalidInput(
                f"{shown(path)} is the python version of CIFAR-10: pickles, which may run code when they are "
                f"read, so they are not. Put the binary version there: {HOMES['cifar10']}, unpacked to {FOLDER}/."
            )
