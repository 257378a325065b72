"""A Python that has imported torch and milodo, and becomes a process of a test in milliseconds instead of seconds, by forking.

python warm.py FD: requests come through the socket FD, each with the files for its stdout and stderr; answers are the process's
id, and how it ended. What it becomes is `python ARGUMENTS` with an environment and a folder of its own, to the very end: it goes
the interpreter's own way out. Only what is read while modules are imported is not read again: where that is the point of a test
(the locale, OMP_NUM_THREADS, memory), it starts an interpreter of its own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

import milodo

MESSAGE = 1 << 20
"""Bytes, more than any request has."""
FRESH = "milodo.cli"
"""Looks at the terminal and its width when it is imported, so every process imports it itself."""
UNDRAWN = "UNDRAWN"
"""In the environment: figures are empty files. Drawing those of one race takes three seconds."""


def import_everything() -> None:
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    for found in pkgutil.walk_packages(milodo.__path__, "milodo."):
        if found.name != "milodo.__main__":
            importlib.import_module(found.name)
    for name in [name for name in sys.modules if name == FRESH or name.startswith(f"{FRESH}.")]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()  # what is never looked at again is never copied


def serve(line: socket.socket) -> dict | None:
    """Returns in every process that is to become another one, with what it was asked for; here when nobody asks any more."""
    running: dict[int, int] = {}  # a file that is readable when the process has ended: its id
    try:
        while True:
            for ready in select.select([line, *running], [], [])[0]:
                if ready is not line:
                    pid = running.pop(ready)
                    os.close(ready)
                    line.send(json.dumps([pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]).encode())
                    continue
                message, files, _, _ = socket.recv_fds(line, MESSAGE, 2)
                if not message:
                    return None
                pid = os.fork()
                if pid == 0:
                    for number, file in enumerate(files, 1):
                        os.dup2(file, number)
                    running = {}
                    return json.loads(message)
                running[os.pidfd_open(pid)] = pid
                for file in files:
                    os.close(file)
                line.send(json.dumps([pid, None]).encode())
    finally:
        for pid in running.values():
            os.kill(pid, signal.SIGKILL)


def settle(environment: dict[str, str]) -> None:
    """A process of its own: its environment, no files of others, and signals as an interpreter finds them."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 1 << 16 else 1 << 16)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell's background jobs ignore Ctrl-C
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if UNDRAWN in environment:
        Figure.savefig = lambda self, path, **_: Path(path).touch()


def become(arguments: list[str]) -> None:
    """`python ARGUMENTS`."""
    kind, *rest = arguments
    if kind == "-m":
        sys.path[0], sys.argv = str(Path.cwd()), rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path[0], sys.argv = "", ["-c", *rest[1:]]
        exec(rest[0], {"__name__": "__main__"})
    else:
        sys.path[0], sys.argv = str(Path(kind).parent), arguments
        runpy.run_path(kind, run_name="__main__")


class Launched(subprocess.Popen):
    """`milodo run` and torchrun start `python -m milodo` once a rank; from a warm process these fork as well."""

    def __init__(self, args, **options) -> None:
        words = [word for word in args if word != "-u"]
        if words[:3] == [sys.executable, "-m", "milodo"]:
            options["preexec_fn"] = lambda: become_and_end(words[1:], options["env"])
        super().__init__(args, **options)


def become_and_end(arguments: list[str], environment: dict[str, str]) -> None:
    """Without the way back into the launcher, of which this is a copy."""
    code = 1
    try:
        settle(environment)  # closes, with all others, the file by which Popen hears of the exec that never comes
        become(arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    import_everything()
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request:
        settle(request["environment"])
        os.chdir(request["folder"])
        subprocess.Popen = Launched
        become(request["arguments"])
