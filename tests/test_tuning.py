"""Tuning finds what a brute-force search finds, on any method, and says what it tried."""

from __future__ import annotations

import math

import pytest
import torch

from milodo.algorithms import DAPG, METHODS, Choice, ProxDGD, ProxED, StepSize
from milodo.bench import cache
from milodo.bench.plan import Planner
from milodo.bench.tuning import Search, tune
from milodo.config.experiment import parse_experiment
from milodo.loop import iterate
from milodo.metrics import mean_point
from milodo.network import Bits, StackedNetwork, StackedObserver
from milodo.network.exchange import named
from milodo.problems import Lasso, instance_seeds, optimum

OBSERVER = StackedObserver()
NET = StackedNetwork("ring(5)")
PROBLEM = Lasso(5, 12, 8, 0.1).sample(instance_seeds("tuning", 3))
OPTIMUM = optimum(PROBLEM).value
SEARCH = Search(target=1e-4, iterations=300, points=7, points_each=4, refinements=1)


@torch.no_grad()
def iterations_to(algorithm, target=1e-4, limit=300):
    """One candidate alone, looked at in every iteration."""
    for k, state in zip(range(limit + 1), iterate(algorithm, PROBLEM, NET), strict=False):
        gap = float((PROBLEM.objective(mean_point(state.x, OBSERVER), OBSERVER) - OPTIMUM).mean())
        if gap <= target:
            return k
    return math.inf


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_tuned_and_its_result_runs(name):
    found = tune(METHODS[name], PROBLEM, NET, OPTIMUM, SEARCH)
    assert set(found.best) == set(METHODS[name].space)
    METHODS[name](**found.best)
    assert math.isfinite(found.score)
    assert any(trial.parameters == found.best for trial in found.trials)


@pytest.mark.parametrize("method", [ProxED, DAPG])
def test_a_batched_trial_scores_what_the_candidate_alone_needs(method):
    found = tune(method, PROBLEM, NET, OPTIMUM, SEARCH)
    assert found.reached
    # The score interpolates between samples, 40 a decade: within two of them, and one iteration of rounding.
    assert found.score == pytest.approx(iterations_to(method(**found.best)), rel=0.12, abs=1)


def test_tuning_is_no_worse_than_any_sturdy_step_of_a_fine_grid():
    found = tune(ProxED, PROBLEM, NET, OPTIMUM, SEARCH)
    L = float(PROBLEM.lipschitz().max())
    fine = [iterations_to(ProxED(gamma=c / L)) for c in torch.linspace(0.05, found.best["gamma"] * L, 25).tolist()]
    assert found.score <= 1.12 * min(fine) + 1


def test_the_chosen_step_still_works_a_tenth_larger():
    for method in (ProxED, ProxDGD):
        found = tune(method, PROBLEM, NET, OPTIMUM, SEARCH)
        larger = {name: v * (1.1 if name == "gamma" else 1) for name, v in found.best.items()}
        assert method is ProxDGD or math.isfinite(iterations_to(method(**larger), target=1e-3, limit=600))


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_grid_that_misses_the_best_grows_towards_it(monkeypatch, factor):
    """The search starts a thousand times too low, or so high that everything diverges, and still ends near where it should."""
    usual = tune(ProxED, PROBLEM, NET, OPTIMUM, SEARCH)
    off = StepSize(factor / 64, factor / 4)
    monkeypatch.setattr(ProxED, "space", {"gamma": off})
    monkeypatch.setattr("milodo.bench.tuning.EXTENSIONS", 12)
    found = tune(ProxED, PROBLEM, NET, OPTIMUM, SEARCH)
    assert found.reached and found.score <= 1.3 * usual.score + 1


def test_accelerated_methods_find_a_stable_step_on_a_graph_that_mixes_badly():
    net = StackedNetwork("path(5)")
    found = tune(DAPG, PROBLEM, net, OPTIMUM, Search(**{**SEARCH.__dict__, "cost": "rounds"}))
    assert math.isfinite(found.score)


