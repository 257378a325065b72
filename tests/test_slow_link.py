"""The slow link of benchmarks/slow_network.py between two namespaces: no message is faster, and no byte cheaper, than it claims.

Only lower bounds: how much slower a busy machine makes it is not the link's affair.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parent.parent / "benchmarks")
sys.path.insert(0, BENCHMARKS)
from _slow_link import Slow, SlowNetwork, enter, ip, lacking  # noqa: E402

SLOW, SIZE, TIMES = Slow(delay=0.03, bandwidth=4e5), 60_000, 3
HEADERS = 40
"""Bytes of IP and TCP in every packet, at least; they too take their time."""


@pytest.fixture(scope="module")
def network():
    if why := lacking():
        pytest.skip(why)
    try:
        with SlowNetwork(2, [(0, 1)], SLOW) as built:
            yield built
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine does not allow such networks: {' '.join(error.cmd)}: {error.stderr.strip()}")


def inside(namespace, task):
    """What a task finds in a namespace: a thread is in one, its process need not be."""
    found = []

    def run():
        enter(namespace)
        found.append(task())

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@pytest.fixture(scope="module")
def line(network):
    """Two ends of a TCP connection over the link."""
    ready = threading.Event()

    def serve():
        with socket.create_server(("10.77.0.1", 5000)) as door:
            ready.set()
            return door.accept()[0]

    server, one = inside(network.names[0], serve)
    assert ready.wait(60)
    caller, other = inside(network.names[1], lambda: socket.create_connection(("10.77.0.1", 5000)))
    server.join()
    caller.join()
    ends = (one[0], other[0])
    for end in ends:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    yield ends
    for end in ends:
        end.close()


def receive(end, size):
    got = bytearray()
    while len(got) < size:
        got += end.recv(1 << 16)
    return bytes(got)


def test_there_and_back_takes_twice_the_delay(line):
    one, other = line
    for number in range(TIMES):
        start = time.monotonic()
        one.sendall(bytes([number]))
        assert receive(other, 1) == bytes([number])
        there = time.monotonic() - start
        other.sendall(b"!")
        assert receive(one, 1) == b"!"
        assert there >= SLOW.delay and time.monotonic() - start >= 2 * SLOW.delay


@pytest.mark.parametrize("way", [0, 1])
def test_bytes_arrive_whole_and_no_faster_than_the_bandwidth(line, way):
    one, other = line if way == 0 else line[::-1]
    content = bytes(k * k % 251 for k in range(SIZE))
    start = time.monotonic()
    sender = threading.Thread(target=one.sendall, args=(content,))
    sender.start()
    assert receive(other, SIZE) == content
    took = time.monotonic() - start
    sender.join()
    assert took >= SLOW.delay + (SIZE + HEADERS * (SIZE // 1500)) / SLOW.bandwidth


def test_both_directions_have_the_bandwidth_for_themselves_and_neither_more(line):
    one, other = line
    start = time.monotonic()
    senders = [threading.Thread(target=end.sendall, args=(bytes(SIZE),)) for end in line]
    for sender in senders:
        sender.start()
    for end in (other, one):
        receive(end, SIZE)
        assert time.monotonic() - start >= SLOW.delay + SIZE / SLOW.bandwidth
    for sender in senders:
        sender.join()


def test_nothing_is_left_behind():
    if why := lacking():
        pytest.skip(why)
    with SlowNetwork(3, [(0, 1), (1, 2)], SLOW) as network:
        names, relay = [*network.names, network.hub], network.relay
        routes = [ip("-n", network.names[0], "route", "get", f"10.77.0.{i}", check=False).returncode == 0 for i in (2, 3)]
        assert routes == [True, False], "neighbours have a route, and nobody else"
    listed = ip("netns", "list").stdout
    assert not any(name in listed for name in names)
    assert relay is None or relay.returncode is not None
