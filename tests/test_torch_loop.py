"""Gossip in an ordinary torch loop: what a race of the same methods computes, exactly resumed, and never hanging."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from loops import CASES, SCALED
from real import finish, free_port, start, together
from torch import nn

import milodo
from milodo.algorithms import METHODS
from milodo.bench.benchmark import Benchmark
from milodo.bench.records import read_records
from milodo.config import load_experiment
from milodo.errors import InvalidInput
from milodo.torch_loop.optimizer_reader import LOOPS

AGREE = 1e-8
"""In fp64 after 50 steps."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("loops") / "found.json"
    together([str(Path(__file__).parent / "loops.py"), str(out)], 4)
    return json.loads(out.read_text())


@pytest.mark.parametrize("case", CASES)
def test_a_loop_in_four_processes_is_the_race_in_one(found, case):
    facts = found["cases"][case]
    assert facts["moved"] > 0.05, "who does not move compares nothing"
    assert max(facts["worst"]) < AGREE
    assert facts["spread"][0] == pytest.approx(facts["spread"][1], abs=AGREE) and facts["spread"][0] > 0
    assert facts["bytes"][0] == facts["bytes"][1]


def test_what_was_kept_goes_on_to_the_last_bit(found):
    assert found["resumed"] and set(found["resumed"].values()) == {0.0}


@pytest.mark.parametrize(("name", "unscaled", "fused"), SCALED)
def test_a_step_that_one_scaler_leaves_out_hangs_nobody(found, name, unscaled, fused):
    facts = found["scaled"][f"{name} {unscaled} {fused}"]
    like_plain, like_skip, differs = facts["gaps"]
    assert facts["steps"] == 6
    assert like_plain < 1e-12 and like_skip < 1e-12 < differs


def test_closures_groups_frozen_layers_buffers_and_other_optimizers_work(found):
    facts = dict(found["special"])
    assert facts.pop("own statistics are kept") > 1e-3
    assert facts and max(facts.values()) < 1e-12, facts


def made(*layers, **options):
    model = nn.Sequential(*(layers or (nn.Linear(2, 2),)))
    return model, torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def adam(method):
    model = nn.Linear(2, 2)
    return milodo.gossip(model, torch.optim.Adam(model.parameters()), method=method)


def frozen():
    model = nn.Linear(2, 2).requires_grad_(False)
    return milodo.gossip(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda: milodo.gossip(*made(), method="qg-dsgd"), "Did you mean 'qg-dsgdm'"),
        (lambda: milodo.gossip(*made(), messages="8-bits"), "unknown kind of messages"),
        (lambda: adam("qg-dsgdm"), "the optimizer is Adam. Use SGD, or 'prox-dgd'"),
        (lambda: adam("gradient-tracking"), "the optimizer is Adam"),
        (lambda: milodo.gossip(*made(momentum=0.9), method="d2"), "has no momentum, and the optimizer has 0.9"),
        (lambda: milodo.gossip(*made(momentum=0.9, nesterov=True)), "without nesterov"),
        (lambda: milodo.gossip(*made(momentum=0.9, dampening=0.5)), "without dampening"),
        (lambda: milodo.gossip(*made(maximize=True)), "without maximize"),
        (lambda: milodo.gossip(made()[0], made()[1]), "that is none of Sequential's"),
        (lambda: milodo.gossip(nn.Linear(2, 2), cast("Any", "sgd")), "a torch module and its optimizer"),
        (lambda: milodo.gossip(*made(nn.LazyLinear(2))), "lazy parameters"),
        (frozen, "are frozen"),
        (lambda: milodo.gossip(*made()).__enter__(), "started alone"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence_before_the_first_step(ask, why, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidInput, match=why) as error:
        ask()
    assert "\n" not in str(error.value)


@pytest.fixture
def alone(monkeypatch):
    """One process that is started as one of one."""
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}.items():
        monkeypatch.setenv(name, str(value))


def stepped(model, optimizer):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_what_goes_wrong_later_is_said_in_a_sentence_too(alone):
    model, optimizer = made(nn.Linear(2, 2), nn.Linear(2, 2), momentum=0.9)
    model[0].requires_grad_(False)
    with milodo.gossip(model, optimizer) as g:
        stepped(model, optimizer)
        with g.average(), pytest.raises(InvalidInput, match="would be undone"):
            stepped(model, optimizer)
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 0.0
        with pytest.raises(InvalidInput, match="learning rate is 0 in step 2"):
            stepped(model, optimizer)
        optimizer.param_groups[0]["lr"] = 0.1
        for found, why in (
            ({}, "was not made by state_dict"),
            ({**g.state_dict(), "node": 1}, "node 1 cannot be that of node 0"),
            ({**g.state_dict(), "facts": {"method": "d2"}}, "another method"),
            ({**g.state_dict(), "state": {"x": torch.ones(2)}}, "does not have the parts"),
        ):
            with pytest.raises(InvalidInput, match=why):
                g.load_state_dict(found)
        model[0].requires_grad_(True)
        with pytest.raises(InvalidInput, match=r"0\.weight was frozen when gossip began"):
            stepped(model, optimizer)
        model[0].requires_grad_(False)
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        with pytest.raises(InvalidInput, match="given other parameters"):
            stepped(model, optimizer)


