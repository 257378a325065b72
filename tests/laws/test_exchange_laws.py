"""Compressed differences: every registered method, whatever it sends, by every compressor."""

from __future__ import annotations

import itertools

import pytest
import torch
from test_algorithm_laws import close, run, start, tensors

from milodo.algorithms import METHODS, AcceleratedED
from milodo.algorithms.base import requirements
from milodo.errors import InvalidInput
from milodo.loop import iterate
from milodo.metrics import consensus_error
from milodo.network import Bits, Cast, Coded, Levels, Outage, StackedNetwork, StackedObserver, TopK, Traffic, degraded
from milodo.network.requirement import Requirement
from milodo.problems import Lasso, optimum
from milodo.synchronise import Synchronised
from milodo.topology import Topology
from milodo.tree import leaves, tree_map

LOSSLESS = Cast(torch.float64)
GOSSIP = [name for name in METHODS if Requirement.RELIABLE_LINKS not in requirements(METHODS[name])]


@pytest.fixture(scope="module", params=sorted(METHODS))
def name(request) -> str:
    """Every registered method."""
    return request.param


@pytest.fixture(scope="module")
def problem():
    return Lasso(6, 8, 20, 0.1).sample([0, 1])


@pytest.mark.parametrize("graph", ["ring(6)", "star(6)", "erdos_renyi(6,0.5,seed=1)"])
def test_where_nothing_is_lost_the_trajectory_is_the_methods_own(name, build, problem, graph):
    method, x0 = build(name, problem), start(problem)
    bare, nets = run(method, problem, StackedNetwork(graph), 20, x0), [StackedNetwork(graph) for _ in range(2)]
    remembering = run(method.compressed(LOSSLESS), problem, nets[0], 20, x0)
    run(method, problem, nets[1], 20, x0)
    # z - ẑ + ẑ is z up to rounding, which twenty steps may multiply.
    own = leaves(remembering.inner)
    for field, other in leaves(bare).items():
        if other is None:  # there is no link where nothing is compressed
            continue
        one = own[field]
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=lambda text, field=field: f"{field}: {text}")
    assert vars(nets[0].traffic) == vars(nets[1].traffic)


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].exact])
def test_ten_bits_reach_the_certified_optimum(name, build, problem):
    net, best = StackedNetwork("ring(6)"), optimum(problem).x.unsqueeze(-2)
    looks = itertools.islice(iterate(build(name, problem).compressed(Bits(10)), problem, net), 0, 1301, 25)
    assert any((state.x - best).norm(dim=-1).max() < 1e-10 for state in looks)


@pytest.mark.parametrize("outage", [0.0, 0.3])
@pytest.mark.parametrize("form", [Bits(4), Bits(9), Coded(Levels(5)), Cast(torch.float16), TopK(0.5)], ids=str)
def test_replicas_at_both_ends_are_equal_at_every_step(name, build, problem, form, outage):
    if outage and name not in GOSSIP:
        return
    net = degraded(StackedNetwork("grid(2x3)"), outage=outage)
    routes = net.routes
    for state in itertools.islice(iterate(build(name, problem).compressed(form), problem, net, x0=start(problem)), 8):
        hops = iter(itertools.cycle(routes.up))
        for slot in state.replicas:
            if slot.received is None:  # a total: one replica, the same at every node
                assert torch.equal(slot.sent, slot.sent[..., :1, :].expand_as(slot.sent))
                continue
            if name == "flood-apg":  # everybody has a replica of everybody
                assert torch.equal(slot.received, slot.sent)
                continue
            by_node = slot.sent.shape[-2] == net.n and slot.received.shape[-2] == len(net.arcs)
            route = next(hops) if name not in GOSSIP else routes.of_nodes if by_node else routes.of_arcs
            assert torch.equal(slot.received, slot.sent.index_select(-2, route.rows))


@pytest.mark.parametrize("name", GOSSIP)
def test_lost_messages_change_no_replica(name, build, problem):
    net = StackedNetwork("ring(6)").through(Outage(0.5, seed=1))
    method = build(name, problem).compressed(Bits(8))
    states = list(itertools.islice(iterate(method, problem, net, x0=start(problem)), 4))
    first = net.topology.arcs
    up = net.outage.up(len(net.topology.edges), 3, 0)
    edges = [net.topology.edges.index((min(arc), max(arc))) for arc in first]
    before, after = states[2].replicas[0].sent, states[3].replicas[0].sent
    moved = (before != after).any(-1).any(0).tolist()
    assert moved == [bool(up[edge]) for edge in edges] and not all(moved)


