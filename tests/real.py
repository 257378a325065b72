"""Real processes for tests: start one a rank, wait for all, leave none behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

LIMIT = 240.0
"""Seconds after which a test's processes are ended: a deadlock must fail, not hang."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more: str) -> dict[str, str]:
    """Without what another launcher may have left."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR")}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **more}


def begin(arguments: Sequence[str], rank: int, world: int, port: int, **more: str) -> subprocess.Popen[str]:
    """`python ARGUMENTS` as one rank; {rank} in an argument stands for it."""
    return subprocess.Popen(
        [sys.executable, *(word.replace("{rank}", str(rank)) for word in arguments)],
        env=environment(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start(arguments: Sequence[str], world: int, port: int | None = None, **more: str) -> list[subprocess.Popen[str]]:
    """`python ARGUMENTS` once a rank."""
    port = port or free_port()
    return [begin(arguments, rank, world, port, **more) for rank in range(world)]


def finish(processes: Sequence[subprocess.Popen[str]], limit: float = LIMIT) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each; none is left running."""
    try:
        ends = []
        for process in processes:
            out, err = process.communicate(timeout=limit)
            ends.append((process.returncode, out, err))
        return ends
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def together(arguments: Sequence[str], world: int, **more: str) -> list[tuple[int, str, str]]:
    ends = finish(start(arguments, world, **more))
    assert all(code == 0 for code, _, _ in ends), "\n".join(err for _, _, err in ends)
    return ends