def test_several_gossips_of_one_process_have_channels_of_their_own(alone):
    with milodo.gossip(*made(), method="d-psgd") as first, milodo.gossip(*made(), method="d-psgd") as second:
        with milodo.gossip(*made()) as third:
            assert len({g.observer.peers.channel for g in (first, second, third)}) == 3
        with milodo.gossip(*made()) as again:  # processes that open theirs in the same order find the same
            assert again.observer.peers.channel == third.observer.peers.channel


def test_a_graph_of_another_size_is_refused(alone):
    with pytest.raises(InvalidInput, match="ring\\(3\\) has 3 nodes, but 1 processes"):
        milodo.gossip(*made(), graph="ring(3)").__enter__()


@pytest.mark.parametrize("name", LOOPS)
def test_a_name_means_the_same_method_in_a_loop_and_in_a_benchmark(name):
    meant = {**METHODS, "d2": METHODS["prox-ed"]}[name]
    assert type(LOOPS[name].make(1.0, 1.0)) is meant


def test_one_process_is_plain_sgd_and_hooks_leave_nothing_behind(alone):
    torch.manual_seed(0)
    model, optimizer = made(momentum=0.9)
    twin, other = made(momentum=0.9)
    twin.load_state_dict(model.state_dict())
    with milodo.gossip(model, optimizer, method="prox-dgd") as g:
        for _ in range(3):
            stepped(model, optimizer)
            stepped(twin, other)
        assert g.k == 3 and g.traffic.bytes == 0 and g.consensus_error() == 0
    torch.testing.assert_close(model[0].weight, twin[0].weight)
    assert not optimizer._optimizer_step_pre_hooks and not hasattr(optimizer, "_step_supports_amp_scaling")
    assert not torch.distributed.is_initialized()
    stepped(model, optimizer)
    stepped(twin, other)
    torch.testing.assert_close(model[0].weight, twin[0].weight)


RACE = """
[problem]
family = "digits-mlp"
n = 4
N = 40
minibatch = 10
split = "dirichlet(0.1)"
evaluate = 20
[network]
topology = "exponential(4)"
schedule = "one-peer"
[run]
iterations = 60
instances = 1
dtype = "float32"
[tuning]
instances = 1
iterations = 20
points = 3
points_each = 3
refinements = 0
"""


def test_a_race_has_them_all_tuned_on_a_network_whose_graph_changes(tmp_path):
    names = ["d-psgd", "dsgdm", "qg-dsgdm", "decentlam", "prox-ed", "gradient-tracking"]
    methods = "".join(f'[[methods]]\nname = "{name}"\n' for name in names)
    (tmp_path / "race.toml").write_text(RACE + methods)
    folder = Benchmark(load_experiment(tmp_path / "race.toml"), tmp_path / "run").run()
    rows = read_records(folder / "records.csv")
    for name in names:
        losses = {row.k: row.loss for row in rows if row.method == name}
        assert losses[60] < losses[0]


ROOT = Path(__file__).parent.parent
TWICE = """
import torch, milodo
for k in range(2):  # one block after the other
    torch.manual_seed(k)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with milodo.gossip(model, optimizer, method="d-psgd") as g:
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert g.consensus_error() < 1e-6
print("twice")
"""
UNEVEN = """
import os, torch, milodo
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with milodo.gossip(model, optimizer, timeout=3.0) as g:
    for _ in range(3 + 2 * int(os.environ["RANK"])):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
"""
SMALL_CIFAR = """
import runpy, sys
import pytest, small_data
with pytest.MonkeyPatch.context() as patch:
    small_data.publish({folder!r}, patch)
    sys.argv = ["cifar", "--steps", "3", "--batch", "2", "--split", "uniform"]
    runpy.run_path({script!r}, run_name="__main__")
"""


def test_one_block_after_another():
    assert all(end.out.strip() == "twice" for end in together(["-c", TWICE], 3))


def test_a_node_that_makes_fewer_steps_is_named_and_nobody_waits_for_ever():
    ends = finish(start(["-c", UNEVEN], 2))
    assert all(end.code != 0 for end in ends)
    assert any("did not answer" in end.err and "iteration 4" in end.err for end in ends), [end.err for end in ends]


def test_the_tutorial_runs_as_it_stands():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tutorials" / "pytorch.md").read_text(), re.S)
    first, *others = together(["-c", code], 4)
    assert re.match(r"accuracy (0.9\d|1.00) on all data, after 100 steps and \d", first.out) and "nodes agree" in first.out
    assert not any(other.out for other in others)
    without = [line for line in code.splitlines() if not line.endswith("# new")]
    assert len(code.splitlines()) - len(without) == 2 and "milodo.gossip" in code


def test_images_on_a_graph(written):
    script = ROOT / "examples" / "cifar_on_a_graph.py"
    assert len(script.read_text().splitlines()) <= 60
    code = SMALL_CIFAR.format(folder=written, script=str(script)).replace("PosixPath", "__import__('pathlib').Path")
    first, *others = together(["-c", code], 4, MILODO_DATA=str(written), PYTHONPATH=str(Path(__file__).parent))
    assert re.match(r"accuracy [01]\.\d+, consensus error \S+, \d\.\d MB sent", first.out) and not any(o.out for o in others)
