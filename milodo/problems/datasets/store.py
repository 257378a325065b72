"""Where data sets lie, how they are told from others, and how they are fetched from their homes."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.error import URLError

from milodo.errors import InvalidInput, quoted, shortened, unknown
from milodo.files import atomic, cache_folder, is_file

PATIENCE = 10.0
"""Seconds of silence after which a home counts as out of reach."""
BLOCK = 1 << 20
"""Bytes read at a time."""
PARTS = ("train", "test")

HOMES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "bsds500": "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/BSR/BSR_bsds500.tgz",
    "adult": "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",
}
"""Data set -> the address its files are given out at: a folder, if it ends with a slash, else an archive."""

Progress = Callable[[str, float], None]
"""Called with the address that is being read, and how much of it has arrived, from 0 to 1."""
_watch: ContextVar[Progress | None] = ContextVar("watch", default=None)


@contextlib.contextmanager
def watching(progress: Progress) -> Iterator[None]:
    """While this lasts, downloads tell `progress` how far they are."""
    token = _watch.set(progress)
    try:
        yield
    finally:
        _watch.reset(token)


@dataclass(frozen=True)
class File:
    """A file as its publisher gives it out; what is not known of it is not checked."""

    name: str
    """Below the data set's folder."""
    size: int | None = None
    md5: str | None = None
    sha1: str | None = None

    def check(self, path: Path) -> None:
        """Fails in one sentence unless the file at this path is this one."""
        if self.size is not None and path.stat().st_size != self.size:
            raise self._other(path, f"{path.stat().st_size:,} bytes, expected {self.size:,}")
        for kind, expected in (("md5", self.md5), ("sha1", self.sha1)):
            if expected is not None and (found := checksum(path, kind)) != expected:
                raise self._other(path, f"{kind} {found}, expected {expected}")

    def _other(self, path: Path, why: str) -> InvalidInput:
        return InvalidInput(
            f"{shown(path)} is not the file its publisher gives out ({why}): it was cut short or changed. Delete it, "
            "and put the original there."
        )


def checksum(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def data_folder() -> Path:
    """$MILODO_DATA, else `data` in the user's cache folder."""
    if own := os.environ.get("MILODO_DATA"):
        return Path(own).expanduser()
    return cache_folder() / "data"


def shown(path: Path) -> str:
    """A path in a sentence."""
    return quoted(str(path), 200)


def checked_part(name: str, part: str) -> str:
    if part not in PARTS:
        raise unknown(f"part of {name}", part, PARTS)
    return part


def located(folder: Path, name: str) -> Path | None:
    """A file of a data set: where its publisher puts it, or directly in the data set's folder."""
    for path in (folder / name, folder / PurePosixPath(name).name):
        if is_file(path):
            return path
    return None


def obtained(data: Path, dataset: str, file: File, others: Sequence[File] = ()) -> Path:
    """A file of a data set, checked; fetched if it is not there, with those others that come in the same archive."""
    folder, home = data / dataset, HOMES[dataset]
    if path := located(folder, file.name):
        file.check(path)
        return path
    try:
        if home.endswith("/"):
            fetch(home + PurePosixPath(file.name).name, folder / file.name, file)
        else:
            missing = {PurePosixPath(each.name).name: each for each in (file, *others) if not located(folder, each.name)}
            unpack(home, folder, lambda name: missing.get(PurePosixPath(name).name))
            file.check(folder / file.name)
    except (OSError, http.client.HTTPException, tarfile.TarError) as error:
        raise absent(data, dataset, file.name, error) from error
    return folder / file.name


def absent(data: Path, dataset: str, name: str, error: Exception) -> InvalidInput:
    """Which file is wanted, where it belongs, where it is given out."""
    home = HOMES[dataset] + (PurePosixPath(name).name if HOMES[dataset].endswith("/") else "")
    why = shortened(error.reason if isinstance(error, URLError) else error) or type(error).__name__
    return InvalidInput(
        f"there is no {quoted(name)} in {shown(data / dataset)}, and it could not be downloaded ({why}). "
        f"Get it from {home} and put it there, or name another data folder (MILODO_DATA) that has {dataset}/{name}."
    )


def fetch(address: str, path: Path, file: File) -> None:
    """Downloads one file; nothing carries its name before it is whole and checked."""
    with _opened(address) as answer:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as part:
            with part.open("wb") as out:
                _copy(address, answer, out)
            _check_arrived(address, file, part)


def unpack(address: str, folder: Path, place: Callable[[str], File | None]) -> None:
    """Downloads an archive and takes out of it the members that `place` knows as a file, each to the place of that file.

    Nothing is written where the archive would have it.
    """
    with _opened(address) as answer:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as archive:
            _copy(address, answer, archive)
            archive.seek(0)
            with tarfile.open(fileobj=archive) as members:
                for member in members:
                    file = place(member.name) if member.isreg() else None
                    source = members.extractfile(member) if file else None
                    if file and source:
                        _put(address, source, folder / file.name, file)


def _put(address: str, source: IO[bytes], path: Path, file: File) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as part:
        with part.open("wb") as out:
            shutil.copyfileobj(source, out, BLOCK)
        _check_arrived(address, file, part)


def _check_arrived(address: str, file: File, part: Path) -> None:
    try:
        file.check(part)
    except InvalidInput as error:
        raise OSError(f"what {address} gives out as {file.name} is not that file") from error


def _opened(address: str) -> http.client.HTTPResponse:
    return urllib.request.urlopen(address, timeout=PATIENCE)


def _copy(address: str, answer: http.client.HTTPResponse, out: IO[bytes]) -> None:
    """All of an answer, while whoever watches is told how much has come."""
    progress, arrived = _watch.get(), 0
    promised = answer.headers.get("Content-Length", "")
    length = int(promised) if promised.isdecimal() else 0
    while block := answer.read(BLOCK):
        out.write(block)
        arrived += len(block)
        if progress is not None and length:
            progress(address, min(1.0, arrived / length))
    if arrived < length:
        raise OSError(f"{address} broke off after {arrived:,} of {length:,} bytes")
