"""Fits in three real processes, and what the kernel carried for each: `python ledgers.py FILE PORT`.

FILE gets for every fit the ledger that it reports, how many messages all processes sent, how many receives they posted ahead, and
the payload that the kernel counted on the connections between them."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from milodo.fit import Fit, Request, Site, Task, fit_model, samples_of
from milodo.network import DistributedNetwork, TreeObserver
from milodo.network.distributed import WIRES
from milodo.runtime.group import joined

WORLD, ROWS, COLUMNS = 3, (70, 40, 10), 24
CASES = {
    "Moments": Task(target="y", l1=0.05),
    "Newton": Task(target="y", loss="logistic", l1=0.02),
    "Tree-APG": Task(target="y", loss="logistic", l1=0.02, method="tree-apg"),
    "Tree-APG in bits, coded": Task(target="y", l1=0.05, method="tree-apg", messages="4-bit-coded"),
    "Tree-Newton": Task(target="y", loss="logistic", l1=0.02, method="tree-newton"),
    "Flood-APG": Task(target="y", l1=0.05, method="flood-apg"),
    "gossip": Task(target="y", loss="logistic", l1=0.02, links="lossy", standardise=True, tolerance=1e-6),
    "no penalty": Task(target="y", intercept=False),
}
RECEIVED = 128
"""Where tcpi_bytes_received stands in tcp_info (linux/tcp.h)."""


def sites(task: Task) -> list[Site]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((sum(ROWS), COLUMNS)) @ (np.eye(COLUMNS) + 0.3 * rng.standard_normal((COLUMNS, COLUMNS)))
    y = X[:, :5].sum(1) + rng.standard_normal(len(X))
    y = y if task.loss == "squared" else (y > 0).astype(float)
    names = tuple(f"x{k}" for k in range(COLUMNS))
    cuts = np.split(np.arange(len(X)), np.cumsum(ROWS)[:-1])
    return [Site(f"{k}.csv", names, X[rows], y[rows]) for k, rows in enumerate(cuts)]


def classes(task: Task) -> tuple[str, str] | None:
    return ("0", "1") if task.loss == "logistic" else None


def reported(fit: Fit) -> dict:
    return {
        **asdict(fit.traffic),
        "iterations": fit.iterations,
        "status": fit.status.name,
        "bytes": fit.bytes,
        "rounds": fit.rounds,
    }


def payload(store: int) -> int:
    """Bytes that this process's TCP connections have received so far, as the kernel counts them (payload alone, what was sent
    twice once), but for those of the meeting point."""
    total = 0
    for file in Path("/proc/self/fd").iterdir():
        try:
            if not file.readlink().name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(file.name))) as line:
                if line.family in (socket.AF_INET, socket.AF_INET6) and store not in (
                    line.getsockname()[1],
                    line.getpeername()[1],
                ):
                    info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED + 8)
                    total += struct.unpack_from("Q", info, RECEIVED)[0]
        except OSError:  # gone, or not connected
            continue
    return total


def one(rank: int, port: int, out: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    found = {}
    with joined(60):
        for name, task in CASES.items():
            net = DistributedNetwork(task.topology(WORLD), task.weights, timeout=60)
            observer, outside = TreeObserver(net.peers, WORLD, checks=net.checks), TreeObserver(net.peers, WORLD)
            outside.barrier()
            before, ready = payload(port), len(WIRES[dist.group.WORLD].inboxes)
            outside.barrier()
            fit = fit_model(Request(samples_of([sites(task)[rank]], task, classes(task)), task, net, observer))
            outside.barrier()
            kernel = payload(port) - before
            ready = len(WIRES[dist.group.WORLD].inboxes) - ready
            sent = [net.traffic.messages + net.checks.messages, outside.traffic.messages, outside.traffic.bytes, kernel, ready]
            messages, *barriers, kernel, ready = outside.total(torch.tensor(sent, dtype=torch.float64)).tolist()
            # Two of the three barriers lie between the two readings.
            barrier = {"messages": barriers[0] * 2 / 3, "bytes": barriers[1] * 2 / 3}
            found[name] = {**reported(fit), "messages": messages, "kernel": kernel, "ready": ready, "barriers": barrier}
        outside.barrier()
    if rank == 0:
        out.write_text(json.dumps(found))


def main() -> None:
    out, port = Path(sys.argv[1]), int(sys.argv[2])
    children = []
    for rank in range(WORLD):
        child = os.fork()
        if not child:
            code = 1
            try:
                one(rank, port, out)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))


if __name__ == "__main__":
    main()
