"""Sums over a spanning tree and polynomials of the Laplacian: their dense selves, counted, refused where they break."""

from __future__ import annotations

import itertools
from typing import Any

import networkx as nx
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from milodo.algorithms import METHODS, ProxATC, TreeAPG
from milodo.errors import InvalidInput
from milodo.loop import Stop, iterate, solve
from milodo.metrics import Units, optimality_error
from milodo.network import Outage, StackedNetwork, StackedObserver, Traffic, degraded
from milodo.problems import Lasso, LeastSquares, Logistic
from milodo.status import Status
from milodo.topology import EXAMPLES, Topology, topology
from milodo.topology.tree import spanning_tree

OBSERVER = StackedObserver()
LOLLIPOP = Topology.from_graph(nx.lollipop_graph(8, 8), "lollipop(8,8)")
GRAPHS = [*EXAMPLES, "ring(1)", "ring(2)", "path(10)", "star(20)", "tree(31)", LOLLIPOP]


@pytest.fixture(params=GRAPHS, ids=str)
def net(request: pytest.FixtureRequest) -> StackedNetwork:
    return StackedNetwork(request.param)


def some(net: StackedNetwork, *batch: int, d: int = 3) -> torch.Tensor:
    return torch.randn(*batch, net.n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Last:
    """Keeps the state a run ended in, for a longer run to go on after."""

    def __init__(self) -> None:
        self.after: tuple[int, Any] | None = None

    def last(self, first: Any) -> tuple[int, Any] | None:
        return self.after

    def keep(self, k: int, state: Any) -> None:
        self.after = k, state


def test_the_tree_spans_the_graph_by_its_edges_and_is_as_low_as_can_be(net):
    graph, tree = net.topology.graph, net.topology.tree
    for node, parent in enumerate(tree.parent):
        assert node == tree.root or (graph.has_edge(node, parent) and tree.depth[node] == tree.depth[parent] + 1)
    assert tree.height == nx.radius(graph)


def test_a_large_graph_has_a_low_tree_too(monkeypatch):
    monkeypatch.setattr("milodo.topology.tree.EXACT", 5)
    for name in ("path(41)", "grid(5x9)", "star(30)", "tree(31)", "ring(20)"):
        graph = topology(name).graph
        assert spanning_tree(graph).height <= nx.radius(graph) + 1


def test_a_total_is_the_dense_sum_and_the_very_same_at_every_node(net):
    x = some(net, 2)
    found = net.total(x)
    torch.testing.assert_close(found, x.sum(-2, keepdim=True).expand_as(x), rtol=0, atol=1e-13)
    assert torch.equal(found, found[..., :1, :].expand_as(found))


def test_a_total_by_all_is_the_dense_sum_in_as_many_rounds_as_the_graph_is_wide(net):
    x = some(net, 2)
    found = net.total_by_all(x)
    torch.testing.assert_close(found, x.sum(-2, keepdim=True).expand_as(x), rtol=0, atol=1e-13)
    assert torch.equal(found, found[..., :1, :].expand_as(found))
    every = net.n * (net.n - 1)
    assert net.traffic == Traffic(net.topology.diameter, messages=every, floats=3 * every, even=24 * every)


def test_everybody_hears_of_everybody_once_and_only_what_its_neighbour_has_heard(net):
    graph, knows = net.topology.graph, [{node} for node in range(net.n)]
    for hops in net.topology.flood.rounds:
        before = [set(known) for known in knows]
        for whose, sender, receiver in hops:
            assert graph.has_edge(sender, receiver) and whose in before[sender] and whose not in knows[receiver]
            knows[receiver].add(whose)
    assert all(known == set(range(net.n)) for known in knows)


def test_a_total_by_all_is_refused_where_messages_are_lost_or_left_out():
    net = StackedNetwork("ring(4)")
    with pytest.raises(InvalidInput, match="a lost message breaks a sum"):
        net.through(Outage(0.1)).total_by_all(some(net))
    with pytest.raises(InvalidInput, match="needs every coordinate"):
        degraded(net, messages="top-10%").total_by_all(some(net))


def test_a_total_costs_a_vector_up_and_a_vector_down_each_edge_of_the_tree(net):
    net.total(some(net, 2))
    edges = 2 * (net.n - 1)
    assert net.traffic == Traffic(2 * net.topology.tree.height, messages=edges, floats=3 * edges, even=24 * edges)


def test_a_total_is_its_own_adjoint(net):
    x, y = some(net).requires_grad_(), some(net, d=3).flip(0)
    (found,) = torch.autograd.grad((net.total(x) * y).sum(), x)
    torch.testing.assert_close(found, net.total(y), rtol=0, atol=1e-13)
    before = net.traffic.snapshot()
    net.total(x).sum().backward()
    assert (net.traffic - before).rounds == 2 * net.topology.tree.height  # the backward pass is not traffic
    for verb in (net.total, net.total_by_all):
        assert gradcheck(verb, (x,), fast_mode=True) and gradgradcheck(verb, (x,), fast_mode=True)


def test_a_sum_is_refused_where_messages_are_lost_or_coordinates_are_left_out():
    net = StackedNetwork("ring(5)")
    sparse = degraded(net, messages="top-10%")
    for broken, said in ((net.through(Outage(0.1)), "a lost message breaks a sum"), (sparse, "every coordinate")):
        with pytest.raises(InvalidInput, match=said):
            broken.total(some(net))


@pytest.mark.parametrize(("messages", "size", "off"), [("float32", 4, 1e-6), ("float16", 2, 1e-2)])
def test_a_sum_of_short_messages_is_the_same_at_every_node_and_costs_less(net, messages, size, off):
    short, x = degraded(net, messages=messages), some(net)
    found = short.total(x)
    assert torch.equal(found, found[:1].expand_as(found))
    torch.testing.assert_close(found, x.sum(0).expand_as(x), rtol=0, atol=off * net.n)
    assert short.traffic.bytes == size * short.traffic.floats


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("graph", ["ring(10)", "path(9)", "star(20)", "complete(5)", "tree(31)", "torus(4x4)", LOLLIPOP], ids=str)
def test_safe_parameters_converge_on_every_graph_or_say_that_none_do(name, graph):
    """Even and uneven data, two losses; nothing tuned. Slow methods need not arrive, but must be under way."""
    net = StackedNetwork(graph)
    even = Lasso(net.n, 4, 10, 0.1).sample([0])
    scale = 10 ** torch.linspace(0.5, -1, net.n, dtype=torch.float64)[:, None]  # curvatures that differ by a thousand times
    uneven = LeastSquares(even.A * scale.unsqueeze(-1), even.b * scale, even.reg)
    for problem in (even, uneven, Logistic(net.n, 4, 10, 0.1).sample([1])):
        try:
            method = METHODS[name].safe(float(problem.lipschitz().max()), net, float(problem.lipschitz().mean()))
        except InvalidInput as error:
            assert name == "prox-atc" and "below 1 - √2" in str(error)
            small = ProxATC(gamma=0.1 / float(even.lipschitz().max()))  # ... and so it is: it never comes to rest
            kept = Last()
            resting = [solve(small, even, net, Stop(steps=steps), keeper=kept).x for steps in (1000, 2000)]
            assert all(float(optimality_error(even, x, OBSERVER, Units.of(even, OBSERVER)).worst.max()) > 1e-3 for x in resting)
            method = METHODS[name].safe(float(problem.lipschitz().max()), net := StackedNetwork(graph, "lazy"))
        kept, steps = Last(), 1000
        result = solve(method, problem, net, Stop(steps=steps, tolerance=1e-6, every=50), keeper=kept)
        if result.status is Status.CONVERGED:
            continue
        assert result.status is Status.STEPS
        if method.exact:  # a third, so that no moment of a run that goes up and down will do
            was = float(optimality_error(problem, result.x, OBSERVER, Units.of(problem, OBSERVER)).worst.max())
            later = solve(method, problem, net, Stop(steps=4 * steps, tolerance=was / 3, every=50), keeper=kept)
            assert later.status is Status.CONVERGED, f"{method} on {net.topology} is off by {was:.1e}, and by hardly less later"


@pytest.mark.parametrize("family", [Lasso(6, 8, 20, 0.1), Logistic(6, 5, 20, 0.01)], ids=lambda family: family.name)
def test_what_tree_apg_keeps_is_what_its_points_have(family):
    """It looks at x alone: what it has of e and of the iterate before comes from looks it took, steps taken back among them."""
    problem, longest = family.sample([0, 1]), []
    for state in itertools.islice(iterate(TreeAPG(), problem, StackedNetwork("ring(6)")), 1, 30):
        for kept, found in (
            (state.seen, problem.look(state.last)), (state.own, problem.grad(state.e)), (state.f[..., 0], problem.value(state.e)),
        ):  # fmt: skip
            torch.testing.assert_close(kept, found, rtol=1e-12, atol=1e-12)
        longest.append(float(state.gamma.max()))
    assert any(later < before for before, later in itertools.pairwise(longest))  # some steps were taken back
