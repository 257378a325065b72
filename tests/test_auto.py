"""The choice by price: what is learned before the start, what is predicted, what is chosen, in races and in fits."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch

from milodo.algorithms import METHODS, Algorithm, TreeAPG
from milodo.algorithms.auto import BENDING, MOST, PAYS, Facts, Link, choose, learn, made, pooled_guess, sums_guess
from milodo.bench.run_file import RunFile
from milodo.errors import InvalidInput
from milodo.fit import Task, fit_here
from milodo.fit.sites import Site
from milodo.loop import Stop, iterate, solve
from milodo.network import Network, Outage, StackedNetwork, StackedObserver
from milodo.problems import L1, CustomProblem, Lasso, LeastSquares, Logistic, Problem, optimum

GRAPHS = ("ring(10)", "star(8)", "grid(3x4)", "tree(15)", "complete(6)", "path(7)", "ring(1)", "ring(2)")
SOME = Facts(L=40.0, mean=38.0, pooled=8.0)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("pay", PAYS)
@pytest.mark.parametrize("lossy", [False, True])
def test_what_is_chosen_costs_what_was_predicted_for_an_iteration(graph, pay, lossy):
    net = StackedNetwork(graph)
    if lossy:
        net = net.through(Outage(1e-12))  # links that may fail, and did not
    problem = Lasso(net.topology.n, 30, 5, 0.1).sample([0])
    chosen = choose(pay, learn(problem, net), net, 30, Link(0.01, 1e6))
    before, steps = net.traffic.snapshot(), 4 if chosen.best.iterations > 1 else 1
    result = solve(chosen.algorithm, problem, net, Stop(steps=steps))
    sent = net.traffic - before
    assert vars(result.traffic) == vars(sent)
    # In a code messages are as long as what they say: that is known on average over many, and these are the first few.
    within = 0.5 if chosen.algorithm.compressor.varies else 1e-12
    assert sent.bytes == pytest.approx(steps * chosen.best.bytes, rel=within) and sent.rounds == steps * chosen.best.rounds
    if lossy:
        assert all("Tree" not in candidate.name for candidate in (chosen.best, *chosen.others))


def test_where_links_fail_guesses_meet_between_sites_that_are_alike_and_else_at_the_largest():
    net, even = StackedNetwork("ring(8)").through(Outage(0.3)), Lasso(8, 6, 12, 0.1).sample([0])
    weights = torch.ones_like(even.b)
    weights[..., 0, 1:] = 0  # one site with a single row
    for problem, alike in ((even, True), (LeastSquares(even.A, even.b, even.reg, weights), False)):
        every = sums_guess(problem, pooled_guess(problem, 8), 8)
        low, high = float(every.min()), float(every.max())
        assert high > 1.05 * low  # else there would be nothing to see
        assert learn(problem, net).sums == pytest.approx(
            math.sqrt(low * high) if alike else high, rel=0.023
        )  # a 32nd of an octave
    assert learn(even, StackedNetwork("ring(8)")).sums == pytest.approx(float(sums_guess(even, pooled_guess(even, 8), 8).mean()))


def test_one_direction_that_is_most_of_the_curvature_does_not_hide_the_others():
    """Columns that go together: the mean eigenvalue says nothing of all the small ones."""
    plain = Lasso(10, 20, 60, 0.01).sample([0])
    together = LeastSquares(plain.A @ (torch.eye(20, dtype=torch.float64) + 0.5), plain.b, plain.reg)
    net = StackedNetwork("ring(10)")
    kappa = [torch.linalg.cond(problem.A.flatten(0, -2)) ** 2 for problem in (plain, together)]
    assert kappa[1] > 50 * kappa[0]
    assert learn(together, net).sums > 3 * learn(plain, net).sums


@torch.no_grad()
def distance(method: Algorithm, problem: Problem, net: Network, *, steps: int, enough: float = 1e-9) -> float:
    """Of the node farthest from the certified optimum, once it is near enough, or after so many steps."""
    best, far = optimum(problem).x.unsqueeze(-2), math.inf
    for state in itertools.islice(iterate(method, problem, net), 0, steps + 1, 25):
        far = float((state.x - best).norm(dim=-1).max())
        if far < enough:
            break
    return far


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("pay", ["bytes", "rounds"])
def test_every_choice_reaches_the_certified_optimum(graph, pay):
    net = StackedNetwork(graph)
    problem = Lasso(net.topology.n, 6, 12, 0.05).sample([0])
    chosen = choose(pay, learn(problem, net), net, 6, Link(0.01, 1e6))
    assert distance(chosen.algorithm, problem, net, steps=2500 if pay == "rounds" else 300) < 1e-9


@pytest.mark.parametrize("graph", ["star(6)", "tree(7)", "complete(5)"])
def test_gossip_in_bits_goes_on_over_links_that_fail(graph):
    net = StackedNetwork(graph).through(Outage(0.3, seed=3))
    problem = Lasso(net.topology.n, 6, 12, 0.05).sample([0])
    chosen = choose("bytes", learn(problem, net), net, 6)
    assert distance(chosen.algorithm, problem, net, steps=6000) < 1e-9


@pytest.mark.parametrize("N", [4, 10, 40])
def test_nodes_guess_the_curvature_of_all_samples_from_their_own(N):
    problem = Lasso(12, 60, N, 0.1).sample([0, 1, 2])
    pooled = torch.linalg.matrix_norm(problem.A.flatten(-3, -2), 2) ** 2 / (12 * N)
    guess = pooled_guess(problem, 12).mean(-1)
    assert bool((guess < 1.7 * pooled).all()) and bool((guess > pooled / 1.7).all())
    assert bool((problem.lipschitz().mean(-1) > 2 * pooled).all())  # what they would take it for otherwise
    # Nodes that all hold the same have nothing to gain from each other, as far as independent halves can tell.
    alike = type(problem)(problem.A[:, :1].expand_as(problem.A), problem.b, problem.reg)
    assert bool((pooled_guess(alike, 12) <= alike.lipschitz() * (1 + 1e-12)).all())


def test_what_is_learned_is_the_truth_and_what_it_cost_is_counted():
    net, problem = StackedNetwork("grid(3x4)"), Logistic(12, 5, 8, 0.1).sample([0])
    facts = learn(problem, net)
    L = problem.lipschitz()
    assert float(L.max()) == facts.L and facts.mean == pytest.approx(float(L.mean())) and facts.pooled <= facts.mean
    assert net.traffic.rounds == 2 * net.topology.tree.height + net.topology.reach
    assert learn(problem, net.through(Outage(0.1))).reliable is False


def test_a_problem_without_samples_is_guessed_to_be_as_curved_as_its_nodes():
    data = {"A": torch.randn(4, 3, 3, dtype=torch.float64)}
    problem = CustomProblem(lambda x, own: 0.5 * (own["A"] @ x).square().sum(), data, 3, L1(0.1), lipschitz=9.0)
    assert torch.equal(pooled_guess(problem, 4), problem.lipschitz())
    assert learn(problem, StackedNetwork("ring(4)")) == Facts(9.0, 9.0, 9.0, MOST, newton=BENDING)


def test_for_seconds_curvature_is_told_where_a_round_costs_more_than_its_bytes():
    net, problem = StackedNetwork("ring(4)"), Lasso(4, 200, 5, 0.1).sample([0])
    facts, far, thin = learn(problem, net), Link(0.02, 1.25e6), Link(1e-4, 1e3)
    assert choose("seconds", facts, net, 200, far).best.name == "Tree-Newton in float16"
    assert choose("seconds", facts, net, 200, thin).best.name != "Tree-Newton in float16"
    for other in (dataclasses.replace(facts, newton=None), dataclasses.replace(facts, reliable=False)):
        every = choose("seconds", other, net, 200, far).prediction["candidates"]
        assert not any(name.startswith("Tree-Newton") for name in every)
    assert not any("Newton" in name for name in choose("seconds", facts, net, 30_000, far).prediction["candidates"])


def test_for_seconds_everybody_tells_everybody_where_that_halves_the_rounds():
    """A ring has no middle: over its tree a sum takes twice as many rounds as the ring is wide."""
    facts, far = Facts(L=40.0, mean=38.0, pooled=8.0, sums=30.0), Link(0.02, 1.25e6)
    for graph in ("complete(6)", "ring(4)"):
        chosen = choose("seconds", facts, StackedNetwork(graph), 300, far)
        every = {c.name: c for c in (chosen.best, *chosen.others)}
        assert chosen.best.name == "Flood-APG in 4 bits"
        assert every["Tree-APG in 4 bits"].rounds == 2 * chosen.best.rounds
    # On a thin line a star's hub, which passes on what all have said, is busy for n times as long.
    assert choose("seconds", facts, StackedNetwork("star(12)"), 300, Link(1e-6, 1e4)).best.name == "Tree-APG in 4 bits"


def test_other_units_change_no_choice():
    net, problem = StackedNetwork("ring(10)"), Lasso(10, 30, 5, 0.1).sample([0])
    scaled = type(problem)(problem.A * 2.0**20, problem.b, problem.reg)
    for pay in PAYS:
        one, two = (choose(pay, learn(p, net), net, 30, Link(0.01, 1e6)) for p in (problem, scaled))
        assert one.best.name == two.best.name and one.best.iterations == pytest.approx(two.best.iterations)


@pytest.mark.parametrize("family", [Lasso(10, 60, 10, 0.05), Logistic(10, 20, 20, 0.01)], ids=lambda family: family.name)
def test_few_rounds_are_enough_where_curvature_is_told(family):
    """To a gap of 1e-6 of the first one, with nothing tuned; gradients alone are not there yet."""
    net, problem = StackedNetwork("ring(10)"), family.sample([0, 1])
    best, observer = optimum(problem), StackedObserver()
    start = problem.objective(problem.start()[..., 0, :], observer) - best.value
    chosen = choose("rounds", learn(problem, net), net, problem.d)
    assert chosen.best.name.startswith("Tree-Newton")
    result = solve(chosen.algorithm, problem, net, Stop(steps=12))
    assert bool((result.objective - best.value <= 1e-6 * start).all()) and result.traffic.rounds == 120
    gradients = solve(TreeAPG(), problem, net, Stop(steps=12))
    assert not bool((gradients.objective - best.value <= 1e-6 * start).any())


@pytest.mark.parametrize("graph", ["ring(10)", "star(8)", "grid(3x4)", "tree(15)", "path(7)", "complete(6)"])
def test_local_steps_are_taken_where_a_gradient_costs_less_than_a_message(graph):
    facts, far = Facts(L=40.0, mean=38.0, pooled=8.0, sums=60.0, reliable=False), Link(0.02, 1.25e6)
    net = StackedNetwork(graph).through(Outage(0.3))
    slow, fast = (dataclasses.replace(facts, gradient=seconds) for seconds in (1.0, 1e-6))
    assert choose("seconds", fast, net, 300, far).best.name.startswith("LEPDO")
    assert choose("seconds", slow, net, 300, far).best.name.startswith("Accelerated-ED")
    for pay in ("bytes", "rounds"):
        chosen = choose(pay, slow, net, 300)
        assert chosen.best.name.startswith("LEPDO") and chosen.algorithm.gradients > 1
        assert made(json.loads(json.dumps(chosen.best.parameters))) == chosen.algorithm  # as a run's file has it


def test_far_away_rounds_count_and_on_a_thin_line_what_each_carries():
    net = StackedNetwork("ring(10)")
    far, thin = (choose("seconds", SOME, net, 300, link) for link in (Link(1.0, 1e9), Link(0.0, 1e3)))
    assert far.best.name == choose("rounds", SOME, net, 300).best.name
    assert far.best.seconds == pytest.approx(far.best.rounds, rel=1e-3)
    for candidate in (thin.best, *thin.others):
        bits = candidate.parameters.get("bits", 3)
        together = 8 // math.gcd(8, bits)  # numbers that fill whole bytes
        numbers = math.ceil(300 / together) * together * bits / 8 if "bits" in candidate.parameters else 12 * 7 + 4
        size = 4 + numbers + (8 if "APG" in candidate.name else 0)  # a scale, numbers, and what is summed as it is
        assert candidate.seconds == pytest.approx(candidate.rounds * math.ceil(size) / 1e3)


@pytest.mark.parametrize(
    ("graph", "bits"), [("star(30)", 4), ("ring(10)", 4), ("tree(31)", 4), ("ring(40)", 5), ("ring(100)", 6)]
)
def test_deep_trees_whose_edges_carry_more_take_more_bits(graph, bits):
    """With 4 bits Tree-APG diverges on ring(100), where rounding adds up along fifty edges."""
    net = StackedNetwork(graph)
    tree, n = net.topology.tree, net.topology.n
    below = [sum(_is_below(tree, node, above) for node in range(n)) for above in range(n) if above != tree.root]
    assert tree.carried == pytest.approx(math.sqrt(sum(below) / n))
    chosen = choose("bytes", SOME, net, 30)
    assert chosen.best.parameters == {"bits": bits, "coded": 1}
    problem = Lasso(n, 30, 3, 0.1).sample([0])
    best = optimum(problem)
    assert solve(chosen.algorithm, problem, net, Stop(steps=60)).objective - best.value < 1e-4 * best.value


def _is_below(tree, node, above):
    while node != above and node != tree.root:
        node = tree.parent[node]
    return node == above


def test_it_says_what_it_chose_why_and_what_comes_next():
    chosen = choose("bytes", SOME, StackedNetwork("ring(10)"), 300)
    assert chosen.why.startswith("Tree-APG in 4 bits, coded: for fewest bytes, about 369 kB; ")
    assert chosen.why.endswith("; next best is LEPDO (31 local steps) in 5 levels, coded, about 561 kB")
    assert chosen.prediction["chosen"] == chosen.best.name and len(chosen.prediction["candidates"]) == 1 + len(chosen.others)
    again = made(chosen.best.parameters)
    assert again.compressor is not None and again == chosen.algorithm


def test_what_cannot_be_chosen_is_refused_in_a_sentence():
    net = StackedNetwork("ring(4)")
    with pytest.raises(InvalidInput, match="Did you mean 'bytes'"):
        choose("byte", SOME, net, 3)
    with pytest.raises(InvalidInput, match="latency and bandwidth"):
        choose("seconds", SOME, net, 3)
    for latency, bandwidth in ((-1, 1), (0, 0), (math.inf, 1), (math.nan, 1)):
        with pytest.raises(InvalidInput, match="give a time >= 0"):
            Link(latency, bandwidth)


EXPERIMENT = """
title = "auto"
[problem]
family = "lasso"
n = 5
d = 12
N = 4
lam = 0.1
[network]
topology = "ring(5)"
latency = 0.02
bandwidth = 1e6
[run]
iterations = 400
instances = 2
stop_gap = 1e-9
[tuning]
instances = 1
iterations = 60
points_each = 3
refinements = 0
wide = true
"""


def written(tmp_path, methods):
    path = tmp_path / "e.toml"
    path.write_text(EXPERIMENT + methods)
    return path


def test_a_race_records_what_auto_chose_predicted_and_spent_before_the_start(tmp_path):
    from milodo.bench.benchmark import Benchmark
    from milodo.bench.records import read_records
    from milodo.config import load_experiment

    path = written(
        tmp_path,
        '[[methods]]\nname = "auto"\n[[methods]]\nname = "auto"\npay = "rounds"\n[[methods]]\nname = "auto"\npay = "seconds"\n'
        '[[methods]]\nname = "dapg"\nexchange = "tree"\nmessages = "8-bit"\n[report]\nbaseline = "auto (bytes)"\n',
    )
    folder = Benchmark(load_experiment(path), tmp_path / "run").run()
    run, rows = RunFile.read(folder), read_records(folder / "records.csv")
    assert set(run.methods) == {"auto (bytes)", "auto (rounds)", "auto (seconds)", "dapg (over tree, 8-bit)"}
    facts = run.methods["auto (bytes)"]
    assert facts.how == "auto" and facts.label == "Auto for bytes: Tree-Newton, float16"  # of twelve unknowns
    assert facts.prediction["pay"] == "bytes" and "for fewest bytes" in facts.why
    for key in ("auto (bytes)", "auto (rounds)"):
        first, *_, last = [row for row in rows if row.method == key and row.instance == 0]
        assert first.k == 0 and first.rounds == 4 + 2 and first.bytes > 0  # sums over a tree of height two, then a maximum
        assert last.gap < 1e-9
    tuned = run.methods["dapg (over tree, 8-bit)"]
    assert tuned.label == "DAPG, 8 bits (over tree)" and tuned.rounds_per_iteration == 12


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ('[[methods]]\nname = "auto"\nuse = "safe"\n', "chooses its method, parameters and messages itself"),
        ('[[methods]]\nname = "prox-ed"\npay = "bytes"\n', "'pay' is for name = 'auto'"),
        ('[[methods]]\nname = "prox-ed"\nexchange = "tree"\n', "has no choice of exchange"),
        ('[[methods]]\nname = "dapg"\nexchange = "fastmx"\n', "Did you mean 'fastmix'"),
        ('[[methods]]\nname = "dapg"\nmessages = "full"\n', "shortens nothing"),
        ('[[methods]]\nname = "dapg"\nmessages = "11-bit"\n', "between 2 and 10"),
    ],
)
def test_a_wrong_table_gets_a_sentence(tmp_path, methods, said):
    from milodo.config import load_experiment

    with pytest.raises(InvalidInput, match=said):
        load_experiment(written(tmp_path, methods))


def test_messages_cannot_be_shortened_twice(tmp_path):
    from milodo.config import load_experiment

    path = tmp_path / "e.toml"
    method = '[[methods]]\nname = "prox-ed"\nmessages = "4-bit"\n'
    path.write_text(EXPERIMENT.replace("[network]\n", '[network]\nmessages = "float16"\n') + method)
    with pytest.raises(InvalidInput, match=r"as well\. Remove one of them"):
        load_experiment(path)


def sites(d=400, count=4):
    rng = np.random.default_rng(0)
    x = np.where(rng.random(d) < 0.9, 0.0, rng.standard_normal(d))
    made = []
    for k in range(count):
        A = rng.standard_normal((20 + k, d))
        made.append(Site(f"s{k}", tuple(f"c{j}" for j in range(d)), A, A @ x + 0.1 * rng.standard_normal(20 + k)))
    return made


@pytest.mark.parametrize("links", ["reliable", "lossy"])
@pytest.mark.parametrize("pay", PAYS)
def test_a_fit_takes_what_costs_least(links, pay):
    from sklearn.linear_model import Lasso as Theirs

    data = sites()
    task = Task(target="y", l1=0.1, links=links, pay=pay, latency=0.02, bandwidth=1e6, tolerance=1e-9)
    fit = fit_here(data, task)
    theirs = Theirs(alpha=0.1, tol=1e-12, max_iter=100_000).fit(
        np.concatenate([site.features for site in data]), np.concatenate([site.target for site in data])
    )
    assert np.abs(np.array(fit.coefficients) - theirs.coef_).max() < 1e-6
    if links == "lossy":
        assert fit.method == ("Accelerated-ED, 6 bits, coded" if pay == "bytes" else "Accelerated-ED, 6 bits")
    else:  # a matrix of 400 unknowns costs more bytes than gradients do, and fewer rounds; in 16 bits it takes less time
        assert fit.method == {"bytes": "Tree-APG, 4 bits, coded", "rounds": "Moments", "seconds": "Tree-Newton, float16"}[pay]


def test_seconds_of_simulated_links_must_be_said():
    with pytest.raises(InvalidInput, match="say their latency"):
        fit_here(sites(), Task(target="y", l1=0.1, pay="seconds"))
    assert dataclasses.replace(Task(target="y"), pay="rounds").pay == "rounds"
    with pytest.raises(InvalidInput, match="price"):
        Task(target="y", pay="money")


def test_no_registered_method_is_called_auto():
    assert "auto" not in METHODS
