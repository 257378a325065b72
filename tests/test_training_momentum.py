"""Training with momentum: whole runs from LEPDO's constants, weights chosen by iterations, nodes that learn together."""

from __future__ import annotations

import itertools

import pytest
import torch

from milodo.algorithms import LEPDO
from milodo.config import parse_experiment
from milodo.errors import InvalidInput
from milodo.learned import MiLoDo
from milodo.learned.checkpoint import load_optimizer
from milodo.loop import iterate
from milodo.metrics import mean_point
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import Lasso, optimum
from milodo.training import Trainer
from milodo.training.validation import log_iterations

OBSERVER = StackedObserver()


def experiment(**training):
    optimizer = {"kind": "milodo", "hidden": 4, "inputs": "relative", "momentum": 0.9, "gamma": 1.0, "alpha": 0.15, "c_s": 0.2}
    content = {
        "name": "moving",
        "problem": {"family": "lasso", "n": 4, "d": 12, "N": 6, "lam": 0.1},
        "network": {"topology": "ring(4)"},
        "training": {
            "optimizer": {**optimizer, "c_u": 1.6, "every": 5, "tied": True},
            "loss": "log-gap",
            "instances": 8,
            "validation_instances": 3,
            "validation_iterations": 120,
            "validation_gaps": [1e-1, 1e-3],
            "stages": [{"K_T": 30, "K": 30, "epochs": 2, "lr": 3e-3, "batch": 4}],
            **training,
        },
    }
    return parse_experiment(content, "test")


def test_a_training_with_momentum_keeps_the_weights_that_need_fewest_iterations(tmp_path):
    trainer = Trainer(experiment(), tmp_path)
    optimizer, card = load_optimizer(trainer.run())
    assert isinstance(optimizer, MiLoDo) and optimizer.settings().momentum == 0.9 and card.settings["momentum"] == 0.9
    problem = trainer.validation.problem(type(trainer.training.epoch((0, 0), 8)[0])(0, tuple(trainer.validation.seeds[0])))
    assert problem.dtype is torch.float64
    net = StackedNetwork("ring(4)")
    with torch.no_grad():
        score = log_iterations(optimizer, problem, net, optimum(problem).value, [1e-1, 1e-3], 120, OBSERVER)
    assert card.training["validation_log10_iterations"] == pytest.approx(float(score.mean()), abs=1e-9)
    for network in (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u):  # tied: one network, four times
        torch.testing.assert_close(network.w_x, network.w_x[:1].expand_as(network.w_x), rtol=0, atol=0)
    first = trainer.table.optimizer.make(trainer.net, 12, trainer.experiment.seed)
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), trainer.optimizer.parameters(), strict=True))


def test_iterations_to_gaps_are_those_of_the_run_and_what_is_missed_counts_for_more():
    problem, net = Lasso(4, 12, 6, 0.1).sample([0, 1]), StackedNetwork("ring(4)")
    best, method = optimum(problem).value, LEPDO(gamma=1 / float(problem.lipschitz().max()), alpha=0.1, c_s=0.1, c_u=1.5)
    with torch.no_grad():
        needed = 10 ** log_iterations(method, problem, net, best, [1e-2], 300, OBSERVER)
        gaps = [
            problem.objective(mean_point(s.x, OBSERVER), OBSERVER) - best
            for s in itertools.islice(iterate(method, problem, net), 301)
        ]
        for b in range(2):
            looked = next(k for k in range(5, 301, 5) if float(gaps[k][b]) <= 1e-2)
            assert looked - 5 <= float(needed[b]) <= looked
        missed = 10 ** log_iterations(method, problem, net, best, [1e-30], 40, OBSERVER)
        wild = log_iterations(LEPDO(gamma=1e6), problem, net, best, [1e-2], 400, OBSERVER)
    for b in range(2):
        assert float(missed[b]) == pytest.approx(40 * (31 + float(gaps[40][b].log10())), rel=1e-6)
    assert bool(wild.isinf().all())


def test_random_first_weights_are_not_chosen_by_iterations():
    with pytest.raises(InvalidInput, match="validation_gaps need first weights that converge"):
        experiment(optimizer={"kind": "milodo", "initial": "random"})


def test_where_the_start_is_the_optimum_the_first_iteration_counts():
    problem, net = Lasso(4, 12, 6, 50.0).sample([0, 1]), StackedNetwork("ring(4)")
    best = optimum(problem).value
    torch.testing.assert_close(problem.objective(problem.start().mean(-2), OBSERVER), best, rtol=1e-14, atol=0)
    with torch.no_grad():
        assert bool((log_iterations(LEPDO(gamma=0.01), problem, net, best, [1e-2, 1e-6], 20, OBSERVER) == 0).all())
