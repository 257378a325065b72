"""Four nodes in four network namespaces, joined as a ring by cables: non-neighbours have no route, and nobody misses it.

Rendezvous goes over a second network, which carries nothing else: the address a node is reached at by its neighbours exists only
on the cables. Needs root and `ip`; says so where it is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from real import Process, environment, finish

N = 4
CODE = """
import ctypes, os, torch
from milodo.algorithms import ProxED
from milodo.network import DistributedNetwork, StackedNetwork
from milodo.problems import Lasso
from milodo.runtime.group import joined
from milodo.loop import iterate

CLONE_NEWNET = 0x40000000
with open(f"/run/netns/{os.environ['NAMESPACE']}") as there:
    assert ctypes.CDLL(None).setns(there.fileno(), CLONE_NEWNET) == 0
torch.set_num_threads(1)
family = Lasso(4, 9, 8, 0.1)

@torch.no_grad()
def last(problem, net):
    for k, state in enumerate(iterate(ProxED(gamma=0.05), problem, net)):
        if k == 100:
            return state.x

with joined(20) as group:
    net = DistributedNetwork("ring(4)", timeout=20)
    x = last(family.sample([0], nodes=net.nodes), net)
    expected = last(family.sample([0]), StackedNetwork("ring(4)"))[:, list(net.nodes)]
    assert float((x - expected).abs().max()) < 1e-10
    group.meet("done")
print("agrees", net.traffic.rounds)
"""


def ip(*words, check=True):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check)


def everywhere(names, code, port, **more):
    """The code in a process in every namespace."""
    place = {"WORLD_SIZE": str(N), "MASTER_ADDR": "10.78.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "node"}
    place["MILODO_SECRET"] = "of these four, with many characters"
    return [
        Process(["-c", code], environment(RANK=str(rank), NAMESPACE=name, **place, **more)) for rank, name in enumerate(names)
    ]


def build(names, hub):
    for name in (*names, hub):
        ip("netns", "add", name)
    ip("-n", hub, "link", "add", "bridge", "type", "bridge")
    ip("-n", hub, "link", "set", "bridge", "up")
    for i, name in enumerate(names):
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "add", "node", "type", "bridge")  # nothing is plugged into it: it only carries the node's address
        ip("-n", name, "link", "set", "node", "up")
        ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/32", "dev", "node")
        # the network of the rendezvous
        ip("-n", name, "link", "add", "meet", "type", "veth", "peer", "name", f"to{i}", "netns", hub)
        ip("-n", hub, "link", "set", f"to{i}", "master", "bridge", "up")
        ip("-n", name, "addr", "add", f"10.78.0.{i + 1}/24", "dev", "meet")
        ip("-n", name, "link", "set", "meet", "up")
    for i, name in enumerate(names):  # a cable to the next node
        j = (i + 1) % N
        ip("-n", name, "link", "add", "right", "type", "veth", "peer", "name", "left", "netns", names[j])
        for where, device, other in ((name, "right", j), (names[j], "left", i)):
            ip("-n", where, "link", "set", device, "up")
            ip("-n", where, "route", "add", f"10.77.0.{other + 1}/32", "dev", device)


@pytest.fixture(scope="module")
def ring():
    """Names of the namespaces; everything is taken down again."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux and the program `ip`")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    tag = f"mi{os.getpid() % 100000}"
    names = [f"{tag}n{i}" for i in range(N)]
    hub = f"{tag}hub"
    try:
        try:
            build(names, hub)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine does not allow such networks: {' '.join(error.cmd)}: {error.stderr.strip()}")
        yield names
    finally:
        for name in (*names, hub):
            ip("netns", "del", name, check=False)


def test_prox_ed_runs_where_only_neighbours_have_a_route(ring):
    for i, name in enumerate(ring):
        for j in range(N):
            if i == j:
                continue
            reached = ip("-n", name, "route", "get", f"10.77.0.{j + 1}", check=False).returncode == 0
            assert reached == ((i - j) % N in (1, N - 1)), f"node {i} and node {j}"
    ends = finish(everywhere(ring, CODE, port=29500))
    assert all(code == 0 and out.strip() == "agrees 100" for code, out, _ in ends), "\n".join(err for _, _, err in ends)


def test_connecting_all_pairs_would_fail_there(ring):
    """What gloo does unless told otherwise; without this the test above would prove little."""
    ends = finish(everywhere(ring, CODE.replace("joined(20)", "joined(3)"), port=29501, TORCH_GLOO_LAZY_INIT="0"))
    assert all(code != 0 and "agrees" not in out for code, out, _ in ends)
    assert any("connectFullMesh failed" in err for _, _, err in ends)
