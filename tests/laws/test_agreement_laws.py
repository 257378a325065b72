"""What processes decide upon is the same in all of them, however each of them rounds."""

from __future__ import annotations

import pytest
import torch

from milodo.fit.pooled import scaling, total_of
from milodo.metrics import judged_point
from milodo.network import Outage, StackedNetwork, StackedObserver
from milodo.problems import LeastSquares
from milodo.problems.regularizers import L1, Box, NonNegative, Rescaled, UnpenalizedIntercept, Zero


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("graph", ["ring(5)", "path(4)", "grid(2x3)", "tree(10)"])
@pytest.mark.parametrize("outage", [0.0, 0.3])
def test_sums_by_gossip_are_the_very_same_numbers_at_every_node(graph, outage):
    net = StackedNetwork(graph)
    net = net.through(Outage(outage, 1)) if outage else net
    x = numbers(net.topology.n, 40).exp()
    found = total_of(net, reliable=False)(x)
    assert torch.equal(found, found[:1].expand_as(found))
    if not outage:  # a lost message keeps an average from being exact, and from nothing else
        torch.testing.assert_close(found[0], x.sum(0), rtol=1e-12, atol=0)


def test_sites_that_gossip_scale_by_the_very_same_numbers():
    net = StackedNetwork("ring(5)")
    X = [numbers(20 + 9 * i, 30, seed=i) * 10.0 ** numbers(30, seed=99) + 3 for i in range(5)]
    y = [numbers(len(rows), seed=7) for rows in X]
    scaled = scaling(X, y, total_of(net, reliable=False), centre=True)
    for part in (scaled.mean, scaled.scale, scaled.samples, scaled.weight, scaled.target):
        assert torch.equal(part, part[:1].expand_as(part))


class Counting(StackedObserver):
    """How many numbers are averaged, and how often."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def mean(self, x, dim):
        self.sent.append(tuple(x.shape))
        return super().mean(x, dim)


@pytest.mark.parametrize(
    "reg",
    [
        Zero(), L1(0.1), Box(-1.0, 1.0), NonNegative(0.1), UnpenalizedIntercept(L1(0.1), 1),
        Rescaled(L1(0.1), numbers(6, seed=3).exp(), torch.ones(()).double()),
        Rescaled(Box(-1.0, 1.0), numbers(6, seed=3).exp(), torch.ones(()).double()),
    ],
)  # fmt: skip
def test_what_is_sent_to_judge_a_point_does_not_depend_on_where_it_is(reg):
    problem = LeastSquares(numbers(4, 5, 6), numbers(4, 5), reg)
    sent = []
    for seed in range(20):  # among them points whose way to other units and back changes their last digit
        observer = Counting()
        judged_point(numbers(4, 6, seed=seed).sign() * numbers(4, 6, seed=seed + 50).exp(), problem, observer)
        sent.append(observer.sent)
    assert all(each == sent[0] for each in sent)
