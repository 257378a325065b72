"""Starting one process a node on this machine, watching them, and leaving none behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import psutil

from milodo.runtime.group import GRACE, LAUNCHED
from milodo.runtime.meeting import loopback_interface, loopback_store
from milodo.secret import VARIABLE, new_secret

PATIENCE = 10.0
"""Seconds the others have to end by themselves after one has failed, beyond the timeout for messages."""


def launch(arguments: Sequence[str], processes: int, *, timeout: float) -> tuple[int, str | None]:
    """Runs `milodo ARGUMENTS` in this many processes, each told its rank; returns the exit code and who was killed, if any.

    The meeting point lives here, so it outlives any of them; nothing listens but at the loopback address. They alone know the
    secret of the run, which stands in their environment and not on their command line, where other users could read it.
    """
    store = loopback_store("127.0.0.1", 0, timedelta(seconds=timeout))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(processes),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        VARIABLE: new_secret(),
        "OMP_NUM_THREADS": str(max(1, cores // processes)),
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "FATAL"),  # what matters is said in our words
        LAUNCHED: str(os.getpid()),
    }
    if interface := loopback_interface():
        environment["GLOO_SOCKET_IFNAME"] = interface
    command = [sys.executable, "-m", "milodo", *arguments]
    children = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(processes)]
    try:
        return _watch(children, timeout)
    except KeyboardInterrupt:
        _end(children, GRACE + 2)
        return 130, None
    finally:
        _end(children, 0)


def _watch(children: list[subprocess.Popen[bytes]], timeout: float) -> tuple[int, str | None]:
    """Waits for all; once one has failed the others have a while to say so themselves, and are then ended."""
    deadline, killed = None, None
    while left := [rank for rank, child in enumerate(children) if child.poll() is None]:
        failed = [rank for rank, child in enumerate(children) if child.poll() not in (None, 0)]
        if failed and deadline is None:
            deadline = time.monotonic() + timeout + PATIENCE
            code = children[failed[0]].returncode
            if code < 0:
                killed = f"rank {failed[0]} was killed ({signal.Signals(-code).name})"
        # Where all but stopped processes have ended, those will never end by themselves.
        only_stopped = len(left) < len(children) and all(_is_stopped(children[rank].pid) for rank in left)
        if deadline and (time.monotonic() > deadline or only_stopped):
            break
        time.sleep(0.02)
    if left and killed is None:
        killed = f"rank {left[0]} did not end by itself and was killed"
    _end(children, 0)
    codes = [child.returncode for child in children]
    failures = [code for code in codes if code > 0]
    return (failures[0] if failures else 1 if any(codes) else 0), killed


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def _end(children: list[subprocess.Popen[bytes]], patience: float) -> None:
    until = time.monotonic() + patience
    while time.monotonic() < until and any(child.poll() is None for child in children):
        time.sleep(0.02)
    for child in children:
        if child.poll() is None:
            child.kill()
    for child in children:
        child.wait()


def die_with_parent() -> None:
    """Ends this process when the one that launched it does, however that ends. Linux only; elsewhere messages time out."""
    parent = os.environ.get(LAUNCHED)
    if parent is None or not sys.platform.startswith("linux"):
        return
    PR_SET_PDEATHSIG = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if str(os.getppid()) != parent:  # it ended before we asked
        sys.exit(1)
