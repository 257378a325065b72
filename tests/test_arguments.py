"""The Python API with arguments that cannot be: one sentence that names the argument, before anything is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import milodo
from milodo import (
    L1,
    BaseRules,
    Box,
    CustomProblem,
    ElasticNet,
    InvalidInput,
    Lasso,
    LeastSquares,
    Logistic,
    LogisticRegression,
    LPGExtra,
    MiLoDo,
    NonNegative,
    Outage,
    ProxED,
    StackedNetwork,
    Stop,
    Topology,
    degraded,
    instance_seeds,
    load_optimizer,
)  # fmt: skip
from milodo.cli.main import run
from milodo.errors import quoted, unknown
from milodo.topology import topology, weights

FAMILY = Lasso(3, 4, 5, 0.1)
DATA = {"A": torch.ones(3, 2)}


def custom(f=lambda x, data: x.sum(), data=DATA, d=2, reg=L1(0.1), **options):  # noqa: B008  # frozen
    return CustomProblem(f, data, d, reg, **options)


WRONG = {
    "a float size": (lambda: Lasso(2.5, 3, 4), "n is 2.5, but it must be a whole number >= 1"),
    "a string size": (lambda: Logistic(2, "3", 4), "d is '3', but it must be a whole number >= 1"),
    "a true size": (lambda: Lasso(2, 3, True), "N is True, but it must be a whole number >= 1"),
    "an endless size": (lambda: Lasso(2, 3, 10**30), "N is 1000000000000000000000000000000, but it must be at most"),
    "a string penalty": (lambda: Lasso(2, 3, 4, "x"), "lam is 'x', but a penalty must be a finite number >= 0"),
    "a number as r": (lambda: Lasso(2, 3, 4, reg=5), "reg is 5, but it must be a regularizer"),
    "a negative seed": (lambda: FAMILY.sample([0, -1]), "a seed is -1, but it must be a whole number >= 0"),
    "a float seed": (lambda: FAMILY.sample([0.5]), "a seed is 0.5, but it must be a whole number >= 0"),
    "a string seed": (lambda: FAMILY.sample(["0"]), "a seed is '0', but it must be a whole number >= 0"),
    "one seed": (lambda: FAMILY.sample(5), "seeds is 5, but it must be a list of whole numbers"),
    "seeds in a string": (lambda: FAMILY.sample("12"), "seeds is '12', but it must be a list of whole numbers"),
    "more than fits": (lambda: Lasso(10, 300, 10**13).sample([0]), "would need 241 PB of memory, but this machine has"),
    "a negative run seed": (lambda: instance_seeds("test", 3, -1), "seed is -1, but"),
    "a float run seed": (lambda: instance_seeds("test", 3, 1.5), "seed is 1.5, but"),
    "half an instance": (lambda: instance_seeds("test", 2.5), "the number of instances is 2.5, but"),
    "a purpose that is none": (lambda: instance_seeds(5, 3), "unknown purpose 5"),
    "randn of a negative seed": (lambda: StackedNetwork("ring(3)").randn(2, seed=-1), "seed is -1, but"),
    "randn of a string": (lambda: StackedNetwork("ring(3)").randn(2, seed="a"), "seed is 'a', but"),
    "outages of a float seed": (lambda: Outage(0.1, seed=0.5), "seed is 0.5, but"),
    "outages of a string": (lambda: Outage("x"), "links are down with probability 'x', but"),
    "messages of a number": (lambda: degraded(StackedNetwork("ring(3)"), messages=5), "unknown kind of messages 5"),
    "a network of a number": (lambda: StackedNetwork(5), "cannot read the topology 5"),
    "weights of words": (lambda: weights(topology("ring(3)"), [["a"]]), "weights are .*or a matrix of numbers"),
    "a topology of a number": (lambda: topology(5), "cannot read the topology 5"),
    "a topology of nothing": (lambda: topology(None), "cannot read the topology None"),
    "edges of a number": (lambda: Topology.from_edges(5), "5 is not a list of edges"),
    "edges of numbers": (lambda: Topology.from_edges([0, 1]), r"\[0, 1\] is not a list of edges"),
    "edges of three": (lambda: Topology.from_edges([(0, 1, 2)]), "is not a list of edges"),
    "edges of nobody": (lambda: Topology.from_edges([(0, None)]), "is not a list of edges"),
    "edges of lists": (lambda: Topology.from_edges([(0, [1])]), "is not a list of edges"),
    "L1 of a string": (lambda: L1("x"), "lam is 'x', but a penalty must be"),
    "L1 of nothing": (lambda: L1(None), "lam is None, but a penalty must be"),
    "L1 of more than a float": (lambda: L1(10**400), "lam is 1000.*, but a penalty must be"),
    "an elastic net of a string": (lambda: ElasticNet(0.1, "x"), "mu is 'x', but a penalty must be"),
    "a box of strings": (lambda: Box("a", "b"), r"the box \['a', 'b'\] must be finite"),
    "a box without an end": (lambda: Box(0, None), r"the box \[0, None\] must be finite"),
    "a sign of a string": (lambda: NonNegative("x"), "lam is 'x', but a penalty must be"),
    "a function that is none": (lambda: custom(f=3), "needs a function of x.*but got 3"),
    "data that are no dict": (lambda: custom(data=[1]), r"a dict of tensors.*\[1\]"),
    "data without tensors": (lambda: custom(data={"A": np.ones((3, 2))}), "data holds .*Give tensors only"),
    "half a dimension": (lambda: custom(d=2.5), "d is 2.5, but"),
    "an objective without r": (lambda: custom(reg=None), "a regularizer such as"),
    "negative instances": (lambda: custom(instances=-1), "instances is -1, but"),
    "a constant of a string": (lambda: custom(lipschitz="x"), "lipschitz is 'x', but it must be a finite number > 0"),
    "data of words": (lambda: LeastSquares([["x"]], [1.0], L1(0.1)), "A is .*, but it must be a tensor or an array of numbers"),
    "data of nothing": (lambda: LogisticRegression(None, None, L1(0.1)), "A is None, but it must be a tensor"),
    "a model without r": (lambda: LeastSquares(torch.ones(1, 2, 3), torch.ones(1, 2), 0.1), "reg is 0.1, but it must be"),
    "a channel that is a word": (lambda: StackedNetwork("ring(3)").through("float16"), "'float16' is no channel"),
    "steps of a string": (lambda: Stop(steps="a"), "steps is 'a', but it must be a whole number >= 1"),
    "half a step": (lambda: Stop(steps=10.5), "steps is 10.5, but it must be a whole number >= 1"),
    "no step": (lambda: Stop(steps=0), "steps is 0, but it must be a whole number >= 1"),
    "looking never": (lambda: Stop(every=0), "every is 0, but"),
    "seconds of a string": (lambda: Stop(seconds="x"), "seconds is 'x', but it must be a number > 0"),
    "a tolerance of NaN": (lambda: Stop(tolerance=float("nan")), "tolerance is nan, but it must be a number > 0"),
    "a step size of a string": (lambda: ProxED(gamma="x"), "gamma is 'x', but it must be a number"),
    "a step size beyond floats": (lambda: ProxED(gamma=10**400), "gamma is 1000.*, but a step size must be a finite number"),
    "an optimizer of a number": (lambda: load_optimizer(5), "5 is not the name of an optimizer"),
    "an optimizer of nothing": (lambda: load_optimizer(None), "None is not the name of an optimizer"),
    "an optimizer of a long name": (lambda: load_optimizer("a/" + "x" * 300), "no trained optimizer 'a/xxx"),
    "an optimizer with a NUL": (lambda: load_optimizer("a/b\0c"), "no trained optimizer"),
    "half a hidden unit": (lambda: MiLoDo("ring(3)", hidden=2.5), "hidden is 2.5, but"),
    "a MiLoDo of a string seed": (lambda: MiLoDo("ring(3)", seed="x"), "seed is 'x', but"),
    "a MiLoDo that never runs": (lambda: MiLoDo("ring(3)", every=0), "every is 0, but"),
    "base rules wider than a card": (lambda: BaseRules("ring(3)", d=5000), "d is 5000, but it must be at most 4096"),
    "layers of a string": (lambda: LPGExtra("ring(3)", layers="x"), "layers is 'x', but"),
    "a negative gamma": (lambda: LPGExtra("ring(3)", gamma=-1), "gamma must be > 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_in_one_sentence(name):
    call, says = WRONG[name]
    with pytest.raises(InvalidInput, match=says) as caught:
        call()
    assert len(str(caught.value)) <= 600 and "\n" not in str(caught.value)


def test_numbers_of_numpy_and_torch_are_numbers():
    assert Lasso(np.int64(2), np.int32(3), 4, np.float32(0.5)).n == 2
    assert torch.equal(FAMILY.sample(np.arange(2)).A, FAMILY.sample([0, 1]).A)
    assert L1(torch.tensor(0.1)).lam == torch.tensor(0.1) and Box(np.float32(0), 1).high == 1
    assert Stop(steps=np.int64(3), seconds=np.float32(1.0)).steps == 3


def test_a_family_of_ones_own_need_not_say_what_it_takes():
    class Mine(milodo.Family):
        name = "mine"

        def sample(self, seeds, nodes=None, *, dtype=torch.float64, device="cpu"):
            raise NotImplementedError

    assert Mine().memory() == 0


LONG = "x" * 300
COMMANDS = (
    ["topology", LONG], ["topology", f"y/{LONG}.txt"], ["bench", LONG], ["bench", f"{LONG}.toml"], ["bench", f"y/{LONG}"], ["report", LONG],
    ["report", LONG, LONG], ["optimizers", LONG], ["optimizers", f"y/{LONG}"], ["solve", "--data", f"{LONG}.csv"],
    ["bench", "demo", "--out", LONG], ["topology", "ring(3)", "--out", f"{LONG}.png"],
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command).replace(LONG, "xxx"))
def test_a_name_longer_than_any_file_can_have_is_one_sentence(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(command) == 2
    said = capsys.readouterr().err
    assert said.startswith("milodo: ") and said.count("\n") == 1 and len(said) < 600
    assert not list(tmp_path.rglob("*.*"))


ENDLESS = (
    "x" * 10**7,
    b"\xff" * 10**7,
    10**4000,
    10**9000,
    [[0] * 1000] * 1000,
    "\x00" * 90,
    {"a": "b" * 999},
    np.ones((99, 99)),
)


@pytest.mark.parametrize("value", ENDLESS, ids=range(len(ENDLESS)))
def test_a_message_quotes_the_ends_of_a_value_and_no_more(value):
    assert 10 <= len(quoted(value)) <= 80 and "\n" not in quoted(value)
    assert quoted("short") == "'short'" and quoted(1.5) == "1.5" and quoted("two  blanks") == "'two  blanks'"


def test_a_word_nobody_knows_is_answered_shortly():
    assert str(unknown("method", "prox-de", ["prox-ed", "dapg"])) == "unknown method 'prox-de'. Did you mean 'prox-ed'?"
    assert str(unknown("method", "zzz", ["prox-ed", "dapg"])) == "unknown method 'zzz'. Known: dapg, prox-ed."
    assert len(str(unknown("method", "z" * 9000, ["y" * 5000, "x" * 5000]))) < 400
