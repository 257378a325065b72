"""Slow links between network namespaces of this machine: a delay and a bandwidth on each, in each direction.

Where the kernel has netem, a link is a cable (veth) with netem at both ends. Where it has not, a link is a TUN device at either
end, and one process that reads a packet here, holds it as netem would, and writes it there: TCP cannot tell. A packet of s bytes
that comes at time t leaves when those before it have, s/bandwidth later, and arrives a delay after that; beyond LIMIT packets
the queue is full and the packet is lost, as on a real line.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
"""From linux/sched.h and linux/if_tun.h."""
LIMIT = 1000
"""Packets that wait for a link; netem's default."""
MTU = 1500
IMPATIENT = 2e-4
"""Seconds before a packet is due from when on its link does not sleep: a sleeping process wakes late."""


COUNT = itertools.count()
"""Of the networks of this process."""


class Slow(NamedTuple):
    """A link, in each direction."""

    delay: float
    """Seconds."""
    bandwidth: float
    """Bytes a second."""


def lacking() -> str | None:
    """What this machine lacks for such links, in a sentence."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "network namespaces need Linux and the program `ip`."
    if os.geteuid() != 0:
        return "network namespaces need root."
    if not Path("/dev/net/tun").exists():
        return "slow links need /dev/net/tun."
    return None


def ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check)


def enter(namespace: str) -> None:
    """Puts this thread into a namespace."""
    with Path(f"/run/netns/{namespace}").open() as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


class SlowNetwork:
    """Nodes in namespaces of their own, slow links where there is an edge, and no route between others.

    Node i has the address 10.77.0.(i + 1), on a device called `node`. For the rendezvous, which is no part of what is measured,
    a second network joins all: there it is 10.78.0.(i + 1). Used in a with statement, which leaves nothing behind.
    """

    def __init__(self, n: int, edges: Sequence[tuple[int, int]], slow: Slow) -> None:
        tag = f"sl{os.getpid() % 100000}{next(COUNT)}"
        self.names, self.hub, self.edges, self.slow = [f"{tag}n{i}" for i in range(n)], f"{tag}hub", list(edges), slow
        self.how = "netem"
        self.relay: subprocess.Popen[str] | None = None

    def __enter__(self) -> SlowNetwork:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _build(self) -> None:
        for name in (*self.names, self.hub):
            ip("netns", "add", name)
        ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.hub, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "add", "node", "type", "bridge")  # nothing is plugged into it: it only carries the address
            ip("-n", name, "link", "set", "node", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/32", "dev", "node")
            ip("-n", name, "link", "add", "meet", "type", "veth", "peer", "name", f"to{i}", "netns", self.hub)
            ip("-n", self.hub, "link", "set", f"to{i}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"10.78.0.{i + 1}/24", "dev", "meet")
            ip("-n", name, "link", "set", "meet", "up")
        if not self._cables():
            self.how = "TUN devices and a process that holds packets (no netem in this kernel)"
            self._devices()
        for here, there in (*self.edges, *((j, i) for i, j in self.edges)):
            name, device = self.names[here], f"to{there}"
            ip("-n", name, "link", "set", device, "up", "mtu", str(MTU))
            ip("-n", name, "route", "add", f"10.77.0.{there + 1}/32", "dev", device, "src", f"10.77.0.{here + 1}")

    def _cables(self) -> bool:
        """Cables with netem at both ends; False, and nothing left of them, where there is none."""
        delay, rate = f"{self.slow.delay * 1e3:g}ms", f"{8 * self.slow.bandwidth:.0f}bit"
        for i, j in self.edges:
            here, there = self.names[i], self.names[j]
            ip("-n", here, "link", "add", f"to{j}", "type", "veth", "peer", "name", f"to{i}", "netns", there)
            for name, device in ((here, f"to{j}"), (there, f"to{i}")):
                words = ["tc", "-n", name, "qdisc", "add", "dev", device, "root", "netem", "delay", delay, "rate", rate]
                if shutil.which("tc") is None or subprocess.run([*words, "limit", str(LIMIT)], capture_output=True).returncode:
                    ip("-n", here, "link", "del", f"to{j}")
                    return False
        return True

    def _devices(self) -> None:
        """A TUN device at either end of each link, and the process in between."""
        ends = [[(self.names[i], f"to{j}"), (self.names[j], f"to{i}")] for i, j in self.edges]
        words = [sys.executable, __file__, json.dumps({"ends": ends, **self.slow._asdict()})]
        self.relay = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.relay.stdout is not None
        if self.relay.stdout.readline().strip() != "ready":
            raise OSError("the process between the links did not start")

    def _remove(self) -> None:
        if self.relay is not None:
            assert self.relay.stdin is not None
            self.relay.stdin.close()  # it ends when nobody holds the other end of this any more
            self.relay.wait()
        for name in (*self.names, self.hub):
            ip("netns", "del", name, check=False)


class Direction:
    """One way of a link."""

    def __init__(self, source: int, target: int, slow: Slow) -> None:
        self.source, self.target, self.slow = source, target, slow
        self.free, self.waiting = 0.0, deque[tuple[float, bytes]]()

    def take(self, now: float) -> None:
        """Reads what has come, and says when each packet will arrive."""
        with contextlib.suppress(BlockingIOError):
            while packet := os.read(self.source, 1 << 16):
                if len(self.waiting) < LIMIT:
                    self.free = max(now, self.free) + len(packet) / self.slow.bandwidth
                    self.waiting.append((self.free + self.slow.delay, packet))

    def give(self, now: float) -> None:
        while self.waiting and self.waiting[0][0] <= now:
            with contextlib.suppress(OSError):  # the device is not up yet, or no more
                os.write(self.target, self.waiting.popleft()[1])


def tun(namespace: str, device: str) -> int:
    """A TUN device there: whoever reads the file has the packets that leave by it."""
    enter(namespace)
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
    return file


def relay(asked: dict[str, Any]) -> None:
    """The process between the devices, until its stdin ends."""
    with contextlib.suppress(OSError):  # a line does not wait for a processor
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    slow, ways = Slow(asked["delay"], asked["bandwidth"]), dict[int, Direction]()
    for pair in asked["ends"]:
        one, other = (tun(*end) for end in pair)
        ways |= {one: Direction(one, other, slow), other: Direction(other, one, slow)}
    print("ready", flush=True)
    while True:
        due = min((way.waiting[0][0] for way in ways.values() if way.waiting), default=None)
        left = None if due is None else due - time.monotonic()
        come, _, _ = select.select([0, *ways], [], [], None if left is None else max(0.0, left - IMPATIENT))
        if 0 in come:
            return
        now = time.monotonic()
        for file in come:
            ways[file].take(now)
        for way in ways.values():
            way.give(now)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: who started it ends it
    relay(json.loads(sys.argv[1]))
