"""The rule with momentum has the optimum as its only limit, whatever its networks say."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from milodo.algorithms import LEPDO
from milodo.algorithms.rule import WARM_UP
from milodo.errors import InvalidInput
from milodo.learned import MiLoDo, special_initialisation, weights
from milodo.learned.checkpoint import load_optimizer, save_optimizer
from milodo.learned.region import DEEPEST, LEAST_STEP, MOST_STEEP, SPREAD, STEEPEST, Region, mixing_bound
from milodo.learned.schedule import MOST_ANNEALED, Schedule
from milodo.loop import Stop, iterate, solve
from milodo.network import Bits, StackedNetwork, degraded
from milodo.problems import L1, Lasso, LeastSquares, Logistic, optimum
from milodo.topology import EXAMPLES, topology

sys.path.insert(0, str(Path(__file__).parent.parent))
from disturb import disturbed
from renamed import relabelled

DRAWS = 10
"""Of all weights of all networks, side by side."""
STEADY = {"anneal_after": 0}
NESTEROV = STEADY | {"lookahead": 1.0, "reach": 1.2}
HEAVY = STEADY | {"lookahead": 0.0, "reach": 1.2}
"""Weights that jump in every iteration stand less of it without a lookahead: of 1.8 one draw in ten on a star did not settle."""
STEEP = STEADY | {"deepest": 1.0, "steepest": MOST_STEEP}
KINDS = pytest.mark.parametrize("kind", [STEADY, NESTEROV, HEAVY], ids=["half ahead", "Nesterov", "heavy ball"])
"""Of momentum, without annealing: with little momentum, annealed dual steps take four times as long."""


def drawn(graph, momentum, seed, **options):
    """An optimizer with DRAWS draws of its weights as a first axis; its outputs go from nearly constant to always extreme."""
    torch.manual_seed(seed)
    optimizer = MiLoDo(graph, hidden=6, inputs="relative", momentum=momentum, **options).double()
    sizes = torch.logspace(-0.5, 1.5, DRAWS, dtype=torch.float64)
    for network in (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u):
        for name, value in list(network.named_parameters(recurse=False)):
            draws = torch.randn(DRAWS, *value.shape, dtype=torch.float64)
            if name in ("w_2", "b_2"):
                draws *= sizes.reshape(-1, *[1] * value.ndim)
            setattr(network, name, nn.Parameter(draws, requires_grad=False))
        network.forward = network.by_torch
    return optimizer


def after(algorithm, problem, net, k):
    with torch.no_grad():
        return next(itertools.islice(iterate(algorithm, problem, net), k, None))


@pytest.mark.parametrize("graph", ["ring(8)", "grid(3x3)", "tree(7)", "star(6)", "erdos_renyi(8,0.4,seed=1)"])
@pytest.mark.parametrize("family", [Lasso, Logistic])
@KINDS
def test_any_weights_lead_to_the_certified_optimum(kind, family, graph):
    """100 draws in all of each kind of momentum."""
    n = topology(graph).n
    problem = (Lasso(n, 8, 4, 0.05) if family is Lasso else Logistic(n, 5, 12, 0.02)).sample(range(DRAWS))
    state = after(drawn(graph, 0.95, n, every=10, **kind), problem, StackedNetwork(graph), 9000)
    low, high = (state.memory.p * state.memory.units.L).aminmax()
    assert float(high) > 4 * float(low) - 0.01 and float(state.memory.beta.max()) > 0.94 and float(state.memory.beta.min()) < 0.01
    assert float((state.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-5


@pytest.mark.parametrize("graph", ["ring(8)", "grid(3x3)", "tree(7)", "star(6)", "erdos_renyi(8,0.4,seed=1)"])
@pytest.mark.parametrize("family", [Lasso, Logistic])
def test_with_dual_steps_as_large_as_any_they_lead_there_too(family, graph):
    n = topology(graph).n
    problem = (Lasso(n, 8, 20, 0.05) if family is Lasso else Logistic(n, 5, 12, 0.02)).sample(range(DRAWS))
    state = after(drawn(graph, 0.2, n, every=10, spread=6.0, **STEEP), problem, StackedNetwork(graph), 4000)
    assert float((state.memory.p / state.memory.D).max()) > 1.5
    assert float((state.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-5


def test_any_weights_that_are_annealed_lead_there_too():
    problem = Lasso(9, 8, 4, 0.05).sample(range(DRAWS))
    optimizer = drawn("grid(3x3)", 0.95, 9, every=10)
    state = after(optimizer, problem, StackedNetwork("grid(3x3)"), 30000)
    assert state.memory.annealed == MOST_ANNEALED and optimizer.settings().anneal_after == 500
    assert float((state.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-5


def test_annealing_divides_dual_steps_and_what_momentum_lacks_by_k():
    problem, net = Lasso(6, 8, 12, 0.05).sample([0]), StackedNetwork("ring(6)")
    optimizer = learned("ring(6)", every=1, disturb=0.0, anneal_after=30)
    (early, late), p = (after(optimizer, problem, net, k) for k in (30, 61)), optimizer.settings().reach * 0.8
    assert late.memory.annealed == 2.0 and float((early.memory.p * early.memory.units.L - p).abs().max()) < 1e-6
    torch.testing.assert_close(late.memory.p1, early.memory.p1 / 2, rtol=1e-12, atol=0)
    torch.testing.assert_close(late.memory.D, early.memory.D * 2, rtol=1e-12, atol=0)
    assert float((1 - late.memory.beta).max()) < 0.7 * float((1 - early.memory.beta).min())


UP_AND_DOWN = Schedule(at=(5, 40, 90, 300), step=(0.4, 1.0, 0.6, 0.9), dual=(1.0, 0.5, 2.0, 1.2))


@pytest.mark.parametrize("graph", ["ring(8)", "star(6)"])
@pytest.mark.parametrize("lookahead", [0.0, 0.5])
def test_any_weights_with_a_schedule_lead_there_too(lookahead, graph):
    n = topology(graph).n
    problem = Lasso(n, 8, 4, 0.05).sample(range(DRAWS))
    optimizer = drawn(graph, 0.95, n, every=10, schedule=UP_AND_DOWN, lookahead=lookahead, **STEADY)
    state = after(optimizer, problem, StackedNetwork(graph), 9000)
    assert float((state.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-5


@pytest.mark.parametrize("outage", [0.0, 0.4])
def test_a_schedule_changes_weights_as_it_says_and_duals_still_sum_to_zero(outage):
    problem, net = Lasso(6, 8, 12, 0.05).sample([0]), degraded(StackedNetwork("star(6)"), outage=outage, seed=3)
    constants = {"every": 1, "disturb": 0.0, "anneal_after": 0}
    scheduled, plain = learned("star(6)", schedule=UP_AND_DOWN, **constants), learned("star(6)", **constants)
    p, D = 0.8 * scheduled.settings().reach, after(plain, problem, net, 1).memory.D
    mixing = after(plain, problem, StackedNetwork("star(6)"), 1).memory.p1 * net.spread(D)
    for k, step, dual in ((1, 0.4, 1.0), (65, 0.6**0.5, 1.0), (195, 0.9 * (0.6 / 0.9) ** 0.5, 2.4**0.5), (900, 0.9, 1.2)):
        state = after(scheduled, problem, net, k + 1)  # the weights of iteration k
        torch.testing.assert_close(state.memory.p * state.memory.units.L, torch.full_like(state.x, step * p), rtol=1e-6, atol=0)
        torch.testing.assert_close(state.memory.D, dual * D, rtol=1e-6, atol=0)
        mixed, agreed = state.memory.p1 * net.spread(state.memory.D), state.memory.p1 > 0
        torch.testing.assert_close(mixed[agreed], mixing[agreed], rtol=1e-6, atol=0)
        assert float(state.y.sum(-2).abs().max()) < 1e-11 * max(1.0, float(state.y.abs().max()))
    assert bool(agreed.all())


def test_a_schedule_that_cannot_be_is_refused():
    for at, step, dual, said in (
        ((0, 0), (1.0, 1.0), (1.0, 1.0), "must increase"),
        ((0, 9), (1.0,), (1.0, 1.0), "as many numbers"),
        ((0,), (1.1,), (1.0,), "less than or equal to 1"),
        ((0,), (1.0,), (math.inf,), "less than or equal to"),
    ):
        with pytest.raises(ValueError, match=said):
            Schedule(at=at, step=step, dual=dual)


def test_the_schedule_stands_on_the_card(tmp_path):
    optimizer = learned("ring(6)", schedule=UP_AND_DOWN, lookahead=0.0)
    save_optimizer(optimizer, path := tmp_path / "one.safetensors", good_for="anything", training={})
    assert load_optimizer(path)[0].settings() == optimizer.settings() and optimizer.settings().schedule == UP_AND_DOWN


def radius(region, sigma, alpha, reach, lookahead):
    """The largest modulus of the roots of (ξ - 1)(ξ² - c₁ξ + c₀) + σ(1 - a)ξ² over a and t [as many as σ]; a reach for each σ."""
    gap = torch.logspace(math.log10(region.gap), math.log10(region.deepest), 40, dtype=torch.float64)
    sigma, alpha, reach = (v.reshape(-1, 1, 1) for v in (sigma, alpha, reach))
    a, share, beta = 1 - gap.reshape(-1, 1), torch.linspace(0, 1, 11, dtype=torch.float64), 1 - alpha
    t = reach * a * share
    c1, c0 = (1 + beta) * a - (1 + lookahead * beta) * t, beta * (a - lookahead * t)
    companion = torch.zeros(*c1.shape, 3, 3, dtype=torch.float64)
    companion[..., 1, 0] = companion[..., 2, 1] = 1
    companion[..., 0, :] = torch.stack([1 + c1 - sigma * (1 - a), -c1 - c0, c0], dim=-1)
    return torch.linalg.eigvals(companion).abs().amax((-1, -2, -3))


@pytest.mark.parametrize("lookahead", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("gap", [0.003, 0.1, 0.5])
@pytest.mark.parametrize("deepest", [0.9, 1.0, 1.1, 1.26, 1.3])
def test_the_region_is_stable_mode_by_mode(deepest, gap, lookahead):
    """Whatever β may be, with a reach a little under 2(1 + β)/(1 + 2hβ); a little over it is not."""
    region = Region(0.98, 1.8, 4.0, gap, deepest, MOST_STEEP if deepest <= 1 else STEEPEST)
    sigma = torch.logspace(-3, math.log10(region.largest), 25, dtype=torch.float64)
    for s in (0.0, 0.5, 1.0):
        alpha = region.least_alpha(sigma) ** s
        reach = 2 * (2 - alpha) / (1 + 2 * lookahead * (1 - alpha))
        assert float(radius(region, sigma, alpha, 0.98 * reach, lookahead).max()) <= 1 + 1e-9
        if gap < 0.01:
            assert float(radius(region, sigma, alpha, 1.03 * reach, lookahead).max()) > 1 + 1e-4


@pytest.mark.parametrize("graph", ["ring(6)", "star(6)"])
@KINDS
def test_weights_that_change_in_every_iteration_lead_there_too_and_lie_in_the_region(kind, graph):
    problem, net = Lasso(6, 8, 12, 0.05).sample(range(DRAWS)), StackedNetwork(graph)
    optimizer, L = drawn(graph, 0.9, 1, **kind), problem.lipschitz().unsqueeze(-1)
    reach, least = optimizer.settings().reach, optimizer.region.least_alpha
    bound, sums = mixing_bound(optimizer.topology), []
    with torch.no_grad():
        for k, state in enumerate(iterate(optimizer, problem, net)):
            p, beta, D, p1 = (getattr(state.memory, name) for name in ("p", "beta", "D", "p1"))
            sums.append(float(state.y.sum(-2).abs().max() / state.y.abs().max().clamp(min=1)))
            if k in (1, 7, 300, 6000):
                slack = 1 + 1e-12
                assert bool(((p * L >= reach * LEAST_STEP / slack) & (p * L <= reach * slack)).all())
                assert bool(((beta >= 0) & (p <= slack * D) & (1 - beta >= least((p / D).clamp(max=1.0)) / slack)).all())
                assert bool(((p1 > 0) & (net.spread(D) * p1 <= bound * slack)).all())
                assert torch.equal(p1, net.swap(p1))
            if k == 6000:
                break
    assert max(sums) < 1e-11
    assert float((state.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-7


@pytest.mark.parametrize("graph", EXAMPLES)
def test_what_nodes_take_of_each_other_leaves_room_whatever_their_steps(graph):
    """I - A has eigenvalues of at most 1.26 where all nodes have one D; with any D on graphs of two colours."""
    top = topology(graph)
    bound = mixing_bound(top).squeeze(-1)
    two_colours = graph.startswith(("path", "star", "tree", "grid"))
    for spread in (1.0, 8.0) if two_colours else (1.0,):
        D = spread ** torch.rand(top.n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        lap = torch.zeros(top.n, top.n, dtype=torch.float64)
        for (i, j), b in zip(top.arcs, bound.tolist(), strict=True):
            weight = b / float(torch.maximum(D[i], D[j]))
            lap[i, j] -= weight
            lap[i, i] += weight
        largest = float(torch.linalg.eigvalsh(D.sqrt()[:, None] * lap * D.sqrt())[-1])
        assert largest <= DEEPEST * (1 + 1e-12) and (spread > 1 or largest > DEEPEST * (1 - 1e-12))


@pytest.mark.parametrize("graph", ["ring(6)", "star(5)", "grid(2x3)"])
@pytest.mark.parametrize(
    "constants",
    [{"gamma": 0.9, "alpha": 0.045, "c_s": 0.06, "c_u": 1.5}, {"gamma": 1.1, "alpha": 0.12, "c_s": 0.12, "c_u": 1.1}],
    ids=str,
)
@KINDS
def test_special_initialisation_is_lepdo_with_its_momentum(kind, graph, constants):
    net, n = StackedNetwork(graph), topology(graph).n
    own = Lasso(n, 8, 20, 0.1).sample([0])
    problem = LeastSquares(own.A[:, :1].expand_as(own.A).contiguous(), own.b, own.reg)
    optimizer = MiLoDo(graph, hidden=3, inputs="relative", momentum=0.97, **kind).double()
    constants = constants | {"gamma": constants["gamma"] * optimizer.settings().reach / 1.2}
    special_initialisation(optimizer, net, **constants)
    L = float(problem.lipschitz().max())
    method = LEPDO(**constants | {"gamma": constants["gamma"] / L}, lookahead=optimizer.lookahead)
    a, b = after(optimizer, problem, net, 60), after(method, problem, net, 60)
    torch.testing.assert_close(a.x, b.x, rtol=0, atol=1e-12)
    torch.testing.assert_close(a.y, b.y, rtol=0, atol=1e-11 * L)


def test_without_momentum_constants_of_one_are_exact_diffusion_here_too():
    net, problem = StackedNetwork("ring(6)"), Lasso(6, 8, 20, 0.0).sample([0])
    gamma = 0.5 / float(problem.lipschitz().max())
    optimizer = MiLoDo("ring(6)", hidden=3, momentum=0.5, reach=gamma).double()
    a = after(special_initialisation(optimizer, net, gamma), problem, net, 80)
    b = after(LEPDO(gamma=gamma), problem, net, 80)
    torch.testing.assert_close(
        a.x, b.x, rtol=0, atol=1e-5
    )  # p and β lie at the edge of the region, where a sigmoid only tends to


def test_constants_outside_the_region_are_refused_in_a_sentence():
    net = StackedNetwork("ring(6)")
    optimizer = MiLoDo("ring(6)", hidden=3, inputs="relative", momentum=0.97)
    for constants, said in (
        ({"gamma": 2.0, "alpha": 0.04, "c_s": 0.06, "c_u": 1.5}, "gamma is 2, and the region of stable weights has 0.45 to 1.8"),
        ({"gamma": 1.0, "alpha": 0.04, "c_s": 1.0, "c_u": 1.5}, "gamma c_u / c_s is 1.5"),
        ({"gamma": 1.0, "alpha": 0.04, "c_s": 0.06, "c_u": 2.2}, "share of its largest value, is 1.16"),
        (
            {"gamma": 1.0, "alpha": 0.015, "c_s": 0.06, "c_u": 1.5},
            "alpha is 0.015, and the region of stable weights has 0.02 to 1",
        ),
    ):
        with pytest.raises(InvalidInput, match=said):
            special_initialisation(optimizer, net, **constants)
    with pytest.raises(InvalidInput, match="is a momentum, which this MiLoDo does not have"):
        special_initialisation(MiLoDo("ring(6)", hidden=3), net, 0.05, alpha=0.5)
    for momentum, reach in ((1.0, 1.2), (-0.1, 1.2), (0.9, 0.0), (0.9, float("inf"))):
        with pytest.raises(InvalidInput):
            Region(momentum, reach)


def learned(graph, *, every=10, disturb=0.3, inputs="relative", **options):
    """One whose networks look at what they see, around constants with momentum."""
    torch.manual_seed(0)
    optimizer = MiLoDo(graph, hidden=6, inputs=inputs, momentum=0.9, every=every, **options).double()
    constants = {"c_s": 0.2, "c_u": 1.4, "alpha": 0.2}
    return disturbed(optimizer, 0.8 * optimizer.settings().reach, disturb, **constants)


@pytest.mark.parametrize("graph", ["ring(6)", "star(6)", "grid(2x3)"])
@KINDS
def test_a_limit_is_primal_and_dual_optimal_and_later_iterations_send_one_vector(kind, graph):
    problem, net = Lasso(6, 8, 30, 0.1).sample([0, 1]), StackedNetwork(graph)
    optimizer = learned(graph, **kind)
    last = after(optimizer, problem, net, 3000)
    assert net.traffic.rounds == 3000 + WARM_UP
    x = problem.everywhere(optimum(problem).x)
    assert float((last.x - x).abs().max()) < 1e-10
    assert float(problem.reg.distance(x, -problem.grad(x) - last.y).max()) < 1e-9
    assert float(last.y.sum(-2).abs().max()) < 1e-11


def test_other_units_do_not_change_what_it_does():
    net, problem = StackedNetwork("star(6)"), Lasso(6, 12, 4, 0.1).sample([0, 1])
    a, c = 37.0, 0.003
    other = LeastSquares(a * problem.A, c * problem.b, L1(0.1 * a * c))
    optimizer = learned("star(6)")
    with torch.no_grad():
        for one, two in itertools.islice(zip(iterate(optimizer, problem, net), iterate(optimizer, other, net), strict=False), 60):
            torch.testing.assert_close(two.x * a / c, one.x, rtol=1e-8, atol=1e-8)


def test_names_of_nodes_do_not_matter():
    """Nodes in another order, with the weights, the data and the first hidden states of each."""
    graph, problem, place, other, moved, order = relabelled()
    top = topology(graph)
    one, two = learned(graph), MiLoDo(other, hidden=6, inputs="relative", momentum=0.9, every=10).double()
    # What a slot of a node is for changes with the names of its neighbours, so its row and its column do.
    slots = [[place[j] for i, j in top.arcs if i == old] for old in order]
    state = one.state_dict()
    for name, value in state.items():
        value = value[order].clone()
        for row, neighbours in enumerate(slots):
            by_new = sorted(range(len(neighbours)), key=neighbours.__getitem__)
            if name in ("phi_s.w_x", "phi_u.w_x"):
                value[row][:, : len(by_new)] = value[row][:, by_new]
            if name in ("phi_s.w_2", "phi_s.b_2"):
                value[row][: len(by_new)] = value[row][by_new]
        state[name] = value
    two.load_state_dict(state)
    first = StackedNetwork(graph).randn(6, 6, 5, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "first_hidden", lambda x0, *_: hidden(first, x0))
        a = after(one, problem, StackedNetwork(graph), 80)
        patch.setattr(weights, "first_hidden", lambda x0, *_: hidden(first[order], x0))
        b = after(two, moved, StackedNetwork(other), 80)
    torch.testing.assert_close(b.x, a.x[:, order], rtol=0, atol=1e-10)


def hidden(start, x0):
    from milodo.learned.per_node import Hidden

    return Hidden(*(part.expand(*x0.shape[:-2], *part.shape) for part in start.unbind(1)))


def test_the_part_of_some_nodes_has_their_weights():
    graph = "erdos_renyi(6,0.5,seed=2)"
    optimizer = learned(graph)
    part = optimizer.at([1, 4])
    assert part.settings() == optimizer.settings()
    assert torch.equal(part.phi_m.w_2, optimizer.phi_m.w_2[[1, 4]])


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("outage", [0.0, 0.4])
def test_short_messages_and_failing_links_lead_to_the_same_point(bits, outage):
    problem, graph = Lasso(6, 8, 30, 0.1).sample([0]), "star(6)"
    net = degraded(StackedNetwork(graph), outage=outage, seed=3)
    method = learned(graph)
    last = after(method if bits is None else method.compressed(Bits(bits)), problem, net, 4000)
    state = last if bits is None else last.inner
    assert float((state.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-8
    assert float(state.y.sum(-2).abs().max()) < 1e-11 and bool((state.memory.p1 > 0).all())


def test_edges_that_failed_while_nodes_agreed_go_on_trying():
    problem, graph = Lasso(4, 5, 30, 0.1).sample([0]), "star(4)"
    net = degraded(StackedNetwork(graph), outage=0.97, seed=0)
    optimizer = learned(graph, every=2, anneal_after=0)
    early, late = after(optimizer, problem, net, WARM_UP), after(optimizer, problem, net, 800)
    assert not bool((early.memory.p1 > 0).all()) and bool((late.memory.p1 > 0).all())
    assert torch.equal(early.memory.p1[early.memory.p1 > 0], late.memory.p1[early.memory.p1 > 0])


def test_the_meta_gradient_reaches_every_parameter_that_is_read():
    graph = "ring(5)"
    optimizer = learned(graph, every=1)
    problem, net = Lasso(5, 4, 6, 0.1).sample([0, 1]), StackedNetwork(graph)
    last = next(itertools.islice(iterate(optimizer, problem, net), 6, None))
    last.x.square().mean().backward()
    for name, parameter in optimizer.named_parameters():
        assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all()), name
        assert float(parameter.grad.abs().max()) > 0, name


def test_scaled_inputs_need_no_curvature():
    problem, net = Logistic(6, 5, 20, 0.02).sample([0]), StackedNetwork("ring(6)")
    optimizer = learned("ring(6)", inputs="scaled", reach=1.2 / float(problem.lipschitz().max()))
    result = solve(optimizer, problem, net, Stop(steps=4000, tolerance=1e-10, every=50))
    assert float((result.x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-6


def test_the_ranges_are_what_the_region_says():
    region, ends = Region(0.98, 1.5), torch.tensor([0.0, 1.0], dtype=torch.float64)
    for values, low, high in (
        (region.step_size(ends, ends + 1.5), LEAST_STEP * 1.5, 1.5),
        (region.ratio(ends), 1.5 / 0.02 / SPREAD, 1.5 / 0.02),
        (region.mixing(ends), 1 / SPREAD, 1.0),
        (
            region.momentum(ends, ends * 0 + 0.02),
            0.0,
            1 - float(region.least_alpha(torch.tensor(0.02, dtype=torch.float64))),
        ),
    ):
        torch.testing.assert_close(values, torch.tensor([low, high], dtype=torch.float64), rtol=1e-12, atol=1e-12)
