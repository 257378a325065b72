"""Compiles the kernel once, with the system's compiler, into the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

from milodo.files import atomic, cache_folder

SOURCE = Path(__file__).with_name("per_node_lstm.c")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fno-tree-vectorize", "-ffp-contract=fast", "-fno-math-errno")
"""Not -ffast-math: it would take a rounding trick of the kernel apart, and let NaN pass for a number. Vectors are
written out in the source, so looking for more of them would only take longer."""
FOR_THIS_MACHINE = "-march=native"
PATIENCE = 120.0
"""Seconds for the compiler, which needs less than one."""


class CannotBuild(Exception):
    """Why there is no kernel here."""


def compiler() -> str:
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        raise CannotBuild("there is no C compiler (cc, gcc, clang, or the one that CC names)")
    return found


def library() -> ctypes.CDLL:
    """The kernel, compiled now or found compiled."""
    if platform.system() == "Windows":
        raise CannotBuild("the kernel needs POSIX threads")
    cc = compiler()
    path = cache_folder() / "kernels" / f"per-node-lstm-{_fingerprint(cc)}.so"
    try:
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic(path) as unfinished:
                _compile(cc, unfinished)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CannotBuild(f"{path} cannot be written or loaded: {error}") from None


def _compile(cc: str, target: Path) -> None:
    said = ""
    for flags in ((*FLAGS, FOR_THIS_MACHINE), FLAGS):  # not every compiler knows -march=native for every machine
        try:
            command = [cc, *flags, str(SOURCE), "-o", str(target)]
            done = subprocess.run(command, capture_output=True, timeout=PATIENCE, encoding="utf-8", errors="replace")
        except subprocess.TimeoutExpired:
            raise CannotBuild(f"{cc} was not done after {PATIENCE:g} s") from None
        if done.returncode == 0:
            return
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
    raise CannotBuild(f"{cc} cannot compile the kernel: {said}")


def _fingerprint(cc: str) -> str:
    """Of everything the machine code depends on; a home directory may be shared by machines that differ."""
    version = subprocess.run([cc, "-v"], capture_output=True, timeout=PATIENCE, check=False).stderr
    parts = (SOURCE.read_bytes(), cc.encode(), version, repr((FLAGS, FOR_THIS_MACHINE)).encode(), _processor())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


@cache
def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()
    told = {line for line in lines if line.split(b"\t")[0].lower() in (b"flags", b"features", b"model name", b"cpu part")}
    return platform.machine().encode() + b"\n".join(sorted(told))
