"""A kind of learned optimizer nobody has registered yet: one class and an entry in LEARNED, and everything knows it."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

import pytest
import torch
from pydantic import Field
from torch import nn

from milodo.bench.benchmark import Benchmark
from milodo.bench.records import read_records
from milodo.config import parse_experiment
from milodo.errors import InvalidInput
from milodo.learned import LEARNED, BaseRules, Learned, LPGExtra, MiLoDo, Plus, Shared
from milodo.learned.base import Recipe, Settings
from milodo.learned.checkpoint import load_optimizer, save_optimizer
from milodo.loop import Stop, solve
from milodo.network import StackedNetwork
from milodo.problems import Lasso
from milodo.topology import EXAMPLES, topology
from milodo.training import Trainer
from milodo.types import NodeTensor


class State(NamedTuple):
    x: NodeTensor


class OneStepSettings(Settings):
    rate: Annotated[float, Field(gt=0)]


class OneStepRecipe(Recipe):
    kind: Literal["one-step"] = "one-step"
    rate: Annotated[float, Field(gt=0)] = 0.01

    def make(self, net, d, seed):
        return OneStep(net.topology, rate=self.rate)


class OneStep(Learned):
    """x⁺ = prox(W (x - γ∇f(x))), γ learned: Prox-DGD with one number to train."""

    kind = "one-step"
    label = "One step"
    exact: ClassVar[bool] = False
    Settings, Recipe = OneStepSettings, OneStepRecipe
    State = State

    def __init__(self, graph, *, rate):
        super().__init__()
        self.topology, self.rate = topology(graph), rate
        self.log_gamma = nn.Parameter(torch.tensor(math.log(rate)))

    def settings(self):
        return OneStepSettings(rate=self.rate)

    @classmethod
    def build(cls, graph, settings):
        return cls(graph, rate=settings.rate)

    def init(self, x0, problem, net):
        self.check(problem, net)
        return State(x0)

    def step(self, state, problem, net):
        gamma = self.log_gamma.exp().to(state.x.dtype)
        return State(problem.prox(net.mix(state.x - gamma * problem.grad(state.x)), gamma))


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(LEARNED, "one-step", OneStep)


def experiment(**more):
    content = {
        "name": "fourth",
        "problem": {"family": "lasso", "n": 4, "d": 6, "N": 8, "lam": 0.1},
        "network": {"topology": "ring(4)"},
        "training": {
            "optimizer": {"kind": "one-step", "rate": 0.02},
            "instances": 8,
            "validation_instances": 2,
            "validation_iterations": 20,
            "stages": [{"K_T": 5, "K": 10, "epochs": 4, "lr": 5e-2, "batch": 4}],
        },
    }
    return parse_experiment(content | more, "test")


def test_a_fourth_kind_trains_is_saved_loaded_and_raced(registered, tmp_path):
    path = Trainer(experiment(), tmp_path / "trained").run()
    optimizer, card = load_optimizer(path)
    assert isinstance(optimizer, OneStep) and card.kind == "one-step" and card.settings == {"rate": 0.02}
    assert float(optimizer.log_gamma.exp()) > 0.03  # it has learnt to take longer steps
    race = experiment(
        run={"iterations": 5, "instances": 2}, methods=[{"name": "one-step", "weights": str(path)}], report={"gaps": [1.0]}
    )
    Benchmark(race, tmp_path / "race").run()
    assert {row.method for row in read_records(tmp_path / "race" / "records.csv")} == {"one-step"}


def test_a_kind_that_is_not_registered_or_a_key_it_does_not_have_is_refused_in_a_sentence(registered):
    with pytest.raises(InvalidInput, match=r"unknown kind of optimizer 'two-step'. Did you mean 'one-step'"):
        experiment(training={"optimizer": {"kind": "two-step"}})
    with pytest.raises(InvalidInput, match=r"unknown key 'rat' in \[training.optimizer\]. Did you mean 'rate'"):
        experiment(training={"optimizer": {"kind": "one-step", "rat": 1.0}})
    with pytest.raises(InvalidInput, match=r"'rate' in \[training.optimizer\] is -1"):
        experiment(training={"optimizer": {"kind": "one-step", "rate": -1.0}})


MADE = {
    "milodo": lambda: MiLoDo("ring(6)", hidden=4),
    "lpg-extra": lambda: LPGExtra("ring(6)", layers=5),
    "base-rules": lambda: BaseRules("ring(6)", d=5, hidden=4),
    "plus": lambda: Plus("ring(6)", hidden=4),
    "shared": lambda: Shared("ring(6)", hidden=4),
}


@pytest.mark.parametrize("graph", EXAMPLES)
@pytest.mark.parametrize("kind", LEARNED)
def test_an_optimizer_runs_on_every_graph_that_it_fits_and_says_why_on_others(kind, graph, tmp_path):
    save_optimizer(MADE[kind](), tmp_path / "made.safetensors", good_for="tests", training={})
    optimizer, _ = load_optimizer(tmp_path / "made")
    net = StackedNetwork(graph)
    problem = Lasso(net.n, 5, 8, 0.0).sample([0])
    why = optimizer.fits(net.topology)
    assert (why is None) == (kind in ("lpg-extra", "plus", "shared") or net.topology == topology("ring(6)"))
    if why is None:
        assert solve(optimizer, problem, net, Stop(steps=3)).k == 3
        return
    with pytest.raises(InvalidInput, match="its networks belong to nodes") as refused:
        solve(optimizer, problem, net, Stop(steps=3))
    assert str(refused.value) == why


@pytest.mark.parametrize("network", [{"outage": 0.4}, {"messages": "float16"}, {"messages": "top-50%"}], ids=str)
def test_training_runs_on_the_network_that_the_experiment_describes(tmp_path, network):
    def losses(folder, **options):
        trainer = Trainer(
            experiment(
                network={"topology": "ring(4)", **options},
                training=experiment_training(),
            ),
            tmp_path / folder,
        )
        (batch,) = trainer.training.epoch((0, 0), 8)
        trainer.clock = 0.0
        return trainer, trainer._batch(trainer.table.stages[0], batch).loss

    perfect, there = losses("perfect")
    degraded, here = losses("degraded", **network)
    assert perfect.net.outage is None and perfect.net.format is None
    assert (degraded.net.outage is not None) == ("outage" in network)
    assert (degraded.net.format is not None) == ("messages" in network)
    assert math.isfinite(here) and here != there


def experiment_training():
    return {
        "optimizer": "milodo",
        "instances": 8,
        "validation_instances": 2,
        "stages": [{"K_T": 5, "K": 10, "epochs": 1, "lr": 1e-3, "batch": 8}],
    }


def test_base_rules_whose_networks_say_constants_move_by_these():
    """z = x - m, y⁺ = y + s, x⁺ = z - u."""
    problem, net = Lasso(4, 3, 5, 0.0).sample([0]), StackedNetwork("ring(4)")
    rules = BaseRules("ring(4)", d=3, hidden=5).double()
    with torch.no_grad():
        for network, says in ((rules.m, 0.5), (rules.s, 0.25), (rules.u, 0.125)):
            network.w_2.zero_()
            network.b_2.fill_(says)
    state = rules.init(problem.zeros(), problem, net)
    for k in range(1, 4):
        state = rules.step(state, problem, net)
        torch.testing.assert_close(state.x, torch.full_like(state.x, -0.625 * k))
        torch.testing.assert_close(state.y, torch.full_like(state.y, 0.25 * k))
