"""MNIST (LeCun, Cortes, Burges 1998): 60,000 + 10,000 grey images of handwritten digits, in idx files."""

from __future__ import annotations

import gzip
import math
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from milodo.errors import InvalidInput
from milodo.problems.datasets.store import File, checked_part, data_folder, located, obtained, shown

FILES = {
    ("train", "images"): File("MNIST/raw/train-images-idx3-ubyte.gz", md5="f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    ("train", "labels"): File("MNIST/raw/train-labels-idx1-ubyte.gz", md5="d53e105ee54ea40749a09fcbcd1e9432"),
    ("test", "images"): File("MNIST/raw/t10k-images-idx3-ubyte.gz", md5="9fb629c4189551a2d022fa330f9573f3"),
    ("test", "labels"): File("MNIST/raw/t10k-labels-idx1-ubyte.gz", md5="ec29112dd5afa0611ce80d1b7f02629c"),
}
"""As torchvision lists them. Unpacked, they have no published checksum and are told by their structure."""
UBYTE = 0x08
"""The third byte of an idx file whose entries are bytes; the fourth is the number of axes."""
SIDE = 28
CLASSES = 10


def mnist(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [M, 28, 28] and labels int64 [M] of 'train' or 'test'; read-only, because all callers share them."""
    return _mnist(checked_part("MNIST", part), data_folder())


@cache
def _mnist(part: str, data: Path) -> tuple[np.ndarray, np.ndarray]:
    images = _read(data, FILES[part, "images"], axes=3)
    labels = _read(data, FILES[part, "labels"], axes=1).astype(np.int64)
    if images.shape[1:] != (SIDE, SIDE) or len(images) != len(labels) or not len(images):
        raise InvalidInput(
            f"{shown(data / 'mnist')}: the {part} part has images {images.shape} and {len(labels)} labels, but MNIST has "
            f"one label for each image of {SIDE} x {SIDE}. Put the original files there."
        )
    if labels.max() >= CLASSES:
        raise InvalidInput(f"{shown(data / 'mnist')}: a label of the {part} part is {labels.max()}, but digits are 0 to 9.")
    labels.setflags(write=False)
    return images, labels


def _read(data: Path, file: File, axes: int) -> np.ndarray:
    """An idx file: packed and as published, or unpacked."""
    unpacked = located(data / "mnist", file.name.removesuffix(".gz"))
    if located(data / "mnist", file.name) is None and unpacked is not None:
        return parse_idx(unpacked, unpacked.read_bytes(), axes)
    path = obtained(data, "mnist", file)
    try:
        return parse_idx(path, gzip.decompress(path.read_bytes()), axes)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{shown(path)} cannot be unpacked: it was cut short or changed. Delete it.") from error


def parse_idx(path: Path, content: bytes, axes: int) -> np.ndarray:
    """Bytes 0, 0, type, axes; the size of each axis as four bytes, the highest first; the entries."""
    head = bytes([0, 0, UBYTE, axes])
    if content[:4] != head:
        raise InvalidInput(
            f"{shown(path)} is no idx file of bytes with {axes} axes: it begins with {content[:4].hex(' ') or 'nothing'}, "
            f"not with {head.hex(' ')}. Put the original there."
        )
    start = 4 + 4 * axes
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise InvalidInput(
            f"{shown(path)} has {len(content):,} bytes where its head promises {start + math.prod(shape):,}: it was cut short or "
            "changed. Put the original there."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
