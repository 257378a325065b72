"""Receives are posted a round ahead, so that over far links no round begins with a question whether the other end is ready."""

from __future__ import annotations

import pytest
from real import together

CODE = """
import sys, torch
import torch.distributed as dist
from milodo.network import DistributedNetwork, TreeObserver
from milodo.network.distributed import FRAMES
from milodo.network.frames import NODES, Frame, framed
from milodo.runtime.group import joined

size = int(sys.argv[1]) if len(sys.argv) > 1 else SIZE
with joined(20) as group:
    net = DistributedNetwork("path(2)", timeout=20)
    other, message = 1 - group.rank, torch.arange(size, dtype=torch.uint8).reshape(1, -1)
    heard = [net._carry(message + k + group.rank, net.routes.of_nodes) for k in range(3)]
    assert all(torch.equal(x, message + k + other) for k, x in enumerate(heard))
    group.meet("three rounds")
    if group.rank == 0:  # a fourth message, which node 1 has not asked for: it leaves nevertheless
        early = dist.isend(framed(Frame(NODES, 0, 1, size), message[0] + 7), other, tag=FRAMES)
        early.wait()
        print("sent")
    group.meet("sent")
    # Another network of the same processes gets what was said first, and what is said next.
    again = DistributedNetwork("path(2)", timeout=20)
    if group.rank == 1:
        (wait,) = again.peers.rounds([], [(other, early := torch.empty(size, dtype=torch.uint8))], NODES)
        again.peers.wait([wait])
        assert torch.equal(early, message[0] + 7)
    else:
        again.peers.rounds([], [], NODES)
    for k in range(3):
        assert torch.equal(again._carry(message + 9 * k + group.rank, again.routes.of_nodes), message + 9 * k + other)
    assert float(TreeObserver(again.peers, 2).total(torch.ones(1))) == 2  # in between, others talk, too
    group.meet("done")
print("fine")
"""


@pytest.mark.parametrize("size", [1, 5000])
def test_a_message_leaves_before_the_other_end_asks_for_it(size):
    """gloo sends nothing before a receive is posted: that of the next round is, while nobody has begun it."""
    first, second = together(["-c", CODE.replace("SIZE", str(size))], 2)
    assert first.out.split() == ["sent", "fine"] and second.out.split() == ["fine"]
