"""Moments: one sum, and then the certified optimum without another word."""

from __future__ import annotations

import pytest
import torch
from conftest import REGULARIZER_EXAMPLES

from milodo.algorithms.moments import Moments
from milodo.errors import InvalidInput
from milodo.fit import Task, fit_here
from milodo.fit.sites import Site
from milodo.loop import Stop, iterate, solve
from milodo.network import Bits, StackedNetwork
from milodo.problems import Lasso, LeastSquares, Logistic, Zero, optimum

REGULARIZERS = [reg for examples in REGULARIZER_EXAMPLES.values() for reg in examples]


def least_squares(n, reg, *batch):
    draw = torch.Generator().manual_seed(3)
    A = torch.randn(*batch, n, 9, 5, dtype=torch.float64, generator=draw)
    b, weights = (torch.rand(*batch, n, 9, dtype=torch.float64, generator=draw) for _ in range(2))
    return LeastSquares(A, b, reg, weights)


def test_moments_give_the_gradient_everywhere():
    problem = least_squares(3, Zero(), 2)
    H, c = problem.moments()
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close((H @ x.unsqueeze(-1)).squeeze(-1) - c, problem.grad(x), rtol=0, atol=1e-13)
    assert LeastSquares.quadratic and not Logistic.model.quadratic and Logistic(3, 4, 5, 0.1).sample([0]).moments() is None


@pytest.mark.parametrize("reg", REGULARIZERS, ids=str)
@pytest.mark.parametrize("graph", ["ring(4)", "star(5)", "ring(1)"])
def test_one_sum_is_enough_for_the_certified_optimum(graph, reg):
    net = StackedNetwork(graph)
    problem = least_squares(net.n, reg, 2)
    best = optimum(problem).x.unsqueeze(-2)
    states = iterate(Moments(inner=300), problem, net)
    _, first, *later = (next(states) for _ in range(7))
    d, height = problem.d, net.topology.tree.height
    size = 8 * (d * (d + 1) // 2 + d)
    assert net.traffic.rounds == 2 * height and net.traffic.bytes == 2 * (net.n - 1) * size
    assert float((later[-1].x - best).norm(dim=-1).max()) < 1e-9
    # What nodes compute alone from the same numbers differs by roundings, which steps that contract do not let grow.
    torch.testing.assert_close(first.x, first.x[..., :1, :].expand_as(first.x), rtol=0, atol=1e-13)


def test_short_messages_leave_moments_as_they_are():
    problem, net = least_squares(4, Zero()), StackedNetwork("ring(4)")
    short = net.through(Bits(3))
    one, other = (solve(Moments(inner=50), problem, where, Stop(steps=1)).x for where in (net, short))
    assert torch.equal(one, other)


def test_what_is_not_quadratic_is_refused_before_anything_is_sent():
    net = StackedNetwork("ring(4)")
    with pytest.raises(InvalidInput, match="needs a quadratic f"):
        solve(Moments(inner=5), Logistic(4, 3, 5, 0.1).sample([0]), net, Stop(steps=1))
    assert net.traffic.rounds == 0


def test_own_data_are_fitted_by_moments_where_links_are_far():
    """Of 250 features bytes do not pay for it, and seconds do."""
    data = Lasso(4, 250, 8, 0.1).sample([0])
    columns = tuple(f"c{k}" for k in range(250))
    sites = [Site(f"site {i}", columns, data.A[0, i].numpy(), data.b[0, i].numpy()) for i in range(4)]
    asked = {"target": "y", "l1": 0.1, "intercept": False, "latency": 0.02, "bandwidth": 1.25e6}
    far, thin = (fit_here(sites, Task(pay=pay, **asked)) for pay in ("seconds", "bytes"))
    assert far.method == "Moments" and "for fewest seconds" in far.why and thin.method != "Moments"
    assert far.objective == pytest.approx(float(optimum(data).value), abs=1e-7)
    assert far.rounds < thin.rounds and far.bytes > thin.bytes
