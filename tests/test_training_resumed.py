"""A training goes on with all that it knew, and looks at data that its iterates have not seen."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest
import torch
from test_neural import EXPERIMENT
from test_training import disturbed, experiment

from milodo.config import parse_experiment
from milodo.loop import iterate
from milodo.metrics import mean_point
from milodo.network import StackedObserver
from milodo.training import Trainer
from milodo.training.log import read_rows
from milodo.training.saving import Position, adam_state, load_position, save_position

OBSERVER = StackedObserver()
BLOWN = 3
"""Batches in a row that are said to have blown up: the rate is halved after them."""


def test_every_fact_of_a_position_comes_back(tmp_path):
    _, exp = experiment(tmp_path)
    trainer = Trainer(exp, tmp_path / "run")
    values = {field.name: 1 / k if "float" in str(field.type) else k for k, field in enumerate(fields(Position), 2)}
    assert all(value != default for value, default in zip(values.values(), asdict(Position()).values(), strict=True))
    best = {name: torch.randn_like(value) for name, value in trainer.best.items()}
    save_position(tmp_path / "resume.safetensors", trainer.optimizer, trainer.adam, best, Position(**values))
    found, moments, weights = load_position(tmp_path / "resume.safetensors", trainer.optimizer)
    assert found == Position(**values) and moments == adam_state(trainer.optimizer, trainer.adam) == {}
    assert set(weights) == set(best) and all(torch.equal(weights[name], best[name]) for name in best)


def trained(trainer, *, stop_after=None, blown=BLOWN, resume=False):
    """Runs a training whose first batches are said to blow up, and that is stopped by Ctrl-C after so many updates."""
    calls, sane = [0, 0], trainer._sane

    def after_blows(x, judge):
        calls[0] += 1
        return calls[0] > blown and sane(x, judge)

    def progress(task, fraction, detail):
        calls[1] += task.startswith("stage")
        if stop_after is not None and calls[1] > stop_after:
            raise KeyboardInterrupt

    trainer._sane, trainer.progress = after_blows, progress
    trainer.run(resume=resume)
    return trainer


def test_a_training_that_goes_on_keeps_the_rate_that_was_halved(tmp_path):
    _, exp = experiment(tmp_path, epochs=2)
    whole = trained(Trainer(exp, tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        trained(Trainer(exp, tmp_path / "cut"), stop_after=9)
    resumed = Trainer(exp, tmp_path / "cut")
    trained(resumed, blown=0, resume=True)
    rates = [
        [row.lr for row in read_rows(tmp_path / where / "training.csv") if row.lr == row.lr] for where in ("whole", "cut")
    ]  # not those of validations, which have none
    assert rates[0] == rates[1] and rates[0][:BLOWN] == [1e-3] * BLOWN and rates[0][BLOWN] == 5e-4 and rates[0][-1] == 2.5e-4
    assert all(torch.equal(value, resumed._weights()[name]) for name, value in whole._weights().items())
    facts, again = ({**asdict(trainer.position), "seconds": 0} for trainer in (whole, resumed))
    assert facts == again and facts["lr_scale"] == 0.5 and facts["rollbacks"] == BLOWN


def test_the_meta_loss_is_taken_on_the_minibatch_after_the_one_an_iterate_has_seen(tmp_path):
    training = {
        "instances": 2, "validation_instances": 1, "validation_iterations": 4,
        "optimizer": {"kind": "milodo", "hidden": 4, "activations": {"m": [1e-3, 1], "s": [0.01, 30], "u": [1e-3, 0.45]}},
        "stages": [{"K_T": 3, "K": 6, "epochs": 1, "lr": 1e-3, "batch": 2}],
    }  # fmt: skip
    trainer = disturbed(Trainer(parse_experiment({**EXPERIMENT, "methods": [], "training": training}, "x"), tmp_path / "run"))
    (batch,) = trainer.training.epoch((0, 0), 2)
    problem = trainer.training.problem(batch)
    states = iterate(trainer.optimizer, problem, trainer.net)
    first, expected, seen = next(states), 0.0, 0.0
    with torch.no_grad():
        for k in range(1, 4):
            x = mean_point(next(states).x, OBSERVER)
            expected += float(problem.at_step(k + 1).objective(x, OBSERVER).mean()) / 3
            seen += float(problem.at_step(k).objective(x, OBSERVER).mean()) / 3
    _, loss, _ = trainer._segment(first, problem, None, range(1, 4))
    assert loss == pytest.approx(expected, rel=1e-5) and abs(seen - expected) > 1e-3