def test_where_every_candidate_diverges_the_result_says_so():
    """FastMix with K <= 3 amplifies the eigenvalue near -λ that the fastest weights of a path have; no step size helps."""
    problem, net = Lasso(10, 6, 12, 0.1).sample([0]), StackedNetwork("path(10)", "fastest")
    search = Search(target=1e-4, iterations=500, points_each=3, refinements=1)
    found = tune(DAPG, problem, net, optimum(problem).value, search)
    assert found.score == math.inf and not found.reached
    assert found.to_json()["score"] is None


def test_rounds_as_the_cost_prefers_fewer_rounds_of_mixing():
    by_rounds = tune(DAPG, PROBLEM, NET, OPTIMUM, Search(**{**SEARCH.__dict__, "cost": "rounds"}))
    by_iterations = tune(DAPG, PROBLEM, NET, OPTIMUM, SEARCH)
    assert by_rounds.best["K"] <= by_iterations.best["K"]
    assert by_rounds.score <= by_iterations.score * 3 * by_iterations.best["K"] * 1.001


@pytest.mark.parametrize(
    ("exchange", "form"), [("fastmix", None), ("tree", None), ("fastmix", Bits(6)), ("minimax", Bits(9))], ids=str
)
def test_bytes_as_the_cost_are_those_a_run_of_the_best_sends(exchange, form):
    """Whatever it averages with and however its messages are shortened."""

    def make(parameters):
        method = DAPG(**parameters, exchange=named(exchange))
        return method if form is None else method.compressed(form)

    found = tune(DAPG, PROBLEM, NET, OPTIMUM, Search(**{**SEARCH.__dict__, "cost": "bytes"}), make=make)
    assert found.reached
    method, net = make(found.best), StackedNetwork("ring(5)")
    needed = iterations_to(method)
    for _ in zip(range(needed + 1), iterate(method, PROBLEM, net), strict=False):
        pass
    assert found.score == pytest.approx(net.traffic.bytes, rel=0.12, abs=net.traffic.bytes / needed)  # as of iterations, above


def test_a_score_to_beat_ends_what_cannot_and_changes_nothing_else():
    alone, net = tune(DAPG, PROBLEM, NET, OPTIMUM, SEARCH), StackedNetwork("ring(5)")
    assert tune(DAPG, PROBLEM, net, OPTIMUM, SEARCH, beat=1.5 * alone.score).best == alone.best
    before = net.traffic.snapshot()
    beaten = tune(DAPG, PROBLEM, net, OPTIMUM, SEARCH, beat=0.3 * alone.score)
    assert not beaten.reached and beaten.score > alone.score
    assert (net.traffic - before).rounds < 0.75 * before.rounds


COMPRESSIBLE = [name for name, method in METHODS.items() if method.space]


@pytest.mark.parametrize("name", COMPRESSIBLE)
def test_a_compressed_method_is_tuned_no_worse_than_with_the_parameters_of_the_uncompressed_one(name):
    """Each is run alone, and looked at in every iteration: with three bits, which change what a method can bear."""
    search = Search(**{**SEARCH.__dict__, "iterations": 150, "points_each": 3})

    def make(parameters):
        return METHODS[name](**parameters).compressed(Bits(3))

    full = tune(METHODS[name], PROBLEM, NET, OPTIMUM, search)
    found = tune(METHODS[name], PROBLEM, NET, OPTIMUM, search, make=make, start=full.best)
    assert any(trial.parameters == full.best for trial in found.trials)
    assert iterations_to(make(found.best), limit=150) <= iterations_to(make(full.best), limit=150)


def test_what_is_chosen_ran_until_its_own_cost_was_known():
    """Candidates run side by side until the first of them reaches the target, which says nothing about the cost of the others."""
    found = tune(METHODS["lepdo"], PROBLEM, NET, OPTIMUM, SEARCH, make=lambda p: METHODS["lepdo"](**p).compressed(Bits(3)))
    assert found.reached
    needed = iterations_to(METHODS["lepdo"](**found.best).compressed(Bits(3)))
    assert found.score == pytest.approx(needed, rel=0.12, abs=1)


