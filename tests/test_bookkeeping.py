"""What is compared, merged, kept, priced and measured beside the mathematics: verdicts, runs, caches, splits, links."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from test_report import complete, make_run, records_of
from test_reproduce import LAST, RACE, made_up

from milodo.algorithms.auto import Facts, choose
from milodo.algorithms.parameters import Choice
from milodo.algorithms.tree_apg import Here
from milodo.algorithms.uneven import LONGER, WORTH, priced, uneven
from milodo.bench import cache, plan
from milodo.bench.merge import merge_runs
from milodo.config import load_experiment
from milodo.errors import InvalidInput
from milodo.fit.folds import deal_folds
from milodo.folder import RunFolder
from milodo.learned import Plus
from milodo.network import StackedNetwork, probe
from milodo.network.digits import digits_size
from milodo.paper.claims import ExpectTable
from milodo.paper.verdict import Level, _settled, judged
from milodo.problems import Lasso
from milodo.problems.datasets import adult
from milodo.problems.splits import split
from milodo.report.figures import new_figure
from milodo.report.penalty import NAMED, _coefficients
from milodo.report.run import Run
from milodo.sklearn import DecentralizedLogisticRegression, DecentralizedLogisticRegressionCV
from milodo.topology import topology
from milodo.topology.flood import flood
from milodo.torch_loop.flat import Flat


# verdicts
def test_a_method_that_fails_on_half_of_the_instances_alone_has_not_failed(tmp_path):
    run = made_up(tmp_path, {"prox-ed": 50}, instances=4)
    for there, level in ((1, Level.HOLDS), (2, Level.FAILS), (3, Level.FAILS)):
        run.__dict__.pop("runs", None)
        run.records = [replace(row, gap=1.0) if row.instance >= there else row for row in Run(tmp_path).records]
        assert [finding.level for finding in judged(run, ExpectTable(gap=1e-6, fail=["prox-ed"]))] == [level]


def test_whether_tuning_gains_is_not_decided_where_published_steps_never_get_there(tmp_path):
    run = made_up(tmp_path, {key: RACE[key] for key in ("prox-ed (published)", "prox-ed")})
    far = 10 ** (-LAST / 120)  # tuned steps get there in time, published ones not: the gain is 1.2 times, or anything above
    for factor, level in ((1.1, Level.FAILS), (1.3, Level.UNDECIDED)):
        assert [finding.level for finding in judged(run, ExpectTable(gap=far, optimal=factor))] == [level]


def test_a_consensus_error_has_settled_at_the_first_record_from_which_on_it_is_small(tmp_path):
    rows = next(iter(made_up(tmp_path, {"prox-ed": 50}).runs["prox-ed"].values()))
    rng = np.random.default_rng(0)
    for _ in range(50):
        noisy = [replace(row, consensus=float(value)) for row, value in zip(rows, rng.random(len(rows)), strict=True)]
        level = noisy[-1].consensus
        small = [all(other.consensus <= level for other in noisy[k:]) for k in range(len(noisy))]
        assert _settled(noisy, level) == noisy[small.index(True)].k


# runs
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"topology": {"messages": "float16"}}, "messages differ"),
        ({"topology": {"weights": "lazy"}}, "weights differ"),
        ({"topology": {"outage": 0.1}}, "outage differ"),
        ({"topology": {"schedule": "one-peer"}}, "schedule differ"),
        ({"provenance": {"seed": 1}}, "different seeds"),
        ({"problem": "lasso(10,300,10,0.2)"}, "differ in their problem"),
        ({"gaps": [0.1]}, "differ in their gaps"),
    ],
)
def test_runs_that_are_not_alike_are_not_merged(tmp_path, change, says):
    run = complete()
    make_run(tmp_path / "a", run, records_of({"prox-ed": 0.01}))
    for key, value in change.items():
        run[key] = {**run[key], **value} if isinstance(value, dict) else value
    make_run(tmp_path / "b", run, records_of({"prox-ed": 0.01}))
    with pytest.raises(InvalidInput, match=says):
        merge_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "both")


def test_of_two_keys_with_one_name_in_the_cache_neither_gets_what_the_other_left(tmp_path, monkeypatch):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path))
    key = {"method": "prox-ed", "seeds": [1]}
    cache.store(key, {"best": 1})
    path = cache.cache_path(key)
    path.write_text(json.dumps({**json.loads(path.read_text()), "key": {**key, "seeds": [2]}}))
    assert cache.load(key) is None


def test_a_run_that_is_overwritten_leaves_nothing_for_the_next_one_to_find(tmp_path):
    folder = RunFolder(tmp_path, "run", "run.json", ("records*.csv", "figures/*"))
    (tmp_path / "figures").mkdir()
    old = [tmp_path / name for name in ("records.csv", "records-2.csv", "figures/a.png")]
    for path in (*old, tmp_path / "run.json", tmp_path / "notes.txt"):
        path.touch()
    assert not folder.begin(resume=False, overwrite=True)
    assert not any(path.exists() for path in old) and (tmp_path / "notes.txt").exists()


# what is searched and priced
def test_a_wider_search_goes_up_to_the_most_that_is_asked_for_and_no_further():
    assert Choice((1, 2, 3)).up_to(5) == (1, 2, 3, 5)
    assert Choice((1, 2, 3)).up_to(4.9) == (1, 2, 3) and Choice((1, 2, 3)).up_to(12) == (1, 2, 3, 5, 8, 12)


@pytest.mark.parametrize("graph", ["ring(6)", "path(5)", "grid(3x3)"])
def test_steps_of_their_own_are_those_that_need_fewest_rounds_and_only_where_that_is_worth_it(graph):
    net, taken = StackedNetwork(graph), set()
    for seed in range(12):
        curvatures = tuple((10 ** np.random.default_rng(seed).uniform(0, 2, net.n)).tolist())
        alike, *others = (priced(curvatures, net, longer) for longer in LONGER)
        rounds = min((each.rounds for each in others if each is not None), default=math.inf)
        found = uneven(curvatures, net)
        worth = math.isfinite(rounds) and (alike is None or WORTH * rounds < alike.rounds)
        assert (found is not None) == worth and (found is None or found.rounds == rounds)
        taken.add(worth)
    assert taken == {True, False}


def test_auto_is_chosen_for_the_largest_curvature_of_each_node_on_any_instance(tmp_path, monkeypatch):
    (tmp_path / "a.toml").write_text(
        '[problem]\nfamily = "lasso"\nn = 3\nd = 4\nN = 5\n[network]\ntopology = "ring(3)"\n'
        '[run]\niterations = 5\ninstances = 3\nbatch = 1\n[[methods]]\nname = "auto"\n'
    )
    experiment, asked = load_experiment(tmp_path / "a.toml"), []
    told = iter([(1.0, 5.0, 2.0), (4.0, 1.0, 2.0), (2.0, 2.0, 3.0)])
    monkeypatch.setattr(plan, "learn", lambda *_: Facts(L=5.0, mean=2.0, pooled=1.0, curvatures=next(told)))
    monkeypatch.setattr(plan, "choose", lambda pay, facts, *also: asked.append(facts) or choose(pay, facts, *also))
    plan.Planner(experiment, experiment.network.network(seed=0), lambda *_: None).plan(experiment.methods[0])
    assert [facts.curvatures for facts in asked] == [(4.0, 5.0, 3.0)]


def test_the_picture_names_the_columns_that_are_largest_where_the_penalty_was_chosen():
    d = NAMED + 3
    chosen, smallest = np.arange(d, dtype=float), 100.0 * np.arange(d)[::-1]  # what matters least there grows most after it
    record = {
        "columns": [f"c{k}" for k in range(d)], "penalties": [1.0, 0.1, 0.01], "scale": [1.0] * d, "chosen": 1, "best": 1,
        "coefficients": [[0.0] * d, chosen.tolist(), smallest.tolist()], "used": [0, d - 1, d - 1],
    }  # fmt: skip
    panel = new_figure(4, 3).subplots()
    _coefficients(panel, record)
    named = [text.get_text() for text in panel.get_legend().get_texts()]
    assert named[: NAMED - 1] == [f"c{k}" for k in range(d - 1, d - NAMED, -1)] and f"{d - NAMED + 1} others" in named


def test_rows_of_many_small_sites_fill_all_folds_alike():
    for rows, folds in ((1, 5), (2, 5), (3, 4)):
        dealt = torch.cat(deal_folds([torch.zeros(rows)] * 20, StackedNetwork("path(20)"), folds, 0, classes=False))
        assert dealt.bincount(minlength=folds).tolist() == [20 * rows // folds] * folds


def test_penalties_that_are_given_are_those_of_the_estimator_without_a_choice():
    X, y = load_wine(return_X_y=True)
    X, y = X[y < 2] / X.std(0), y[y < 2]
    chosen = DecentralizedLogisticRegressionCV(Cs=[0.05], cv=3).fit(X, y)
    alone = DecentralizedLogisticRegression(C=0.05, l1_ratio=1.0).fit(X, y)
    assert chosen.coef_ == pytest.approx(alone.coef_, abs=1e-6) and chosen.path_.penalty == pytest.approx(1 / (0.05 * len(y)))


# data and links
@pytest.mark.parametrize("column", range(adult.ATTRIBUTES))
def test_a_census_row_with_a_gap_in_any_column_is_dropped(tmp_path, column):
    row = ["1"] * adult.ATTRIBUTES + ["<=50K"]
    gap = [*row[:column], adult.MISSING, *row[column + 1 :]]
    (tmp_path / "adult.data").write_text(f"{', '.join(row)}\n{', '.join(gap)}\n")
    assert adult._rows(tmp_path / "adult.data") == [row]


def test_dirichlet_keeps_the_shares_of_labels_that_are_not_equally_frequent():
    labels = np.repeat([0, 1, 2], [7000, 2000, 1000])
    for rows in split("dirichlet(1e6)", labels, 5, 1000):
        assert np.bincount(labels[rows], minlength=3) / 1000 == pytest.approx([0.7, 0.2, 0.1], abs=0.06)
    many = [np.bincount(labels[rows], minlength=3) for rows in split("dirichlet(0.5)", labels, 200, 10)]
    assert np.mean(many, axis=0) / 10 == pytest.approx([0.7, 0.2, 0.1], abs=0.1)


@pytest.mark.parametrize("base", [3, 5, 6, 7, 9, 11, 13, 21, 51, 100, 200])
def test_no_whole_number_of_bytes_up_to_seven_holds_digits_in_less_room(base):
    d = 100_000
    least = min(math.ceil(d / int(8 * width / math.log2(base))) * width for width in range(1, 8))
    assert digits_size(d, base) <= least


@pytest.mark.parametrize(("latency", "bandwidth"), [(0.02, 1e6), (1e-3, 1e9), (0.5, 1e5)])
def test_links_are_found_to_be_as_fast_as_they_are(monkeypatch, latency, bandwidth):
    now = [0.0]
    monkeypatch.setattr(probe.time, "perf_counter", lambda: now[0])

    class Slow(StackedNetwork):
        def pull(self, x):
            now[0] += latency + x[0].numel() * x.element_size() / bandwidth
            return super().pull(x)

    found = probe.probe(Slow("ring(4)"))
    assert found == pytest.approx((latency, bandwidth), rel=0.01)


@pytest.mark.parametrize("graph", ["hypercube(3)", "torus(4x4)", "grid(3x3)"])
def test_what_everybody_tells_everybody_is_spread_over_the_links(graph):
    """Were the first neighbour that can always the one to pass a message on, the busiest links would be busier."""
    net = topology(graph).graph
    found, distance = flood(net), dict(nx.all_pairs_shortest_path_length(net))
    busiest = 0
    for t, hops in enumerate(found.rounds, 1):
        load = Counter(
            (min(node for node in net[receiver] if distance[source][node] == t - 1), receiver) for source, _, receiver in hops
        )
        busiest += max(load.values())
    assert found.longest < busiest


# what learned methods and training loops hold to
def test_learned_momentum_is_never_above_one_and_p_has_mean_one_on_a_logarithmic_scale():
    problem = Lasso(3, 4, 5, 0.1).sample([0])
    plus = Plus("ring(3)", hidden=4)
    with torch.no_grad():
        plus.phi.b_2.fill_(50.0)  # as far as it can go
    x, beta = torch.randn(1, 3, 4, dtype=torch.float64), torch.full((1, 3, 1), 0.95, dtype=torch.float64)
    with torch.no_grad():
        p, found, _ = plus.source.weights(plus.source.start(x), Here(x, x, x, beta), problem)
    assert float(found.max()) == 1.0 and float(p.log().mean(-1).abs().max()) < 1e-6


def test_weight_decay_is_that_of_each_group():
    model = torch.nn.Linear(2, 3).double()
    groups = [{"params": [model.weight], "weight_decay": 0.1}, {"params": [model.bias], "weight_decay": 0.5}]
    flat = Flat(model, torch.optim.SGD(groups, lr=1.0))
    model(torch.ones(4, 2, dtype=torch.float64)).square().sum().backward()
    found = flat.gradient(flat.read(), [0.1, 0.5])
    assert model.weight.grad is not None and model.bias.grad is not None
    expected = [(part.grad + decay * part).reshape(-1) for part, decay in ((model.weight, 0.1), (model.bias, 0.5))]
    torch.testing.assert_close(found, torch.cat(expected).detach().unsqueeze(0))
