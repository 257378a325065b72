"""The learned optimizer is an ordinary Algorithm, equals Exact Diffusion where it starts, and keeps what Theorem 2 needs."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from milodo.algorithms import ProxED, TreeAPG
from milodo.algorithms.rule import WARM_UP
from milodo.errors import InvalidInput
from milodo.learned import LEARNED, PLAIN, Activations, BaseRules, Bounded, LPGExtra, MiLoDo, Plus, Shared
from milodo.learned.per_node import PerNodeLSTM
from milodo.loop import iterate
from milodo.network import Bits, StackedNetwork
from milodo.problems import L1, Lasso, LeastSquares, Logistic, Zero, optimum
from milodo.topology import EXAMPLES, topology

sys.path.insert(0, str(Path(__file__).parent.parent))
from disturb import awake, awakened, disturbed

ROUNDING = 1e-11
"""Of 100 steps in fp64 on iterates of size 1."""
WIDE = Activations(Bounded(1e-3, 0.5), Bounded(1e-3, 50.0), Bounded(1e-3, 0.4))


def made(graph, activations=WIDE, *, seed=0, gamma=None, disturb=0.0, every=1):
    """A MiLoDo in fp64; with gamma specially initialised, its final layers then disturbed so that they do look at their input."""
    torch.manual_seed(seed)
    optimizer = MiLoDo(graph, activations=activations, seed=seed, every=every).double()
    return optimizer if gamma is None else disturbed(optimizer, gamma, disturb)


def states(algorithm, problem, net, count):
    with torch.no_grad():
        return [state for _, state in zip(range(count), iterate(algorithm, problem, net), strict=False)]


def test_a_network_is_an_lstm_cell_and_two_layers_at_every_node_and_coordinate():
    torch.manual_seed(0)
    n, inputs, outputs, hidden, d = 3, 2, 4, 5, 6
    network = PerNodeLSTM(n, inputs, outputs, hidden)
    v, h, c = torch.randn(2, n, inputs, d), torch.randn(2, n, hidden, d), torch.randn(2, n, hidden, d)
    out, h_next, c_next = network(v, h, c)
    for i in range(n):
        cell, first, second = nn.LSTMCell(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)
        cell.load_state_dict(
            {"weight_ih": network.w_x[i], "weight_hh": network.w_h[i], "bias_ih": network.b_x[i], "bias_hh": network.b_h[i]}
        )
        first.load_state_dict({"weight": network.w_1[i], "bias": network.b_1[i]})
        second.load_state_dict({"weight": network.w_2[i], "bias": network.b_2[i]})
        for k in range(d):
            h_cell, c_cell = cell(v[:, i, :, k], (h[:, i, :, k], c[:, i, :, k]))
            torch.testing.assert_close(h_next[:, i, :, k], h_cell)
            torch.testing.assert_close(c_next[:, i, :, k], c_cell)
            torch.testing.assert_close(out[:, i, :, k], second(first(h_cell).relu()))


def test_a_ring_node_has_the_papers_number_of_parameters():
    optimizer = MiLoDo("ring(10)")
    networks = (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u)
    counts = [sum(p.numel() for p in network.parameters()) // 10 for network in networks]
    assert counts == [2361, 2382, 2382]


@pytest.mark.parametrize("graph", EXAMPLES)
@pytest.mark.parametrize("activations", [PLAIN, WIDE], ids=["plain", "bounded"])
def test_special_initialisation_without_r_is_exact_diffusion(graph, activations):
    n, gamma = topology(graph).n, 0.05
    problem, net = Lasso(n, 6, 12, 0.0).sample([0, 1]), StackedNetwork(graph)
    learned = states(made(graph, activations, gamma=gamma), problem, net, 60)
    handcrafted = states(ProxED(gamma=gamma), problem, net, 60)
    assert max(float((a.x - b.x).abs().max()) for a, b in zip(learned, handcrafted, strict=True)) < ROUNDING


@pytest.mark.parametrize("graph", EXAMPLES)
def test_dual_variables_sum_to_zero_at_every_step(graph):
    problem, net = Lasso(topology(graph).n, 5, 8, 0.1).sample([0]), StackedNetwork(graph)
    for state in states(made(graph, seed=1), problem, net, 20):
        scale = max(1.0, float(state.y.abs().max()))
        assert float(state.y.sum(-2).abs().max()) < ROUNDING * scale


def test_a_limit_of_the_iteration_is_primal_and_dual_optimal():
    """Theorem 2, with networks whose weights really vary: x_i = x*, and y_i + ∇f_i(x*) in -∂r(x*)."""
    graph = "ring(6)"
    problem, net = Lasso(6, 8, 30, 0.1).sample([0, 1]), StackedNetwork(graph)
    optimizer = made(graph, gamma=0.1, disturb=0.05)
    *_, before, last = states(optimizer, problem, net, 2500)
    assert float((last.x - before.x).abs().max()) < 1e-12  # it is a limit
    assert float((last.memory.hidden.h_m - before.memory.hidden.h_m).abs().max()) < 1e-9
    best = optimum(problem)
    x = problem.everywhere(best.x)
    assert float((last.x - x).abs().max()) < 1e-10
    assert float(problem.reg.distance(x, -problem.grad(x) - last.y).max()) < 1e-9


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_bounded_outputs_stay_inside_their_bounds_whatever_the_input(size):
    outputs = size * torch.randn(1000, dtype=torch.float64)
    p = Bounded(0.1, 2.0)(outputs)
    assert bool(((p >= 0.1) & (p <= 2.0)).all())


@pytest.mark.parametrize("activation", [Bounded(0.1, 2.0), PLAIN.m, PLAIN.s])
def test_an_activation_undoes_its_inverse(activation):
    p = torch.linspace(0.2, 1.9, 20, dtype=torch.float64)
    torch.testing.assert_close(activation(activation.inverse(p)), p)


def test_bounds_that_theorem_2_forbids_are_refused():
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (0.1, float("inf")), (float("nan"), 1.0)):
        with pytest.raises(InvalidInput, match="Theorem 2"):
            Bounded(low, high)
    with pytest.raises(InvalidInput, match="Widen the bounds"):
        made("ring(4)", gamma=0.9)


def test_information_travels_two_hops_a_step():
    """One round carries z, the other p̃, which depends on its sender's differences: through p̃ a change reaches y one hop on."""
    graph, n = "path(8)", 8
    problem = Lasso(n, 5, 8, 0.1).sample([0])
    other = Lasso(n, 5, 8, 0.1).sample([0])
    other.b[:, 0] += 1
    net, optimizer = StackedNetwork(graph), made(graph)
    for k, (a, b) in enumerate(zip(states(optimizer, problem, net, 4), states(optimizer, other, net, 4), strict=True)):
        differs = ((a.x - b.x).abs().amax((0, 2)) > 0) | ((a.y - b.y).abs().amax((0, 2)) > 0)
        assert not bool(differs[optimizer.cost(net, 1).rounds * k + 1 :].any())
        assert bool(differs[: min(n, k + 1)].all()) or k == 0