def test_bytes_are_what_the_format_sends(name, build, problem):
    net = StackedNetwork("ring(6)")
    method = build(name, problem).compressed(Bits(4))
    states = iterate(method, problem, net)
    next(states)
    assert net.traffic == Traffic()  # to begin sends nothing
    coded = next(states).replicas[0].sent.shape[-1]
    assert net.traffic.rounds == method.cost(net, 1).rounds and net.traffic.floats == method.cost(net, problem.d).numbers
    assert coded == {"tree-newton": 8 * 9 // 2, "gradient-tracking": 2 * 8}.get(name, 8)  # half a matrix, two vectors, or one
    scalars = 8 * (net.traffic.floats // net.traffic.messages - coded)  # numbers that arrive as they are
    assert net.traffic.bytes == net.traffic.messages * (4 + coded // 2 + scalars)  # numbers of four bits, and their scale


def test_relabelling_nodes_relabels_the_trajectory(name, build, problem):
    net = StackedNetwork("erdos_renyi(6,0.5,seed=1)")
    order = (3, 0, 5, 1, 4, 2)
    back = [order.index(i) for i in range(6)]
    renamed = Topology.from_edges((order[i], order[j]) for i, j in net.topology.edges)
    # A tree's partial sums depend on who is whose parent, which names decide: there sums are compared, not how they are rounded.
    form = LOSSLESS if name not in GOSSIP else Bits(6)
    method, x0 = build(name, problem).compressed(form), start(problem)
    state = run(method, problem, net, 10, x0)
    moved = run(method, problem.at(back), StackedNetwork(renamed), 10, x0[..., back, :])
    torch.testing.assert_close(moved.x, state.x[..., back, :], rtol=1e-9, atol=1e-9)


def test_a_batch_of_instances_is_each_alone(name, build, problem):
    net, method, x0 = StackedNetwork("ring(6)"), build(name, problem).compressed(Bits(6)), start(problem)
    together = run(method, problem, net, 10, x0)
    for k in range(2):
        alone = type(problem)(problem.A[k], problem.b[k], problem.reg)
        # The same arithmetic in another order may round a symbol the other way; ten steps do not.
        close(tree_map(lambda leaf, k=k: leaf[k], together.inner), run(method, alone, net, 10, x0[k]).inner)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_and_the_shape_of_the_state_are_kept(name, build, dtype):
    problem = Lasso(6, 8, 20, 0.1).sample([0, 1], dtype=dtype)
    method = build(name, problem).compressed(Bits(5))
    shapes = None
    for state in itertools.islice(iterate(method, problem, StackedNetwork("ring(6)", dtype=dtype)), 4):
        assert type(state) is Synchronised and type(state.inner) is method.State and state.inner._fields[0] == "x"
        assert all(leaf.dtype == dtype for leaf in tensors(state))
        found = {key: getattr(leaf, "shape", None) for key, leaf in leaves(state).items()}
        assert shapes in (None, found)
        shapes = found


@pytest.mark.parametrize("outage", [0.0, 0.4])
@pytest.mark.parametrize("form", [Bits(2), Bits(4), TopK(0.3)], ids=str)
def test_duals_sum_to_zero_whatever_is_rounded_or_lost(form, outage):
    problem = Lasso(10, 20, 5, 0.1).sample([0])
    net = degraded(StackedNetwork("erdos_renyi(10,0.4,seed=1)"), outage=outage)
    method = AcceleratedED(gamma=0.5 / float(problem.lipschitz().max()), K=2).compressed(form)
    for state in itertools.islice(iterate(method, problem, net), 30):
        size = 1 + float(state.inner.y.abs().max())
        assert float(state.inner.y.sum(-2).abs().max()) < 1e-11 * size


def test_other_units_say_the_same_symbols(name, build, problem):
    """Targets times 2^300: every message has the same bits but for the power of its scale."""
    unit = 2.0**300
    other = type(problem)(problem.A, problem.b * unit, type(problem.reg)(problem.reg.lam * unit))
    method, net = build(name, problem).compressed(Bits(4)), StackedNetwork("ring(6)")
    one, two = run(method, problem, net, 10), run(method, other, net, 10)
    assert torch.equal(one.x * unit, two.x)


def test_what_cannot_be_is_refused_in_a_sentence(problem, build):
    method = METHODS["prox-ed"](gamma=0.01)
    remembers = method.compressed(Bits(4))
    with pytest.raises(InvalidInput, match="compressed differences already"):
        remembers.compressed(Bits(4))
    with pytest.raises(InvalidInput, match="Give one of them"):
        run(remembers, problem, degraded(StackedNetwork("ring(6)"), messages="float16"), 1)
    states = iterate(method.compressed(Bits(4)), problem, StackedNetwork("ring(6)"), x0=start(problem).requires_grad_())
    with pytest.raises(InvalidInput, match="cannot be learned through"):
        next(states), next(states)
    for bits in (1, 11, 2.5):
        with pytest.raises(InvalidInput):
            Bits(bits)
    for levels in (1, 4, 257, 2.5):
        with pytest.raises(InvalidInput):
            Levels(levels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "bits", "arrived"), [("tree-apg", 4, 100), ("accelerated-ed", 6, 900)])
def test_what_auto_takes_stays_where_its_precision_ends(name, bits, arrived, dtype):
    """It drifts neither off nor apart, and its duals still sum to zero; over 100,000 iterations: benchmarks/parts.py drift."""
    family, observer = Lasso(6, 8, 20, 0.1), StackedObserver()
    judge, problem = family.sample([0, 1]), family.sample([0, 1], dtype=dtype)
    net, best, eps = StackedNetwork("ring(6)", dtype=dtype), optimum(judge), torch.finfo(dtype).eps
    method = METHODS[name].safe(float(judge.lipschitz().max()), net).compressed(Bits(bits))
    with torch.no_grad():
        for state in itertools.islice(iterate(method, problem, net), arrived, arrived + 300, 25):
            gap = judge.objective(state.x.double().mean(-2), observer) - best.value
            assert float((gap / best.value).abs().max()) < 10 * eps
            assert float(consensus_error(state.x, observer).max()) < 10 * eps  # of numbers of size one
            if name == "accelerated-ed":  # each step of a dual that is still moving may round by eps
                assert float(state.inner.y.sum(-2).abs().max()) < 1000 * eps * float(state.inner.y.abs().max())
