"""A message that is not the expected one is told in a sentence that names both sides, and never aborts a process."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from real import begin, finish, free_port, start
from sklearn.datasets import load_breast_cancer
from test_sites import write_csv

from milodo.network.frames import DOWN, HEADER, KINDS, NODES, Frame, OutOfStep, framed, untrimmed

sys.path.insert(0, str(Path(__file__).parent / "laws"))
from rounding import ranks

EXPECTED = Frame(NODES, 7, 70_000, 24)
"""The number of an exchange is more than its place in a header holds."""


def told(sent, expected=EXPECTED, varies=False):
    return expected.read(sent.header, lambda: ("node 1 (rank 1)", "node 0 (rank 0)"), varies=varies)


def test_the_expected_message_is_read():
    assert told(EXPECTED) == 24
    assert told(Frame(NODES, 7, 70_000, 9), varies=True) == 9
    assert HEADER.size == 12


@pytest.mark.parametrize("sent", [
    Frame(DOWN, 7, 70_000, 24), Frame(NODES, 8, 70_000, 24), Frame(NODES, 7, 70_001, 24), Frame(NODES, 7, 69_999, 24),
    Frame(NODES, 7, 70_000, 248), Frame(NODES, 7, 70_000, 8),
], ids=str)  # fmt: skip
def test_another_one_is_refused_and_both_are_named(sent):
    with pytest.raises(OutOfStep) as refused:
        told(sent)
    assert str(refused.value).startswith(f"node 1 (rank 1) sent {sent}, but node 0 (rank 0) expected {EXPECTED}: ")


def test_where_messages_vary_in_length_only_longer_ones_are_refused():
    with pytest.raises(OutOfStep, match=r"sent values of nodes \(25 bytes.*expected values of nodes \(at most 24 bytes"):
        told(Frame(NODES, 7, 70_000, 25), varies=True)


def test_a_kind_that_nobody_knows_is_refused():
    bad = HEADER.pack(24, 7, 70_000 & 0xFFFF, len(KINDS))
    with pytest.raises(OutOfStep, match=f"a message of the unknown kind {len(KINDS)}"):
        EXPECTED.read(bad, lambda: ("node 1 (rank 1)", "node 0 (rank 0)"), varies=False)


def test_a_frame_is_its_header_and_its_payload():
    x = torch.arange(3, dtype=torch.float64)
    frame = framed(EXPECTED, x)
    assert bytes(frame[: HEADER.size].tolist()) == EXPECTED.header
    assert torch.equal(frame[HEADER.size :].clone().view(torch.float64), x)


@pytest.mark.parametrize("payload", [[5, 0, 0, 0, 1, 0, 0, 0, 1], [1, 0, 0, 0, 1, 0, 0, 0, 9, 9, 9], [1, 0, 0]])
def test_lengths_of_rows_that_cannot_be_are_refused(payload):
    with pytest.raises(ValueError, match="Do both ends run one experiment"):
        untrimmed(np.array(payload, dtype=np.uint8), torch.zeros(2, 4, dtype=torch.uint8))


@pytest.mark.parametrize("numbers", [1, 200_000], ids=["a short one", "one that follows its header"])
def test_ranks_that_do_not_do_the_same_hear_of_it_at_once(numbers):
    """One of them sends something else; with room for anything there is nothing to abort."""

    def work(net, observer):
        x = torch.ones(1, 3, dtype=torch.float64)
        net.pull(x)
        if net.peers.rank == 1:
            net.pull(x.expand(1, 3).repeat(1, numbers))
        observer.mean(x, dim=-2)

    with pytest.raises(OutOfStep, match=r"the two no longer do the same"):
        ranks(work, "path(3)")


OUT_OF_STEP = """
import torch
from milodo.network import DistributedNetwork, TreeObserver
from milodo.runtime.group import joined

with joined(30) as group:
    net = DistributedNetwork("path(2)", timeout=30)
    observer = TreeObserver(net.peers, 2)
    x = torch.ones(1, 31, dtype=torch.float64)
    net.at_step(1).pull(x)
    if group.rank == 1:  # as processes did of which some averaged once more (8 bytes expected, 248 sent: gloo aborted)
        observer.total(x)
    observer.total(x[:, 0])
"""


def test_real_processes_say_so_too():
    ends = finish(start(["-c", OUT_OF_STEP], 2))
    assert all(end.code > 0 for end in ends), "a process was aborted"
    assert any("OutOfStep: node" in end.err and "248 bytes, iteration 1, exchange 2" in end.err for end in ends), ends


def test_sites_with_other_numbers_of_threads_gossip_to_one_model(tmp_path):
    """Raw columns, the logistic loss and gossip: what aborted when processes rounded differently."""
    data, port = load_breast_cancer(), free_port()
    for rank, rows in enumerate((slice(0, 200), slice(200, 260), slice(260, 275))):
        write_csv(tmp_path / f"{rank}.csv", map(str, data.feature_names[:5]), data.data[rows, :5], "y", data.target[rows])
    command = [
        "-m",
        "milodo",
        "node",
        "--data",
        str(tmp_path / "{rank}.csv"),
        "--target",
        "y",
        "--loss",
        "logistic",
        "--l1",
        "0.01",
    ]
    command += ["--links", "lossy", "--graph", "ring(3)", "--tolerance", "1e-2", "--out", str(tmp_path / "out")]
    ends = finish([begin(command, rank, 3, port, OMP_NUM_THREADS=str(1 + rank)) for rank in range(3)])
    assert [end.code for end in ends] == [0, 0, 0], [end.err for end in ends]
    models = [tmp_path / "out" / "coefficients.csv", *(tmp_path / "out" / f"node-{rank}" / "coefficients.csv" for rank in (1, 2))]
    assert len({model.read_bytes() for model in models}) == 1