def test_declared_rounds_are_counted_rounds():
    problem, net = Lasso(5, 4, 6, 0.1).sample([0]), StackedNetwork("star(5)")
    states(made("star(5)"), problem, net, 8)
    assert net.traffic.rounds == 2 * 7


def test_a_batch_of_instances_is_each_alone_and_dtype_is_kept():
    graph, family = "star(5)", Lasso(5, 4, 6, 0.1)
    net, optimizer = StackedNetwork(graph), made(graph)
    both = states(optimizer, family.sample([3, 4]), net, 10)
    for b, seed in enumerate((3, 4)):
        alone = states(optimizer, family.sample([seed]), net, 10)
        torch.testing.assert_close(both[-1].x[b : b + 1], alone[-1].x, rtol=0, atol=1e-12)
    single = states(optimizer.float(), family.sample([3], dtype=torch.float32), StackedNetwork(graph, dtype=torch.float32), 3)
    assert {part.dtype for part in single[-1] if isinstance(part, torch.Tensor)} == {torch.float32}


def test_the_part_of_some_nodes_computes_what_the_whole_computes_there():
    graph = "erdos_renyi(6,0.5,seed=2)"
    optimizer, nodes = made(graph), [1, 4]
    part = optimizer.at(nodes)
    v, h, c = (torch.randn(2, 6, size, 7, dtype=torch.float64) for size in (2, 20, 20))
    whole, held = optimizer.phi_m(v, h, c), part.phi_m(v[:, nodes], h[:, nodes], c[:, nodes])
    for a, b in zip(whole, held, strict=True):
        torch.testing.assert_close(a[:, nodes], b)


def test_the_meta_gradient_reaches_every_parameter_that_is_read():
    graph = "ring(5)"
    problem, net, optimizer = Lasso(5, 4, 6, 0.1).sample([0, 1]), StackedNetwork(graph), made(graph)
    *_, last = itertools.islice(iterate(optimizer, problem, net), 4)
    last.x.square().mean().backward()
    for name, parameter in optimizer.named_parameters():
        assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all()), name
        assert float(parameter.grad.abs().max()) > 0, name


def test_another_topology_and_a_graph_without_edges_are_refused():
    problem = Lasso(4, 3, 5, 0.1).sample([0])
    with pytest.raises(InvalidInput, match=r"made for ring\(4\) and cannot run on path\(4\)"):
        next(iterate(made("ring(4)"), problem, StackedNetwork("path(4)")))
    with pytest.raises(InvalidInput, match="has no edges"):
        MiLoDo("path(1)")


