"""Real processes for tests: start one a rank, wait for all, leave none behind."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

LIMIT = 240.0
"""Seconds after which a test's processes are ended: a deadlock must fail, not hang. No test is about how long something takes."""


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more: str) -> dict[str, str]:
    """Without what another launcher may have left."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR")}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **more}


class Warm:
    """The line to one warm Python (warm.py), and what it has said about the processes it became."""

    def __init__(self) -> None:
        self.line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, str(Path(__file__).parent / "warm.py"), str(other.fileno())]
        env = environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))  # the very milodo that is tested here
        self.server = subprocess.Popen(
            words, env=env, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        other.close()
        self.ends: dict[int, int] = {}
        atexit.register(self.close)

    def start(self, arguments: Sequence[str], env: dict[str, str], folder: str, files: Sequence[int]) -> int:
        request = {"arguments": list(arguments), "environment": env, "folder": folder}
        socket.send_fds(self.line, [json.dumps(request).encode()], files)
        while True:
            pid, code = self._hear()
            if code is None:
                self.ends.pop(pid, None)  # of an earlier process with the same number
                return pid

    def end_of(self, pid: int, limit: float) -> int | None:
        """The exit code of a process, if it ends within so many seconds."""
        until = time.monotonic() + limit
        while pid not in self.ends and select.select([self.line], [], [], max(0.0, until - time.monotonic()))[0]:
            self._hear()
        return self.ends.get(pid)

    def close(self) -> None:
        """It ends what is still running, and itself."""
        self.line.close()
        self.server.wait()

    def _hear(self) -> tuple[int, int | None]:
        said = self.line.recv(1 << 12)
        assert said, "the warm Python has ended"
        pid, code = json.loads(said)
        if code is not None:
            self.ends[pid] = code
        return pid, code


warm = functools.cache(Warm)


class Process:
    """`python ARGUMENTS`, forked from a warm one: as much of subprocess.Popen as tests need. What it prints goes to files."""

    def __init__(self, arguments: Sequence[str], env: dict[str, str], folder: str | os.PathLike | None = None) -> None:
        self.returncode: int | None = None
        self.printed = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115  # closed with the process
        self.warm = warm()
        self.pid = self.warm.start(arguments, env, str(folder or Path.cwd()), [file.fileno() for file in self.printed])

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float = LIMIT) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def _ended(self, limit: float) -> int | None:
        if self.returncode is None:
            self.returncode = self.warm.end_of(self.pid, limit)
        return self.returncode

    def communicate(self, timeout: float = LIMIT) -> tuple[str, str]:
        self.wait(timeout)
        out, err = (os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in self.printed)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def milodo(*words: object, folder: str | os.PathLike | None = None, drawn: bool = False, **more: str) -> Ended:
    """`milodo WORDS`, to its end; unless `drawn`, its figures are empty files."""
    env = environment(**more) | ({} if drawn else {"UNDRAWN": "1"})
    return finish([Process(["-m", "milodo", *map(str, words)], env, folder)])[0]


def begin(arguments: Sequence[str], rank: int, world: int, port: int, **more: str) -> Process:
    """`python ARGUMENTS` as one rank; {rank} in an argument stands for it."""
    place = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return Process([word.replace("{rank}", str(rank)) for word in arguments], environment(**place, **more))


def start(arguments: Sequence[str], world: int, port: int | None = None, **more: str) -> list[Process]:
    """`python ARGUMENTS` once a rank."""
    port = port or free_port()
    return [begin(arguments, rank, world, port, **more) for rank in range(world)]


def finish(processes: Sequence[Process | subprocess.Popen[str]], limit: float = LIMIT) -> list[Ended]:
    """How each of them ended; none is left running."""
    end, ends = time.monotonic() + limit, []
    try:
        for process in processes:
            out, err = process.communicate(timeout=max(0.0, end - time.monotonic()))
            assert process.returncode is not None
            ends.append(Ended(process.returncode, out, err))
        return ends
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def together(arguments: Sequence[str], world: int, **more: str) -> list[Ended]:
    ends = finish(start(arguments, world, **more))
    assert all(end.code == 0 for end in ends), "\n".join(end.err for end in ends)
    return ends


def until(fact: Callable[[], object], *processes: Process | subprocess.Popen[str]) -> None:
    """Waits for a fact, as long as the processes that are to bring it about live."""
    end = time.monotonic() + LIMIT
    while not fact():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)
