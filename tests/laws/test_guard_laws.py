"""A guarded method with constants that make the bare one diverge: over every kind of link, nodes find gentler ones together."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_algorithm_laws import close, run, start
from unit_cases import rescaled

from milodo.algorithms import AcceleratedED, GuardedED, Remembering
from milodo.errors import InvalidInput
from milodo.loop import Stop, iterate, solve
from milodo.metrics import mean_point
from milodo.network import Bits, Network, StackedNetwork, StackedObserver, degraded
from milodo.network.levels import Levels
from milodo.problems import L1, Box, Lasso, LeastSquares, Problem, optimum
from milodo.status import Status
from milodo.topology import EXAMPLES, Topology, topology
from milodo.tree import tree_map

OBSERVER = StackedObserver()
GRAPHS = ("ring(10)", "path(8)", "tree(7)", "star(9)", "grid(3x3)")
LINKS = {"perfect": (0.0, None), "bits": (0.0, Bits(6)), "lossy": (0.3, None), "lossy bits": (0.3, Bits(6))}


def wild(problem: Problem, net: Network, *, known: bool = True) -> GuardedED:
    """Steps ten times too long, momentum of 0.999, duals that move twenty times too fast."""
    L = float(problem.lipschitz().max())
    bare = AcceleratedED.safe(L, net)
    return GuardedED(
        gamma=10 * bare.gamma,
        K=bare.K,
        momentum=0.999,
        dual=20 * bare.allowed(net)[1],
        floor=1.2 / L if known else None,
    )


def bare(method: GuardedED) -> AcceleratedED:
    return AcceleratedED(gamma=method.gamma, K=method.K, over=method.over, momentum=method.momentum, dual=method.dual)


@pytest.mark.parametrize("links", [*LINKS, "lossy bits, no safe step known"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_adversarial_constants_reach_the_certified_optimum(graph, links):
    (outage, form), known = LINKS[links.split(",")[0]], links in LINKS
    problem, net = Lasso(topology(graph).n, 20, 10, 0.1).sample([0, 1]), degraded(StackedNetwork(graph), outage=outage)
    method = wild(problem, net, known=known)
    assert solve(bare(method), problem, net, Stop(steps=6000)).status is Status.DIVERGED
    guarded = method if form is None else Remembering(method, form)
    result = solve(guarded, problem, net, Stop(steps=12000, tolerance=1e-8, every=20))
    assert result.status is Status.CONVERGED
    best = optimum(problem)
    assert float(best.certificate.max()) < 1e-13
    # By convexity the gap is at most a subgradient, of the size of the tolerance, times the distance to the optimum.
    gap = problem.objective(mean_point(result.x, OBSERVER), OBSERVER) - best.value
    assert float(gap.abs().max()) < 1e-8


@pytest.mark.parametrize("reg", [L1(0.1), Box(-0.3, 0.4)], ids=str)
def test_walls_that_keep_x_from_growing_do_not_hide_a_step_that_is_too_long(reg):
    problem, net = Lasso(6, 8, 20, reg=reg).sample([0, 1]), StackedNetwork("ring(6)")
    result = solve(wild(problem, net), problem, net, Stop(steps=6000, tolerance=1e-8, every=20))
    assert result.status is Status.CONVERGED
    torch.testing.assert_close(result.x.mean(-2), optimum(problem).x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_duals_sum_to_zero_over_the_nodes_of_the_highest_level_at_every_step(graph, links):
    outage, form = LINKS[links]
    problem, net = Lasso(topology(graph).n, 20, 10, 0.1).sample([0]), degraded(StackedNetwork(graph), outage=outage)
    method, mixed = wild(problem, net), 0
    method = method if form is None else Remembering(method, form)
    for state in itertools.islice(iterate(method, problem, net), 400):
        guarded = state if form is None else state.inner
        level, y = guarded.level[0, :, 0], guarded.inner.y[0]
        mixed += len(level.unique()) > 1
        there = y[level == level.max()]
        assert float(there.sum(0).abs().max()) <= 1e-12 * max(1.0, float(there.abs().max()))
    assert mixed > 0 and len(level.unique()) == 1  # some went up before others, and in the end all are together


def test_constants_that_are_safe_are_never_touched(build):
    """Then it is Accelerated-ED, and a message has one number more."""
    problem, nets = Lasso(6, 8, 20, 0.1).sample([0, 1]), [StackedNetwork("star(6)") for _ in range(2)]
    L = float(problem.lipschitz().max())
    guarded = GuardedED.safe(L, nets[0])
    state, other = run(guarded, problem, nets[0], 300), run(AcceleratedED.safe(L, nets[1]), problem, nets[1], 300)
    close(state.inner, other)
    assert float(guarded.last(nets[0])) == 0 and not state.level.any()
    assert nets[0].traffic.bytes == nets[1].traffic.bytes + 8 * nets[1].traffic.messages


def test_what_is_given_gentler_than_needed_stays_what_it_is():
    problem, net = Lasso(6, 8, 20, 0.1).sample([0]), StackedNetwork("ring(6)")
    L = float(problem.lipschitz().max())
    method = GuardedED(gamma=0.1 / L, K=1, momentum=0.5, dual=0.01, floor=1.2 / L)
    assert float(method.last(net)) == 0
    close(run(method, problem, net, 50).inner, run(bare(method), problem, net, 50))


def test_at_rest_rounding_that_goes_back_and_forth_alarms_nobody():
    problem, net = Lasso(6, 2, 20, 0.0).sample([0, 1, 2, 3]), StackedNetwork("ring(6)")
    L = float(problem.lipschitz().max())
    method = GuardedED(gamma=1 / L, K=1, floor=0.2 / L)
    state = run(method, problem, net, 1500)
    assert float(method.last(net)) > 0 and not state.level.any() and bool((state.k == 1500).all())


@pytest.mark.parametrize(("gamma", "dual", "momentum"), [(4, 1, 1), (1, 8, 1), (1, 1, 4), (2, 16, 8), (1, 1, 1)])
def test_the_last_level_is_the_first_at_which_every_constant_is_safe(gamma, dual, momentum):
    """Constants that are so many times bolder than safe ones: each level halves by how much."""
    net, L = StackedNetwork("ring(8)"), 3.0
    most, sigma = AcceleratedED(gamma=1 / L, K=1).allowed(net)
    method = GuardedED(gamma=gamma / L, K=1, floor=1 / L, dual=dual * sigma, momentum=1 - (1 - most) / momentum)
    assert 2.0 ** float(method.last(net)) == max(gamma, dual, momentum)


def test_information_travels_one_hop_per_round_while_nodes_go_up():
    n = 20
    problem, other = Lasso(n, 3, 8, 0.01).sample([0]), Lasso(n, 3, 8, 0.01).sample([1])
    A = problem.A.clone()
    A[:, 0] = 30 * other.A[:, 0]  # of such curvature that node 0 is alarmed first
    changed, net = type(problem)(A, problem.b, problem.reg), StackedNetwork(f"path({n})")
    method = GuardedED(gamma=1.2 / float(problem.lipschitz().max()), K=1, floor=1e-3 / float(problem.lipschitz().max()))
    for k in range(1, 9):
        one, two = (run(method, p, net, k) for p in (problem, changed))
        differs = (one.level != two.level).flatten()
        # The step that alarms node 0 tells nobody; each of those after it one node more.
        assert not differs[k:].any() and bool(differs[: k - 1].all())


def test_relabelling_nodes_relabels_levels():
    problem, net = Lasso(6, 8, 20, 0.1).sample([0, 1]), StackedNetwork("erdos_renyi(6,0.5,seed=1)")
    order = (3, 0, 5, 1, 4, 2)
    back = [order.index(i) for i in range(6)]
    method, x0 = wild(problem, net), start(problem)
    state = run(method, problem, net, 30, x0)
    renamed = Topology.from_edges((order[i], order[j]) for i, j in net.topology.edges)
    moved = run(method, problem.at(back), StackedNetwork(renamed), 30, x0[..., back, :])
    close(moved, tree_map(lambda leaf: leaf[..., back, :], state))
    assert state.level.any()


def test_an_instance_that_goes_up_leaves_the_others_where_they_are():
    lasso, net = Lasso(6, 8, 20, 0.1).sample([0, 1]), StackedNetwork("ring(6)")
    problem = LeastSquares(lasso.A * torch.tensor([1.0, 5.0]).double()[:, None, None, None], lasso.b, lasso.reg)
    method, x0 = GuardedED(gamma=1 / float(lasso.lipschitz().max()), K=1), start(problem)
    together = run(method, problem, net, 30, x0)
    assert not together.level[0].any() and together.level[1].any()
    for k in range(2):
        alone = LeastSquares(problem.A[k], problem.b[k], problem.reg)
        close(tree_map(lambda leaf, k=k: leaf[k], together), run(method, alone, net, 30, x0[k]))


@settings(max_examples=6)
@given(target=st.floats(-100, 100).map(lambda k: 10.0**k), feature=st.floats(-12, 12).map(lambda k: 10.0**k))
def test_levels_are_the_same_in_any_units(target, feature):
    lasso, net = Lasso(6, 8, 20, 0.1).sample([0, 1]), StackedNetwork("ring(6)")
    problems = (lasso, rescaled(lasso, L1(0.1), target, feature))
    one, two = (run(wild(p, net), p, net, 200) for p in problems)
    assert torch.equal(one.level, two.level) and one.level.any()
    torch.testing.assert_close(two.x / target * feature, one.x, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("outage", [0.0, 0.4])
@pytest.mark.parametrize("graph", EXAMPLES)
def test_between_levels_nothing_is_exchanged_and_everybody_hears_of_the_highest(graph, outage):
    net = degraded(StackedNetwork(graph), outage=outage)
    torch.manual_seed(0)
    x, own = torch.randn(2, net.n, 5).double(), torch.randint(3, (2, net.n, 1)).double()
    levels = Levels(own)
    d = net.among(levels).diff(x)
    theirs, ours = (own[:, [arc[end] for arc in net.arcs]] for end in (1, 0))
    arc = {arc: k for k, arc in enumerate(net.arcs)}
    assert not d[(theirs != ours).expand_as(d)].any() and torch.equal(d, -d[:, [arc[j, i] for i, j in net.arcs]])
    assert bool((levels.highest >= own).all())
    if not outage:
        same = (theirs == ours).expand_as(d)
        assert torch.equal(d[same], net.diff(x)[same])
        assert torch.equal(levels.highest, own.maximum(net.max(theirs)) if net.n > 1 else own)


def test_an_average_that_needs_every_node_is_refused():
    with pytest.raises(InvalidInput, match="needs every node"):
        GuardedED(gamma=0.1, K=1, over="tree")
