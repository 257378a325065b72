"""swap and its calculus, on every registered graph and on a single node."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from milodo.errors import InvalidInput
from milodo.network import Network, StackedNetwork
from milodo.network.stacked import CommonMixingNetwork
from milodo.topology import EXAMPLES, dense, weights

ROUNDING = 1e-14
"""A few operations on numbers of size one in fp64."""


@pytest.fixture(scope="module", params=[*EXAMPLES, "ring(1)", "ring(2)"])
def net(request: pytest.FixtureRequest) -> StackedNetwork:
    return StackedNetwork(request.param)


def node_tensor(net: Network, *batch: int, d: int = 3) -> torch.Tensor:
    return torch.randn(*batch, net.n, d, dtype=net.dtype, generator=torch.Generator().manual_seed(0))


def edge_tensor(net: Network, *batch: int, d: int = 3) -> torch.Tensor:
    return torch.randn(*batch, len(net.arcs), d, dtype=net.dtype, generator=torch.Generator().manual_seed(0))


def test_swapping_twice_changes_nothing(net):
    e = edge_tensor(net, 2)
    assert torch.equal(net.swap(net.swap(e)), e)


def test_swap_delivers_what_the_other_end_sent(net):
    e = edge_tensor(net)
    row = {arc: k for k, arc in enumerate(net.arcs)}
    assert all(torch.equal(net.swap(e)[row[i, j]], e[row[j, i]]) for i, j in net.arcs)


def test_swapped_differences_change_sign(net):
    diff = net.diff(node_tensor(net, 2))
    assert torch.equal(net.swap(diff), -diff)


def test_pull_is_what_the_neighbours_spread(net):
    x = node_tensor(net, 2)
    assert torch.equal(net.pull(x), net.swap(net.spread(x)))
    assert torch.equal(net.pull(x), x[:, [j for _, j in net.arcs]])


def test_sum_adds_the_edges_that_leave_a_node(net):
    e = edge_tensor(net, 2)
    expected = torch.zeros_like(node_tensor(net, 2))
    for k, (i, _) in enumerate(net.arcs):
        expected[:, i] += e[:, k]
    torch.testing.assert_close(net.sum(e), expected, rtol=0, atol=ROUNDING)


def test_lap_is_identity_minus_the_dense_mixing_matrix(net):
    W = dense(net.topology, weights(net.topology, "metropolis"))
    matrix = net.lap(torch.eye(net.n, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(matrix, np.eye(net.n) - W, rtol=0, atol=ROUNDING)


def test_mix_is_the_dense_mixing_matrix(net):
    x = node_tensor(net, 2)
    W = torch.from_numpy(dense(net.topology, weights(net.topology)))
    torch.testing.assert_close(net.mix(x), W @ x, rtol=0, atol=ROUNDING)


def test_both_is_the_mean_of_what_the_two_ends_said(net):
    e = edge_tensor(net, 2)
    row = {arc: k for k, arc in enumerate(net.arcs)}
    for i, j in net.arcs:
        expected = (e[:, row[i, j]] + e[:, row[j, i]]) / 2
        torch.testing.assert_close(net.both(e)[:, row[i, j]], expected, rtol=0, atol=ROUNDING)


def test_lap_is_symmetric_and_positive_semidefinite(net):
    matrix = net.lap(torch.eye(net.n, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=ROUNDING)
    assert np.linalg.eigvalsh(matrix).min() > -ROUNDING


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agreement_is_left_alone_in_every_precision(net, dtype):
    net = StackedNetwork(net.topology, dtype=dtype)
    x = torch.tensor([0.1, -3.7, 1e4], dtype=dtype).expand(net.n, 3)
    assert not net.lap(x).any()
    assert torch.equal(net.mix(x), x)


def test_mixing_keeps_the_mean(net):
    x = node_tensor(net, 2)
    torch.testing.assert_close(net.mix(x).mean(-2), x.mean(-2), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("verb", ["swap", "lap", "mix"])
def test_messages_are_differentiated_twice(net, verb):
    # A cube before the message, because the second derivative of a linear map would be 0 and say nothing.
    x = (edge_tensor(net, d=1) if verb == "swap" else node_tensor(net, d=1)).requires_grad_()
    if x.numel() == 0:
        pytest.skip("a single node has no edges")

    def cubed(x):
        return getattr(net, verb)(x**3)

    # Fast mode compares along random directions: enough, and 20 nodes stay cheap.
    assert gradcheck(cubed, x, fast_mode=True)
    assert gradgradcheck(cubed, x, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("verb", ["swap", "pull", "diff", "lap", "mix"])
def test_a_round_is_counted_as_one_message_a_directed_edge(net, verb, dtype):
    net = StackedNetwork(net.topology, dtype=dtype)
    x = edge_tensor(net, 4, d=7) if verb == "swap" else node_tensor(net, 4, d=7)
    getattr(net, verb)(x)
    getattr(net, verb)(x)
    messages = 2 * 2 * len(net.topology.edges)
    traffic = net.traffic
    assert (traffic.rounds, traffic.messages, traffic.floats) == (2, messages, messages * 7)
    assert traffic.bytes == messages * 7 * {torch.float32: 4, torch.float64: 8}[dtype]


@pytest.mark.parametrize("verb", ["spread", "sum"])
def test_what_stays_at_a_node_costs_nothing(net, verb):
    net = StackedNetwork(net.topology)
    getattr(net, verb)(edge_tensor(net) if verb == "sum" else node_tensor(net))
    assert net.traffic.rounds == net.traffic.bytes == 0


def test_the_backward_pass_is_not_traffic():
    net = StackedNetwork("ring(5)")
    x = node_tensor(net).requires_grad_()
    net.mix(x).sum().backward()
    assert net.traffic.rounds == 1


def test_traffic_between_two_moments_is_their_difference():
    net = StackedNetwork("ring(5)")
    net.mix(node_tensor(net))
    start = net.traffic.snapshot()
    net.mix(node_tensor(net))
    assert (net.traffic - start) == start


class HeldNodes(Network):
    """Some nodes of a network; it can draw numbers but not talk."""

    def _carry(self, message, route, up=None):
        pytest.fail("these nodes have nobody to talk to")


def test_random_numbers_belong_to_a_node_not_to_a_process():
    everyone = StackedNetwork("ring(6)").randn(3, 2, seed=5)
    assert torch.equal(HeldNodes("ring(6)", processes=[[0, 2, 3, 5], [1, 4]], rank=1).randn(3, 2, seed=5), everyone[[1, 4]])


def test_random_numbers_differ_between_nodes_and_seeds():
    net = StackedNetwork("ring(6)")
    rows = torch.cat([net.randn(4, seed=0), net.randn(4, seed=1)])
    assert len({tuple(row.tolist()) for row in rows}) == 12


def test_random_numbers_are_standard_normal():
    x = StackedNetwork("ring(10)").randn(10_000, seed=0)
    # 100,000 numbers: mean and standard deviation are within 5 standard errors, 5/√1e5.
    assert abs(x.mean()) < 0.016 and abs(x.std() - 1) < 0.016


def test_fp32_random_numbers_are_the_rounded_fp64_ones():
    assert torch.equal(
        StackedNetwork("ring(4)", dtype=torch.float32).randn(9, seed=2), StackedNetwork("ring(4)").randn(9, seed=2).float()
    )


def test_a_single_node_talks_to_nobody():
    net = StackedNetwork("ring(1)")
    x = node_tensor(net, 2)
    assert torch.equal(net.mix(x), x) and not net.lap(x).any() and net.diff(x).shape == (2, 0, 3)
    assert net.contraction == 0 and net.traffic.messages == 0


@pytest.mark.parametrize("nodes", [[2, 1], [1, 1], [7], [-1], [1]])
def test_nodes_that_are_not_there_are_refused(nodes):
    with pytest.raises(InvalidInput, match=r"every node of ring\(4\) once"):
        HeldNodes("ring(4)", processes=[nodes, [0, 3]])


def test_common_mixing_is_the_dense_product(net):
    common = CommonMixingNetwork(net.topology)
    x = node_tensor(net, 2)
    W = torch.from_numpy(dense(net.topology, weights(net.topology, "metropolis")))
    torch.testing.assert_close(common.mix(x), W @ x, rtol=0, atol=ROUNDING)
    torch.testing.assert_close(common.lap(x), x - W @ x, rtol=0, atol=ROUNDING)


def test_common_mixing_rounds_every_entry_of_the_mixing_matrix(net):
    # Appendix D: what breaks the row sums in fp32 is that w_ii is rounded on its own, not made to fit the rounded w_ij.
    own = np.diag(dense(net.topology, weights(net.topology, "metropolis")))
    common = CommonMixingNetwork(net.topology, dtype=torch.float32)
    half_a_unit = np.spacing(own.astype(np.float32)).astype(float) / 2
    assert (np.abs(common.w_own.flatten().double().numpy() - own) <= half_a_unit + 1e-15).all()  # 1e-15: `own` is itself rounded
