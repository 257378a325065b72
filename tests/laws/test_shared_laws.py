"""MiLoDo for networks: whatever its network says, the optimum is where it rests, in any units and on any graph."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from milodo.algorithms.rule import WARM_UP
from milodo.learned import Shared
from milodo.learned.region import Region, mixing_gap
from milodo.learned.shared import ALPHA, INPUTS, OUTPUTS, RAMP, REACH, Tensors, most_sigma
from milodo.loop import iterate
from milodo.network import StackedNetwork, degraded
from milodo.problems import L1, Lasso, LeastSquares, Logistic, Neural, optimum
from milodo.topology import topology

sys.path.insert(0, str(Path(__file__).parent.parent))
from disturb import awakened
from renamed import relabelled

DRAWS = 10
"""Of all weights of the network, side by side."""


def drawn(graph, seed):
    """An optimizer with DRAWS draws of its weights as a first axis; its outputs go from nearly constant to always extreme."""
    torch.manual_seed(seed)
    optimizer = Shared(graph, hidden=6).double()
    sizes = torch.logspace(-0.5, 1.0, DRAWS, dtype=torch.float64)
    shapes = {"w_1": (6, INPUTS), "b_1": (6,), "w_2": (OUTPUTS, 6), "b_2": (OUTPUTS,)}
    for name, shape in shapes.items():
        draws = torch.randn(DRAWS, *shape, dtype=torch.float64) * sizes.reshape(-1, *[1] * len(shape))
        setattr(optimizer, name, nn.Parameter(draws.unsqueeze(1), requires_grad=False))  # an axis for the nodes
    return optimizer


def after(algorithm, problem, net, k):
    with torch.no_grad():
        return next(itertools.islice(iterate(algorithm, problem, net), k, None))


def perceptron(n=3, seed=0, scales=None):
    """A small network on random data; with `scales`, each of its tensors begins so many times larger."""
    draws = torch.Generator().manual_seed(7)
    inputs = torch.randn(n, 30, 6, generator=draws, dtype=torch.float64)
    data = inputs, (inputs[..., :3].argmax(-1) + torch.arange(n).unsqueeze(-1)) % 3
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    if scales is not None:
        module = Scaled(module, scales).double()
    return Neural(module, cross_entropy, data, minibatch=10, fresh=False)


class Scaled(nn.Module):
    """The same function of other parameters."""

    def __init__(self, inner, scales):
        super().__init__()
        self.scales, self.held = (
            scales,
            nn.ParameterList([c * p.detach() for c, p in zip(scales, inner.parameters(), strict=True)]),
        )

    def forward(self, x):
        w_1, b_1, w_2, b_2 = (p / c for c, p in zip(self.scales, self.held, strict=True))
        return (x @ w_1.T + b_1).relu() @ w_2.T + b_2


@pytest.mark.parametrize("graph", ["ring(8)", "grid(3x3)", "tree(7)", "star(6)", "erdos_renyi(8,0.4,seed=1)"])
@pytest.mark.parametrize("family", [Lasso, Logistic])
def test_any_weights_lead_to_the_certified_optimum(family, graph):
    n = topology(graph).n
    problem = (Lasso(n, 8, 4, 0.05) if family is Lasso else Logistic(n, 5, 12, 0.02)).sample(range(DRAWS))
    state = after(drawn(graph, n), problem, StackedNetwork(graph), 9000)
    assert float((state.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-5


@pytest.mark.parametrize("graph", ["ring(6)", "star(6)"])
def test_what_it_chooses_is_symmetric_positive_and_within_the_region(graph):
    problem, net = Lasso(6, 8, 12, 0.05).sample(range(DRAWS)), StackedNetwork(graph)
    optimizer, L = drawn(graph, 1), problem.lipschitz().unsqueeze(-1)
    slack, last = 1 + 1e-12, None
    with torch.no_grad():
        for k, state in enumerate(itertools.islice(iterate(optimizer, problem, net), 301)):
            assert float(state.y.sum(-2).abs().max() / state.y.abs().max().clamp(min=1)) < 1e-11
            memory = state.memory
            if k:
                assert bool(((memory.alpha > 0) & (memory.alpha <= 1)).all()) and float(memory.alpha.min()) > ALPHA / 3.1
                assert bool(((memory.D > 0) & (memory.sigma * memory.D * L <= REACH * slack)).all())
                assert bool(((memory.p1 > 0) & (net.spread(memory.D) * memory.p1 <= memory.bound * slack)).all())
                assert torch.equal(memory.p1, net.swap(memory.p1))
                assert k <= WARM_UP or k % optimizer.every == 1 or memory.D is last
            last = memory.D


@pytest.mark.parametrize("graph", ["ring(50)", "grid(3x3)", "complete(5)"])
def test_its_dual_steps_are_the_largest_of_the_region(graph):
    gap, alpha = mixing_gap(topology(graph)) / 4, torch.linspace(0.03, 0.9, 50, dtype=torch.float64)
    sigma = most_sigma(alpha, gap)
    torch.testing.assert_close(Region(0.99, 1.8, 4.0, gap).least_alpha(sigma)[sigma < 1], alpha[sigma < 1], rtol=1e-12, atol=0)


def test_a_limit_is_primal_and_dual_optimal():
    problem, net = Lasso(6, 8, 30, 0.1).sample([0, 1]), StackedNetwork("grid(2x3)")
    last = after(awakened(Shared("ring(3)").double()), problem, net, 3000)
    x = problem.everywhere(optimum(problem).x)
    assert float((last.x - x).abs().max()) < 1e-10
    assert float(problem.reg.distance(x, -problem.grad(x) - last.y).max()) < 1e-9


def test_messages_are_one_vector_and_one_more_where_neighbours_agree():
    problem, net = Lasso(6, 8, 30, 0.1).sample([0]), StackedNetwork("star(6)")
    after(Shared("ring(3)", every=10).double(), problem, net, 300)
    assert net.traffic.rounds == 300 + WARM_UP + 28


def test_before_training_it_is_second_moments_in_the_papers_rule():
    """A node whose neighbour holds the same is a node alone: no difference, and no dual."""
    one = LeastSquares(*(v.expand(2, *v.shape[1:]).contiguous() for v in _data()), L1(0.0))
    optimizer, net = Shared("path(2)", eta=0.02).double(), StackedNetwork("path(2)")
    x = last = one.start() + 0.5
    v, size = torch.zeros_like(x), 0.5
    with torch.no_grad():
        for k, state in enumerate(itertools.islice(iterate(optimizer, one, net, x0=x), WARM_UP)):
            torch.testing.assert_close(state.x, x, rtol=1e-9, atol=1e-12)
            now, before = max(ALPHA, RAMP / (k + RAMP)), max(ALPHA, RAMP / (k + RAMP)) if k else 1.0
            move = (1 - before) * (x - last)
            g = one.grad(x + 0.5 * move)
            v = v + (g.square() - v) / (k + 1)
            p = 0.02 * now * size / (v + 1e-4 * v.mean(-1, keepdim=True)).sqrt()
            p = torch.minimum(p, REACH / one.lipschitz().unsqueeze(-1))
            last, x = x, x + move - p * g


def _data():
    draws = torch.Generator().manual_seed(0)
    return torch.randn(1, 12, 5, generator=draws, dtype=torch.float64), torch.randn(1, 12, generator=draws, dtype=torch.float64)


def test_other_units_do_not_change_what_it_does():
    net, problem = StackedNetwork("star(6)"), Lasso(6, 12, 4, 0.1).sample([0, 1])
    a, c = 37.0, 0.003
    other = LeastSquares(a * problem.A, c * problem.b, L1(0.1 * a * c))
    optimizer = awakened(Shared("star(6)").double())
    with torch.no_grad():
        for one, two in itertools.islice(zip(iterate(optimizer, problem, net), iterate(optimizer, other, net), strict=False), 60):
            torch.testing.assert_close(two.x * a / c, one.x, rtol=1e-8, atol=1e-8)


def test_a_network_whose_tensors_have_other_units_is_trained_alike():
    """Each tensor measures itself: scales that the module takes back change nothing."""
    scales, net = (3.0, 0.2, 50.0, 1e-3), StackedNetwork("path(3)")
    plain, scaled = perceptron(), perceptron(scales=scales)
    optimizer = awakened(Shared("ring(4)").double(), 0.3)
    a, b = after(optimizer, plain, net, 40), after(optimizer, scaled, net, 40)
    by = Tensors(plain).spread(torch.tensor(scales, dtype=torch.float64))
    torch.testing.assert_close(b.x / by, a.x, rtol=1e-6, atol=1e-8)
    assert float((a.x - plain.start()).abs().max()) > 0.05


def test_tensors_are_those_of_the_module_and_a_linear_model_is_one():
    assert perceptron().tensors == (48, 8, 24, 3) and sum(perceptron().tensors) == perceptron().d
    assert Lasso(3, 5, 4, 0.1).sample([0]).tensors is None
    problem, a = perceptron(), torch.randn(2, 3, 83, dtype=torch.float64)
    tensors = Tensors(problem)
    assert tensors.spread(tensors.mean(a)).shape == a.shape
    torch.testing.assert_close(tensors.mean(a)[..., 1], a[..., 48:56].mean(-1))


def test_names_of_nodes_do_not_matter():
    graph, problem, _, other, moved, order = relabelled()
    optimizer = awakened(Shared(graph).double())
    a, b = after(optimizer, problem, StackedNetwork(graph), 80), after(optimizer, moved, StackedNetwork(other), 80)
    torch.testing.assert_close(b.x, a.x[:, order], rtol=0, atol=1e-9)


@pytest.mark.parametrize("outage", [0.0, 0.4])
def test_failing_links_lead_to_the_same_point(outage):
    problem, graph = Lasso(6, 8, 30, 0.1).sample([0]), "star(6)"
    net = degraded(StackedNetwork(graph), outage=outage, seed=3)
    last = after(awakened(Shared(graph).double(), 0.3), problem, net, 4000)
    assert float((last.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-8
    assert float(last.y.sum(-2).abs().max()) < 1e-11 and bool((last.memory.p1 > 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_iterates_have_the_precision_of_the_problem(dtype):
    problem, net = Lasso(4, 5, 8, 0.1).sample([0], dtype=dtype), StackedNetwork("ring(4)", dtype=dtype)
    state = after(Shared("ring(4)"), problem, net, 30)
    memory = state.memory
    kept = (state.x, state.y, memory.v, memory.D, memory.p1, memory.alpha)
    assert all(tensor.dtype == dtype and bool(torch.isfinite(tensor).all()) for tensor in kept)


def test_a_node_that_begins_at_its_own_minimum_or_has_no_data_of_a_coordinate_stays_finite():
    A, b = (v.clone() for v in _data())
    A[..., 2] = 0.0
    problem = LeastSquares(A.expand(2, -1, -1).contiguous(), torch.stack([0 * b[0], b[0]]), L1(0.0))
    state = after(awakened(Shared("path(2)").double()), problem, StackedNetwork("path(2)"), 3000)
    assert float((state.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-6
