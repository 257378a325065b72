"""Training by evolution strategies, on worlds of several graphs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from milodo.config import parse_experiment
from milodo.errors import InvalidInput
from milodo.learned import Shared
from milodo.learned.checkpoint import load_optimizer
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import Lasso
from milodo.training import Trainer
from milodo.training.evolution import WORST, estimate, whole_run
from milodo.training.log import read_rows
from milodo.training.loss import MetaLoss

WORLDS = [
    {"family": "digits-mlp", "n": 3, "N": 40, "minibatch": 10, "topology": "star(3)"},
    {"family": "digits-cnn", "n": 4, "N": 30, "minibatch": 10, "split": "label"},
]


def experiment(**changes):
    training = {
        "loss": "log-objective", "instances": 2, "validation_instances": 2, "validation_iterations": 12, "worlds": WORLDS,
        "optimizer": {"kind": "shared", "hidden": 2}, "evolution": {"pairs": 2, "sigma": 0.1, "looks": 3},
        "stages": [{"K_T": 12, "K": 12, "epochs": 1, "lr": 0.02, "batch": 1}],
    }  # fmt: skip
    table = {"problem": {"family": "digits-mlp", "n": 4, "N": 40}, "network": {"topology": "ring(4)"}, "methods": []}
    return parse_experiment({"name": "worlds", **table, "training": {**training, **changes}}, "x")


def trained(folder, stop_after=None, resume=False):
    seen = [0]

    def progress(task, fraction, detail):
        seen[0] += task.startswith("stage")
        if stop_after is not None and seen[0] > stop_after:
            raise KeyboardInterrupt

    trainer = Trainer(experiment(), folder, progress)
    trainer.run(resume=resume)
    return trainer


def test_each_world_has_its_graph_and_what_is_written_is_what_was_best(tmp_path):
    trainer = trained(tmp_path / "run")
    graphs = {trainer._network(torch.float32, graph).topology.name for graph in trainer.training.graphs}
    assert graphs == {"star(3)", "ring(4)"} and trainer.validation.graphs == trainer.training.graphs
    rows = read_rows(tmp_path / "run" / "training.csv")
    assert len([row for row in rows if math.isfinite(row.loss)]) == trainer.position.update == 4
    assert trainer.position.iterations == 4 * 2 * 2 * 12
    optimizer, card = load_optimizer(trainer.path)
    assert card.kind == "shared" and all(torch.equal(v, trainer.best[name]) for name, v in optimizer.state_dict().items())
    assert trainer.position.best == min(row.validation for row in rows if math.isfinite(row.validation))


def test_a_training_that_was_stopped_goes_on_to_the_same_weights(tmp_path):
    whole = trained(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", stop_after=1)
    resumed = trained(tmp_path / "cut", resume=True)
    assert all(torch.equal(value, resumed._weights()[name]) for name, value in whole._weights().items())
    start = Trainer(experiment(), tmp_path / "new")._weights()
    assert not all(torch.equal(value, start[name]) for name, value in whole._weights().items())


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor([1.0, -2.0]).double()), nn.Parameter(torch.tensor(0.5).double())


def test_the_estimate_is_the_gradient_on_average_and_leaves_weights_where_they_were():
    weights, pairs = Weights(), 4000
    mean = estimate(weights, lambda: float((weights.a**2).sum() + 3 * weights.b), (1, 2), pairs, 0.01)  # type: ignore[arg-type]
    torch.testing.assert_close(weights.a.grad, torch.tensor([2.0, -4.0]).double(), rtol=0, atol=0.4)
    torch.testing.assert_close(weights.b.grad, torch.tensor(3.0).double(), rtol=0, atol=0.4)
    assert weights.a.tolist() == [1.0, -2.0] and weights.b.item() == 0.5 and mean == pytest.approx(6.5, abs=0.01)


def test_runs_that_blow_up_count_as_a_little_worse_than_their_start():
    problem, net, observer = Lasso(4, 5, 8, 0.1).sample([0]), StackedNetwork("ring(4)"), StackedObserver()
    loss = MetaLoss("log-objective")
    first = float(problem.objective(problem.start()[..., 0, :], observer).log().mean())

    class Wild(Shared):
        def step(self, state, problem, net):
            return state._replace(x=state.x * 10 + 1e3)

    assert whole_run(Wild("ring(4)").double(), problem, net, loss, None, 20, 5, observer) == pytest.approx(first + WORST)
    good = whole_run(Shared("ring(4)").double(), problem, net, loss, None, 20, 5, observer)
    assert good < first


def test_whole_runs_are_not_cut():
    with pytest.raises(InvalidInput, match="give its stages K_T = K"):
        experiment(stages=[{"K_T": 6, "K": 12, "epochs": 1, "lr": 0.02, "batch": 1}])
