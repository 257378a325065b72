"""Graphs that change with the iteration: who may hear whom, what sums stay, both runtimes, and who refuses them."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scheduled import CHANGING, FEW, REFUSE
from test_algorithm_laws import close, run, start, tensors

from milodo.algorithms import METHODS, AcceleratedED, ProxED
from milodo.algorithms.auto import learn
from milodo.config import load_experiment
from milodo.errors import InvalidInput
from milodo.learned import LEARNED
from milodo.loop import Stop, iterate, solve
from milodo.network import Bits, Outage, StackedNetwork, StackedObserver, degraded
from milodo.network.exchange import named
from milodo.network.stacked import CommonMixingNetwork
from milodo.problems import Lasso, optimum
from milodo.topology import Topology, dense, schedule, topology
from milodo.tree import tree_map

sys.path.insert(0, str(Path(__file__).parent.parent))
from real import together

CASES = [
    ("exponential(8)", "one-peer"),
    ("exponential(6)", "one-peer"),
    ("erdos_renyi(6,0.5,seed=1)", "matchings"),
    ("grid(2x3)", "alternating(3)"),
    ("complete(6)", ["ring(6)", "star(6)"]),
]
GOSSIP = sorted(name for name in METHODS if name not in REFUSE)
OBSERVER = StackedObserver()


def changing(graph, said, seed=0):
    return degraded(StackedNetwork(graph), schedule=said, seed=seed)


def one_round(name, build, problem):
    """The method with one round of mixing, where it has a choice."""
    return build(name, problem, **({"K": 1} if "K" in METHODS[name].space else {}))


@pytest.mark.parametrize(("graph", "said"), CASES, ids=str)
def test_the_graph_of_an_iteration_is_part_of_the_topology_and_mixes_like_one(graph, said):
    """Doubly stochastic, symmetric, 0 where there is no link; all graphs together join all nodes."""
    links, whole = schedule(said, topology(graph)), topology(graph)
    product, net = np.eye(whole.n), changing(graph, said)
    for k in range(1, 60):
        used = links.links(k)
        W = dense(whole, links.mixing(k, "metropolis").w)
        x = torch.from_numpy(np.random.default_rng(k).standard_normal((whole.n, 3)))
        torch.testing.assert_close(net.at_step(k).mix(x), torch.from_numpy(W) @ x, rtol=1e-13, atol=1e-13)
        assert used.any() and (W[*whole.ends][~used] == 0).all() and (W[*whole.ends][used] > 0).all()
        assert np.abs(W.sum(0) - 1).max() < 1e-13 and (np.diag(W) > 0).all()
        mixing = links.mixing(k, "metropolis")
        values = np.linalg.eigvalsh(np.eye(whole.n) - W)
        assert mixing.high == pytest.approx(values[-1]) and mixing.low == pytest.approx(values[1], abs=1e-12)
        product = W @ product
    assert np.abs(product - 1 / whole.n).max() < 0.02


@pytest.mark.parametrize("tau", [1, 2, 3, 4])
def test_one_peer_makes_the_exact_mean_of_a_power_of_two_with_one_message_a_node(tau):
    n = 2**tau
    net, x = changing(f"exponential({n})" if tau > 1 else "path(2)", "one-peer"), torch.randn(n, 5, dtype=torch.float64)
    mixed = x
    for k in range(3, 3 + tau):  # from any iteration on
        mixed = net.at_step(k).mix(mixed)
    torch.testing.assert_close(mixed, x.mean(0).expand_as(x), rtol=0, atol=1e-14)
    assert (net.traffic.rounds, net.traffic.messages) == (tau, n * tau)


@pytest.mark.parametrize("n", [5, 12])
def test_matchings_are_maximal_and_drawn_alike_wherever_they_are_drawn(n):
    graph = topology(f"erdos_renyi({n},0.5,seed=2)")
    one, other = schedule("matchings", graph, 3), schedule("matchings", graph, 4)
    seen = set()
    for k in range(1, 40):
        pairs = [edge for edge, used in zip(graph.edges, one.links(k), strict=True) if used]
        talks = [node for pair in pairs for node in pair]
        assert len(talks) == len(set(talks))
        assert all(i in talks or j in talks for i, j in graph.edges)
        assert np.array_equal(one.links(k), schedule("matchings", graph, 3).links(k))
        seen.add(tuple(pairs))
    assert len(seen) > 3 and one.fingerprint != other.fingerprint


@pytest.mark.parametrize("graph", ["ring(10)", "star(7)", "grid(3x3)", "complete(6)"])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_alternating_subgraphs_share_no_link_leave_none_out_and_are_even(graph, parts):
    whole = topology(graph)
    links = schedule(f"alternating({parts})", whole)
    used = np.stack([links.links(k) for k in range(1, parts + 1)])
    assert (used.sum(0) == 1).all() and used.any(1).all()
    if graph == "ring(10)" and parts == 2:  # two perfect matchings
        assert all(np.bincount(whole.ends[:, row].ravel()).tolist() == [1] * 10 for row in used)


@pytest.mark.parametrize("n", [2, 6, 8, 11])
def test_iterations_count_from_one_and_the_first_has_the_first_graph(n):
    whole = topology(f"complete({n})")
    edges = np.array(whole.edges)
    bits = int(np.ceil(np.log2(n)))
    listed = [f"path({n})", f"star({n})", f"complete({n})"]
    orders = {
        "one-peer": lambda k: edges[:, 0] ^ edges[:, 1] == 2 ** ((k - 1) % bits),
        "list": lambda k: [edge in topology(listed[(k - 1) % 3]).edges for edge in whole.edges],
    }
    for name, said in (("one-peer", "one-peer"), ("list", listed)):
        links, net = schedule(said, whole), degraded(StackedNetwork(whole), schedule=said)
        for k in range(1, 8):
            assert links.links(k).tolist() == list(orders[name](k)), (name, k)
            assert torch.equal(net.at_step(k).open, torch.from_numpy(links.links(k)))
        assert torch.equal(net.open, net.at_step(1).open)  # before any iteration
    if n > 2:
        turns = schedule("alternating(2)", whole)
        assert turns.links(1)[0] and not turns.links(2)[0] and turns.links(3)[0]  # the first link is in the first subgraph


@pytest.mark.parametrize("name", GOSSIP)
@pytest.mark.parametrize(("graph", "said"), CASES, ids=str)
def test_information_takes_only_the_links_of_its_iteration(name, build, graph, said):
    """Change node 0's data: after k steps only those differ whom a chain of messages over those iterations' links reaches."""
    n = topology(graph).n
    problem, other = Lasso(n, 3, 8, 0.01).sample([0]), Lasso(n, 3, 8, 0.01).sample([1])
    A = problem.A.clone()
    A[:, 0] = other.A[:, 0]
    changed = type(problem)(A, problem.b, problem.reg)
    net, x0 = changing(graph, said), start(problem)
    method, links = one_round(name, build, problem), schedule(said, net.topology)
    reached, narrow = {0}, 0
    for k in range(1, 4):
        states = (run(method, p, net, k, x0) for p in (problem, changed))
        pairs = [edge for edge, used in zip(net.topology.edges, links.links(k), strict=True) if used]
        for _ in range(method.cost(net, 1).rounds):
            reached |= {b for i, j in pairs for a, b in ((i, j), (j, i)) if a in reached}
        for a, b in zip(*map(tensors, states), strict=True):
            rows = (a != b).any(-1)[0].nonzero().flatten().tolist()
            assert {net.arcs[row][0] if len(a[0]) == len(net.arcs) else row for row in rows} <= reached
        narrow += len(reached) < n
    assert narrow  # or the law would say nothing


@pytest.mark.parametrize("name", ["prox-ed", "accelerated-ed", "gradient-tracking", "qg-dsgdm", "lepdo"])
def test_relabelling_nodes_relabels_the_trajectory(name, build):
    problem, order = Lasso(6, 8, 20, 0.1).sample([0, 1]), (3, 0, 5, 1, 4, 2)
    back = [order.index(i) for i in range(6)]
    whole = topology("complete(6)")
    parts = [topology("ring(6)").edges, topology("star(6)").edges]

    def graphs(edges, told):
        named = [tuple(sorted(tuple(sorted((told[i], told[j]))) for i, j in part)) for part in edges]
        from milodo.topology.schedule import Graphs

        return StackedNetwork(whole).through(Graphs(whole, tuple(named), ("one", "two")))

    net, renamed = graphs(parts, range(6)), graphs(parts, order)
    method, x0 = one_round(name, build, problem), start(problem)
    state = run(method, problem, net, 10, x0)
    close(run(method, problem.at(back), renamed, 10, x0[..., back, :]), tree_map(lambda leaf: leaf[..., back, :], state))


SOLVED = [(*case, method) for case in CASES for method in ("accelerated-ed", "prox-ed")]
SOLVED += [(*case, "accelerated-ed in bits") for case in CASES[1:3]]


@pytest.mark.parametrize(("graph", "said", "method"), SOLVED, ids=str)
def test_methods_that_survive_outages_reach_the_optimum_although_the_graph_changes(graph, said, method):
    problem, net = Lasso(topology(graph).n, 8, 40, 0.1).sample([0, 1]), changing(graph, said)
    L, mean = float(problem.lipschitz().max()), float(problem.lipschitz().mean())
    chosen = ProxED(gamma=1 / L) if method == "prox-ed" else AcceleratedED.safe(L, net, mean)
    if "bits" in method:
        chosen = chosen.compressed(Bits(8))
    result = solve(chosen, problem, net, Stop(steps=3000, tolerance=1e-7))
    assert result.status.name == "CONVERGED"
    assert float((result.objective - optimum(problem).value).abs().max()) < 1e-7


@pytest.mark.parametrize(("graph", "said"), CASES, ids=str)
def test_duals_and_tracked_gradients_sum_to_what_they_must(graph, said, build):
    problem, net = Lasso(topology(graph).n, 8, 20, 0.1).sample([0]), changing(graph, said)
    for state in itertools.islice(iterate(one_round("accelerated-ed", build, problem), problem, net), 30):
        assert float(state.y.sum(-2).abs().max()) < 1e-11
    for state in itertools.islice(iterate(build("gradient-tracking", problem), problem, net), 30):
        torch.testing.assert_close(state.y.sum(-2), state.g.sum(-2), rtol=0, atol=1e-11)


def test_links_fail_on_top_of_a_schedule_and_both_ends_know_it(build):
    problem = Lasso(6, 8, 20, 0.1).sample([0])
    net = degraded(StackedNetwork("complete(6)"), schedule="matchings", outage=0.5, seed=1)
    state = run(one_round("accelerated-ed", build, problem).compressed(Bits(6)), problem, net, 20)
    slot = state.replicas[0]
    assert torch.equal(slot.received, slot.sent.index_select(-2, net.routes.of_arcs.rows))
    assert 0.3 < net.traffic.messages / (20 * 6) < 0.7


@pytest.mark.parametrize("name", sorted(set(METHODS) & REFUSE))
def test_methods_made_for_one_graph_refuse_in_a_sentence(name, build):
    problem, net = Lasso(8, 4, 10, 0.1).sample([0]), changing("exponential(8)", "one-peer")
    with pytest.raises(InvalidInput, match="changes with the iteration \\(one-peer\\)"):
        next(iterate(build(name, problem), problem, net))


def test_what_needs_one_spectrum_says_so(build):
    problem, net = Lasso(8, 4, 10, 0.1).sample([0]), changing("exponential(8)", "one-peer")
    for refused in (
        lambda: next(iterate(build("accelerated-ed", problem, K=2), problem, net)),
        lambda: next(iterate(AcceleratedED(gamma=0.1, K=1, exchange=named("chebyshev"), steps=(1.0,) * 8), problem, net)),
        lambda: net.contraction,
        lambda: METHODS["pg-extra"].safe(1.0, net),
        lambda: learn(problem, net),
        lambda: net.at_step(1).total(start(problem)),
    ):
        with pytest.raises(InvalidInput, match="changes with the iteration"):
            refused()
    next(iterate(build("dapg", problem, exchange=named("gossip")), problem, net))
    next(iterate(build("accelerated-ed", problem, K=1), problem, net))


@pytest.mark.parametrize(
    ("graph", "said", "why"),
    [
        ("ring(6)", "one-peer", "needs the link 0 - 2"),
        ("ring(6)", "two-peer", "Did you mean 'one-peer'"),
        ("ring(6)", "alternating(0)", "whole number >= 1"),
        ("ring(6)", "alternating(9)", "no more than"),
        ("ring(6)", [], "a list of graphs"),
        ("ring(6)", ["ring(6)", "star(6)"], "has a link 0 - 2"),
        ("complete(6)", ["ring(4)"], "do not join the nodes"),
        ("complete(6)", ["rong(6)"], "unknown topology"),
        ("ring(1)", "matchings", "has no links"),
        ("ring(6)", 3, "a list of graphs"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_in_a_sentence(graph, said, why):
    with pytest.raises(InvalidInput, match=why) as error:
        schedule(said, topology(graph))
    assert str(error.value).endswith(("?", ".")) and "\n" not in str(error.value)


def test_weights_of_one_fixed_graph_and_two_schedules_are_refused():
    links = schedule("matchings", topology("ring(6)"))
    for weights in ("fastest", "third", dense(topology("ring(6)"), np.full(6, 1 / 3))):
        with pytest.raises(InvalidInput, match="one fixed graph"):
            StackedNetwork("ring(6)", weights).through(links)
    with pytest.raises(InvalidInput, match="one fixed graph"):
        CommonMixingNetwork("ring(6)").through(links)
    with pytest.raises(InvalidInput, match="another schedule"):
        StackedNetwork("ring(6)").through(links, links)
    with pytest.raises(InvalidInput, match="does not suit"):
        StackedNetwork("ring(8)").through(links)
    assert StackedNetwork("ring(6)", "lazy").through(Outage(0.1), links).schedule is links


FILES = {"whole.txt": "ann bob\nbob cy\ncy dan\ndan ann\n", "one.txt": "ann bob\ncy dan\n", "two.txt": "bob cy\ndan ann\n"}
TEXT = """
[problem]
family = "lasso"
n = 4
d = 6
N = 12
[network]
topology = "whole.txt"
schedule = {schedule}
[run]
iterations = 300
instances = 2
[[methods]]
name = "{method}"
use = "safe"
"""


@pytest.fixture
def files(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    def load(schedule='["one.txt", "two.txt"]', method="accelerated-ed"):
        (tmp_path / "changing.toml").write_text(TEXT.format(schedule=schedule, method=method))
        return load_experiment(tmp_path / "changing.toml")

    return load


def test_an_experiment_takes_a_list_of_files(files, tmp_path):
    from milodo.bench.benchmark import Benchmark
    from milodo.bench.records import read_records
    from milodo.bench.run_file import RunFile

    experiment = files()
    net = experiment.network.network(seed=0)
    assert [net.schedule.links(k).tolist() for k in (1, 2, 3)] == [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1]]
    assert net.topology.edges == ((0, 1), (0, 3), (1, 2), (2, 3))
    folder = Benchmark(experiment, tmp_path / "run").run()
    assert [row.gap for row in read_records(folder / "records.csv") if row.k == 300] == pytest.approx([0, 0], abs=1e-9)
    facts = RunFile.read(folder).topology
    assert "one.txt then" in facts.schedule and facts.contraction is None


@pytest.mark.parametrize(
    ("schedule", "method", "why"),
    [
        ('"one-peer"', "accelerated-ed", "needs the link 0 - 2"),
        ('["one.txt", "two.txt"]', "dapg", "dapg needs one fixed graph"),
        ('["one.txt", "two.txt"]', "tree-apg", "tree-apg needs one fixed graph"),
        ('["one.txt"]', "accelerated-ed", "do not join"),
        ("7", "accelerated-ed", "'schedule' in \\[network\\] is 7"),
    ],
)
def test_an_experiment_that_cannot_run_says_so_before_it_begins(files, schedule, method, why):
    with pytest.raises(InvalidInput, match=why):
        files(schedule, method)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    out = tmp_path_factory.mktemp("scheduled") / "found.json"
    together([str(Path(__file__).parent / "scheduled.py"), str(out)], 4)
    return json.loads(out.read_text())


EVERY = {*GOSSIP, *(set(LEARNED) - REFUSE), "accelerated-ed in bits"}


@pytest.mark.parametrize(
    "case", [f"{case} {name}" for case in CHANGING for name in (sorted(EVERY) if case == "one-peer" else FEW)]
)
def test_real_trajectories_equal_simulated_ones_although_the_graph_changes(real, case):
    facts = real[case]
    assert facts["size"] < 1e3, "a diverging trajectory compares nothing"
    assert facts["worst"] < 1e-10 and facts["sent"] == facts["simulated"]


def test_a_topology_that_is_a_file_has_the_same_numbers_as_its_schedule(tmp_path):
    """Nodes called 1 to 3: in sorted order, though no file but the first names all of them."""
    (tmp_path / "a.txt").write_text("1 2\n")
    (tmp_path / "b.txt").write_text("3 2\n")
    graph = Topology.from_edges([(0, 1), (1, 2)])
    links = schedule([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], graph)
    assert [links.links(k).tolist() for k in (1, 2)] == [[True, False], [False, True]]