@pytest.mark.parametrize("messages", [{"methods": "3-bit"}, {"network": "float16"}], ids=["of the method", "of the network"])
def test_an_experiment_tunes_compressed_messages_from_the_best_with_full_ones(tmp_path, monkeypatch, messages):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path))
    table = {key: {"messages": form} for key, form in messages.items()}
    asked = {
        "name": "compressed",
        "problem": {"family": "lasso", "n": 5, "d": 12, "N": 8, "lam": 0.1},
        "network": {"topology": "ring(5)", **table.get("network", {})},
        "run": {"iterations": 100, "instances": 2},
        "tuning": {"target": 1e-4, "iterations": 300, "points": 7, "refinements": 1, "instances": 3},
        "methods": [{"name": "pg-extra", **table.get("methods", {})}],
    }
    experiment, tasks = parse_experiment(asked, "here"), []
    net = experiment.network.network(seed=0, dtype=torch.float64)
    planner = Planner(experiment, net, lambda task, fraction, detail: tasks.append((task, fraction)))
    facts, tuning = planner.plan(experiment.methods[0])
    plain = parse_experiment({**asked, "network": {"topology": "ring(5)"}, "methods": [{"name": "pg-extra"}]}, "here")
    alone, full = Planner(plain, StackedNetwork("ring(5)"), lambda *said: tasks.append(said)).plan(plain.methods[0])
    assert full is not None and full.cached  # it was tuned for the compressed one
    assert tuning is not None and tuning.grid[0].parameters == alone.parameters
    assert tuning.score is not None and tuning.score <= (tuning.grid[0].score or math.inf)
    assert facts.parameters == tuning.best


def test_what_is_fixed_stays_fixed():
    found = tune(DAPG, PROBLEM, NET, OPTIMUM, SEARCH, fixed={"eta": 0.01})
    assert {trial.parameters["eta"] for trial in found.trials} == {0.01}
    assert {trial.parameters["K"] for trial in found.trials} >= set(DAPG.space["K"].values)
    assert isinstance(DAPG.space["K"], Choice)


def test_how_candidates_are_grouped_changes_nothing(monkeypatch):
    whole = tune(ProxED, PROBLEM, NET, OPTIMUM, SEARCH)
    monkeypatch.setattr("milodo.bench.tuning.GROUP_NUMBERS", 2 * PROBLEM.zeros().numel())
    parts = tune(ProxED, PROBLEM, NET, OPTIMUM, SEARCH)
    assert parts.best == whole.best
    assert [t.score for t in parts.trials] == pytest.approx([t.score for t in whole.trials], rel=1e-9)


def test_divergent_candidates_are_told_from_slow_ones():
    found = tune(ProxED, PROBLEM, NET, OPTIMUM, Search(target=1e-12, iterations=150, points=9, refinements=0))
    diverged = [t.parameters["gamma"] for t in found.trials if t.diverged]
    fine = [t.parameters["gamma"] for t in found.trials if not t.diverged]
    assert diverged and fine and min(diverged) > max(fine)


def test_progress_goes_from_zero_to_one():
    seen = []
    tune(DAPG, PROBLEM, NET, OPTIMUM, SEARCH, progress=lambda fraction, detail: seen.append(fraction))
    assert seen == sorted(seen) and seen[0] >= 0 and seen[-1] <= 1


def test_the_cache_gives_back_what_was_stored_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path))
    key = {"method": "prox-ed", "seeds": [1, 2]}
    assert cache.load(key) is None
    cache.store(key, {"best": {"gamma": 0.1}})
    assert cache.load(key) == {"best": {"gamma": 0.1}}
    assert cache.load({**key, "seeds": [1, 3]}) is None
    cache.cache_path(key).write_text("not json")
    assert cache.load(key) is None
    monkeypatch.setattr(cache, "NUMERICS", cache.NUMERICS + 1)
    assert cache.load(key) is None
