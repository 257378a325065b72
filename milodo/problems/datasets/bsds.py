"""BSDS500 (Martin et al. 2001, Arbeláez et al. 2011): 200 photographs for training, 200 for tests, read as grey images."""

from __future__ import annotations

import http.client
import tarfile
from functools import cache
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from milodo.errors import InvalidInput
from milodo.files import is_folder
from milodo.problems.datasets.store import HOMES, PARTS, File, absent, checked_part, data_folder, shown, unpack

FOLDER = "images"
SUFFIX = ".jpg"
WHITE = 255.0
FLAT = 1.0
"""Standard deviation, in the 256 steps of grey, below which a patch shows the rounding of its pixels and no picture."""
DRAWS = 1000
"""At most, to find a patch that shows something."""


def bsds500(part: str) -> list[np.ndarray]:
    """Grey images float64 [height, width] in [0, 1] of 'train' or 'test', in the order of their file names."""
    return [grey(path) / WHITE for path in photographs(part)]


def photographs(part: str) -> list[Path]:
    """The files of a part, in the order of their names; fetched if there are none."""
    checked_part("BSDS500", part)
    data = data_folder()
    folder = data / "bsds500"
    if found := _listed(folder, part):
        return found
    try:
        unpack(HOMES["bsds500"], folder, _place)
    except (OSError, http.client.HTTPException, tarfile.TarError) as error:
        raise absent(data, "bsds500", f"{FOLDER}/{part}/*{SUFFIX}", error) from error
    if found := _listed(folder, part):
        return found
    raise absent(data, "bsds500", f"{FOLDER}/{part}/*{SUFFIX}", OSError("the archive holds no such images"))


def patch(paths: list[Path], side: int, rng: np.random.Generator) -> np.ndarray:
    """A square [side · side] out of one of these photographs, in steps of grey from 0 to 255, minus its mean.

    Flat ones, some 4 % of all, are drawn again: of nothing but rounding the best sparse code is no code.
    """
    for _ in range(DRAWS):
        path = paths[rng.integers(len(paths))]
        pixels = grey(path)
        if min(pixels.shape) < side:
            height, width = pixels.shape
            raise InvalidInput(
                f"{shown(path)} has {width} x {height} pixels, too few for a patch of {side} x {side}. Put the original there, "
                "or choose a smaller n or N."
            )
        top, left = (int(rng.integers(size - side + 1)) for size in pixels.shape)
        cut = pixels[top : top + side, left : left + side].astype(float).ravel()
        if cut.std() >= FLAT:
            return cut - cut.mean()
    raise InvalidInput(
        f"{shown(paths[0].parent)}: {DRAWS} patches of {side} x {side} pixels were all flat. Put the originals there."
    )


@cache
def grey(path: Path) -> np.ndarray:
    """A photograph as uint8 [height, width]: luma after ITU-R 601, 0.299 R + 0.587 G + 0.114 B, rounded."""
    try:
        with Image.open(path) as image:
            pixels = np.array(image.convert("L"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidInput(f"{shown(path)} is no readable image: it was cut short or changed. Put the original there.") from error
    pixels.setflags(write=False)
    return pixels


def _listed(folder: Path, part: str) -> list[Path]:
    for place in (folder / FOLDER / part, folder / part):
        found = sorted(place.glob(f"*{SUFFIX}"), key=lambda path: path.name) if is_folder(place) else []
        if found:
            return found
    return []


def _place(member: str) -> File | None:
    """BSR/BSDS500/data/images/train/100075.jpg -> images/train/100075.jpg."""
    path = PurePosixPath(member)
    if path.suffix == SUFFIX and path.parent.name in PARTS and path.parent.parent.name == FOLDER:
        return File(f"{FOLDER}/{path.parent.name}/{path.name}")
    return None