@pytest.mark.parametrize("graph", ["ring(6)", "star(5)"])
def test_networks_in_fp32_change_neither_the_sum_of_the_duals_nor_the_limit_of_fp64_iterates(graph):
    n = topology(graph).n
    problem, net = Lasso(n, 8, 30, 0.1).sample([0, 1]), StackedNetwork(graph)
    optimizer = made(graph, gamma=0.1, disturb=0.05).float()
    *_, last = states(optimizer, problem, net, 2500)
    assert (last.x.dtype, last.y.dtype, last.memory.hidden.h_m.dtype) == (torch.float64, torch.float64, torch.float32)
    assert float(last.y.sum(-2).abs().max()) < ROUNDING * max(1.0, float(last.y.abs().max()))
    best = optimum(problem)
    assert float((last.x - problem.everywhere(best.x)).abs().max()) < 1e-10  # far below what fp32 could tell apart
    assert net.traffic.bytes == 2499 * len(net.arcs) * problem.d * (8 + 4)  # a step sends z in fp64 and p̃ in fp32


@pytest.mark.parametrize("graph", ["ring(6)", "star(5)", "grid(2x3)"])
@pytest.mark.parametrize("p2", [0.1, 0.17])
def test_disagreement_dies_out_if_and_only_if_the_weights_leave_room(graph, p2):
    """p p1 + 2 p2 < 4 / l for constant weights, l the largest eigenvalue of the Laplacian (docs/training.md)."""
    top = topology(graph)
    net, p = StackedNetwork(graph), 0.05
    laplacian = torch.diag(torch.tensor(top.degrees, dtype=torch.float64))
    for i, j in top.edges:
        laplacian[i, j] = laplacian[j, i] = -1
    edge = 4 / float(torch.linalg.eigvalsh(laplacian)[-1])
    for share, dies in ((0.98, True), (1.02, False)):
        p1 = (share * edge - 2 * p2) / p
        nothing = LeastSquares(torch.full((top.n, 1, 2), 1e-30).double(), torch.zeros(top.n, 1).double(), Zero())
        bounds = Activations(Bounded(1e-3, 1.0), Bounded(1e-3, 1e3), Bounded(1e-3, 1.0))
        rule = MiLoDo(graph, activations=bounds).double()
        with torch.no_grad():
            for network, activation, value in zip(
                (rule.phi_m, rule.phi_s, rule.phi_u),
                (bounds.m, bounds.s, bounds.u),
                (p, p1, p2),
                strict=True,
            ):
                network.w_2.zero_()
                network.b_2.copy_(activation.inverse(torch.full_like(network.b_2, value)))
            start = torch.randn(top.n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            for k, state in enumerate(iterate(rule, nothing, net, x0=start)):
                if k == 600:
                    spread = float((state.x - state.x.mean(-2, keepdim=True)).abs().max())
                    break
        assert (spread < 1e-2) == dies and (spread > 1e2) == (not dies), spread


@pytest.mark.parametrize("graph", ["ring(6)", "star(5)"])
def test_weights_kept_for_some_iterations_have_the_same_limit_and_send_less(graph):
    """every = E: the networks run WARM_UP times, then in each E-th step; in between p is what it was."""
    every, count = 7, 4000
    problem, net = Lasso(topology(graph).n, 8, 30, 0.1).sample([0, 1]), StackedNetwork(graph)
    optimizer, always = (made(graph, gamma=0.1, disturb=0.05, every=period) for period in (every, 1))
    history = states(optimizer, problem, net, count + 1)
    ran = [k for k in range(count) if k < WARM_UP or k % every == 0]
    assert net.traffic.rounds == count + len(ran)
    for k in (WARM_UP, WARM_UP + 1, 200, 201):  # a step that keeps its weights hands on the very tensors
        now, then = history[k + 1].memory, history[k].memory
        kept = [now.p is then.p, now.p1 is then.p1, now.hidden.h_u is then.hidden.h_u]
        assert kept == [k not in ran] * 3, k
    at_start = states(always, problem, net, WARM_UP + 1)
    assert all(torch.equal(a.x, b.x) for a, b in zip(history[: WARM_UP + 1], at_start, strict=True))
    assert max(float(s.y.sum(-2).abs().max()) / max(1.0, float(s.y.abs().max())) for s in history[::100]) < ROUNDING
    assert float((history[-1].x - problem.everywhere(optimum(problem).x)).abs().max()) < 1e-10
    assert optimizer.at([0, 2]).settings().every == every


ALL = {
    "milodo": lambda graph: made(graph),
    "lpg-extra": lambda graph: LPGExtra(graph, layers=20, gamma=0.02).double(),
    "base-rules": lambda graph: BaseRules(graph, d=5, hidden=7).double(),
    "plus": lambda graph: awake(Plus(graph, hidden=5)).double(),
    "shared": lambda graph: awakened(Shared(graph, hidden=5)).double(),
}
assert set(ALL) == set(LEARNED)


def smooth(n, count=1):
    """Problems that all learned methods accept."""
    return Lasso(n, 5, 8, 0.0).sample(range(count))


@pytest.mark.parametrize("kind", LEARNED)
def test_every_learned_method_hears_only_its_neighbours(kind):
    torch.manual_seed(0)
    graph, n = "path(9)", 9
    problem, other = smooth(n), smooth(n)
    other.b[:, 0] += 1
    net, optimizer = StackedNetwork(graph), ALL[kind](graph)
    for k, (a, b) in enumerate(zip(states(optimizer, problem, net, 4), states(optimizer, other, net, 4), strict=True)):
        differs = (a.x - b.x).abs().amax((0, 2)) > 0
        assert not bool(differs[optimizer.cost(net, 1).rounds * k + 1 :].any())
        assert k == 0 or bool(differs[0])


@pytest.mark.parametrize("kind", LEARNED)
@pytest.mark.parametrize("graph", ["ring(6)", "star(5)", "grid(2x3)"])
def test_every_learned_method_counts_its_rounds_and_treats_instances_alone(kind, graph):
    torch.manual_seed(0)
    n = topology(graph).n
    net, optimizer = StackedNetwork(graph), ALL[kind](graph)
    both = states(optimizer, smooth(n, 2), net, 8)
    assert net.traffic.rounds == 7 * optimizer.cost(net, 1).rounds
    alone = states(optimizer, Lasso(n, 5, 8, 0.0).sample([1]), net, 8)
    # Relative too: networks nobody has trained let x grow, and batched products round differently on every processor.
    torch.testing.assert_close(both[-1].x[1:], alone[-1].x, rtol=1e-12, atol=1e-12)
    assert type(both[-1]) is optimizer.State


@pytest.mark.parametrize("kind", LEARNED)
def test_parts_of_every_learned_method_hold_the_weights_of_their_nodes(kind):
    torch.manual_seed(0)
    graph = "star(5)"
    optimizer = ALL[kind](graph)
    part = optimizer.at([1, 3])
    assert part.dtype == optimizer.dtype
    for name, value in optimizer.state_dict().items():
        held = part.state_dict()[name]
        assert torch.equal(held, value if kind in ("lpg-extra", "plus", "shared") else value[[1, 3]])


def test_before_training_milodo_plus_is_the_method_it_sits_on():
    problem, net = Lasso(6, 12, 9, 0.05).sample([0, 1]), StackedNetwork("grid(2x3)")
    plain, plus = (states(method, problem, net, 60) for method in (TreeAPG(), Plus("ring(3)").double()))
    for a, b in zip(plain, plus, strict=True):
        torch.testing.assert_close(a.x, b.x, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("bits", [None, 6])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", [Lasso(6, 8, 10, 0.05), Logistic(6, 5, 20, 0.02)], ids=lambda family: family.name)
def test_milodo_plus_finds_the_certified_optimum_whatever_its_weights(family, seed, bits):
    torch.manual_seed(seed)
    problem, net = family.sample([seed]), StackedNetwork("star(6)")
    method = awake(Plus("ring(3)"), 3.0)
    method, best = method if bits is None else method.compressed(Bits(bits)), problem.everywhere(optimum(problem).x)
    with torch.no_grad():
        looks = itertools.islice(iterate(method, problem, net), 0, 1500, 25)
        # The optimum of logistic regression is certified to 1e-18 in value, and so to about 1e-8 in x.
        assert any(float((state.x - best).abs().max()) < 1e-7 for state in looks)


def test_other_units_do_not_change_what_milodo_plus_does():
    torch.manual_seed(0)
    method, net = awake(Plus("ring(3)")).double(), StackedNetwork("star(6)")
    problem = Lasso(6, 8, 10, 0.05).sample([0])
    scaled = LeastSquares(problem.A * 2.0**-30, problem.b * 2.0**40, L1(0.05 * 2.0**10))
    for a, b in zip(states(method, problem, net, 40), states(method, scaled, net, 40), strict=True):
        torch.testing.assert_close(a.x, b.x * 2.0**-70, rtol=1e-9, atol=1e-9)


def test_all_nodes_of_milodo_plus_hold_the_same():
    torch.manual_seed(0)
    last = states(awake(Plus("ring(3)")), Lasso(6, 8, 10, 0.05).sample([0]), StackedNetwork("path(6)"), 30)[-1]
    assert torch.equal(last.x, last.x[:, :1].expand_as(last.x)) and last.memory.h.shape == (1, 6, 16, 8)
