"""Trained optimizers on disk: what is written is what is read, and nothing else is accepted."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from milodo.cli.main import app
from milodo.errors import InvalidInput
from milodo.learned import LEARNED, PLAIN, BaseRules, LPGExtra, MiLoDo, Plus, Shared
from milodo.learned.checkpoint import LICENCE, PRETRAINED, find_optimizer, load_optimizer, read_card, save_optimizer, shipped
from milodo.loop import iterate, solve
from milodo.network import StackedNetwork
from milodo.problems import Lasso
from milodo.topology import topology

MADE = {
    "milodo": lambda: MiLoDo("star(4)", hidden=5, seed=3),
    "lpg-extra": lambda: LPGExtra("star(4)", layers=7),
    "base-rules": lambda: BaseRules("star(4)", d=3, hidden=6),
    "plus": lambda: Plus("star(4)", hidden=6),
    "shared": lambda: Shared("star(4)", hidden=6),
}
assert set(MADE) == set(LEARNED)
SETTINGS = MADE["milodo"]().settings().model_dump(mode="json", exclude_none=True)
_star = topology("star(3000)")
STAR_OF_3000 = {"name": "star", "n": 3000, "edges": _star.edges, "fingerprint": _star.fingerprint}
SMALL = 1_000_000
"""Bytes a shipped optimizer may have."""


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "mine.safetensors"
    save_optimizer(MADE["milodo"](), path, good_for="tests", training={"updates": 1})
    return path


def test_what_was_trained_at_one_node_alone_is_read_again(tmp_path):
    save_optimizer(Plus("ring(1)", hidden=3), tmp_path / "alone.safetensors", good_for="tests", training={})
    again, card = load_optimizer(tmp_path / "alone")
    assert card.topology.n == 1 and again.fits(topology("grid(3x3)")) is None


def edit(path, **changes):
    """The card of these weights, changed."""
    card = path.with_suffix(".json")
    card.write_text(json.dumps({**json.loads(card.read_text()), **changes}))


def reseal(path):
    """Makes the card vouch for whatever the weights file holds now: only the checks behind the checksum are left."""
    weights = json.loads(path.with_suffix(".json").read_text())["weights"]
    edit(path, weights={**weights, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})


@pytest.mark.parametrize("kind", LEARNED)
def test_what_is_read_computes_what_was_written(kind, tmp_path):
    torch.manual_seed(0)
    optimizer = MADE[kind]()
    save_optimizer(optimizer, tmp_path / "a.safetensors", good_for="tests", training={})
    again, card = load_optimizer(tmp_path / "a")
    assert (card.kind, card.licence, card.topology.n) == (kind, LICENCE, 4)
    problem = Lasso(4, 3, 5, 0.0).sample([0], dtype=torch.float32)
    net = StackedNetwork("star(4)", dtype=torch.float32)
    for k, (a, b) in enumerate(zip(iterate(optimizer, problem, net), iterate(again, problem, net), strict=True)):
        assert torch.equal(a.x, b.x)
        if k == 5:
            break
    assert not any(parameter.requires_grad for parameter in again.parameters())


def test_plain_activations_come_back_plain(tmp_path):
    save_optimizer(MiLoDo("ring(3)", activations=PLAIN), tmp_path / "a.safetensors", good_for="tests", training={})
    assert load_optimizer(tmp_path / "a")[0].settings().activations == PLAIN


def test_a_wrong_topology_is_refused_by_name(saved):
    optimizer, _ = load_optimizer(saved)
    problem = Lasso(4, 3, 5, 0.1).sample([0], dtype=torch.float32)
    with pytest.raises(InvalidInput, match=r"made for star\(4\) and cannot run on ring\(4\).*Train it"):
        solve(optimizer, problem, StackedNetwork("ring(4)", dtype=torch.float32))


def test_a_truncated_file_is_refused(saved):
    saved.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(InvalidInput, match="cut short"):
        load_optimizer(saved)
    reseal(saved)  # even if the card vouches for it
    with pytest.raises(InvalidInput, match="do not make an optimizer"):
        load_optimizer(saved)


@pytest.mark.parametrize("content", [b"", b"\x80\x04\x95", b"PK\x03\x04", b"\xff" * 64])
def test_a_foreign_file_is_refused(saved, content):
    saved.write_bytes(content)
    reseal(saved)
    with pytest.raises(InvalidInput, match="do not make an optimizer"):
        load_optimizer(saved)


def test_a_newer_format_is_refused(saved):
    edit(saved, format=99)
    with pytest.raises(InvalidInput, match=r"format 99 is newer.*Update milodo"):
        load_optimizer(saved)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "milodoo"}, "Did you mean 'milodo'"),
        ({"settings": {}}, "hidden: Field required"),
        ({"settings": {"hidden": 5, "seed": 3, "activations": {}}}, "activations are {}"),
        ({"settings": SETTINGS | {"hidden": 2000}}, r" is \("),
        ({"settings": SETTINGS | {"hidden": 100_000}}, "hidden"),
        ({"settings": SETTINGS | {"hidden": 0}}, "hidden"),
        ({"settings": SETTINGS | {"hidden": -1}}, "hidden"),
        ({"settings": SETTINGS | {"seed": "x"}}, "seed"),
        ({"settings": SETTINGS | {"seed": -5}}, "seed"),
        ({"settings": SETTINGS | {"surprise": 1}}, "surprise"),
        ({"settings": SETTINGS | {"activations": []}}, "activations"),
        ({"settings": SETTINGS | {"activations": {"m": "relu", "s": "exp", "u": "relu"}}}, "an activation is 'relu'"),
        (
            {"settings": SETTINGS | {"activations": {key: {"kind": "relu", "low": 1.0} for key in "msu"}}},
            "'relu' cannot take low",
        ),
        ({"settings": SETTINGS | {"activations": {key: {"kind": "bounded"} for key in "msu"}}}, "cannot take no bounds"),
        ({"topology": STAR_OF_3000}, r" is \("),
        ({"surprise": 1}, "surprise"),
        ({"weights": None}, "weights"),
        ({"topology": {"name": "star(4)", "n": 4, "edges": [[0, 1], [0, 2], [0, 3]], "fingerprint": "0"}}, "fingerprint"),
        ({"topology": {"name": "two", "n": 4, "edges": [[0, 1], [2, 3]], "fingerprint": "0"}}, "disconnected"),
    ],
)
def test_a_card_that_was_tampered_with_is_refused(saved, change, said):
    edit(saved, **change)
    with pytest.raises(InvalidInput, match=said):
        load_optimizer(saved)


def test_a_card_that_is_no_sane_json_is_refused(saved):
    card = saved.with_suffix(".json")
    for content, said in (
        ("[" * 200_000, "not readable as JSON"),
        ("{", "not readable"),
        ("[]", "no format number"),
        (" " * (5 << 20), "4 MiB"),
    ):
        card.write_text(content)
        with pytest.raises(InvalidInput, match=said):
            load_optimizer(saved)


def test_weights_of_another_shape_name_or_value_are_refused(saved):
    tensors = load_file(saved)
    name = "phi_m.w_2"
    for changed, said in (
        ({**tensors, name: tensors[name][:, :, :-1].contiguous()}, "expected"),
        ({**tensors, name: tensors[name].double()}, "float64"),
        ({**tensors, name: tensors[name] * float("nan")}, "NaN"),
        ({k: v for k, v in tensors.items() if k != name}, "expected tensors"),
    ):
        save_file(changed, saved)
        reseal(saved)
        with pytest.raises(InvalidInput, match=said):
            load_optimizer(saved)


def test_a_missing_file_and_a_missing_name_say_what_to_do(tmp_path):
    with pytest.raises(InvalidInput, match="milodo optimizers"):
        load_optimizer(tmp_path / "nothing.safetensors")
    with pytest.raises(InvalidInput, match="Did you mean 'milodo-lasso-ring10'"):
        find_optimizer("milodo-laso-ring10")


def test_shipped_optimizers_are_small_complete_and_listed():
    assert {"milodo-lasso-ring10", "milodo-meta-ring10"} <= set(shipped())
    for name, path in shipped().items():
        # The others are in the source tree only; no installation carries them.
        assert path.parent != PRETRAINED or path.stat().st_size + path.with_suffix(".json").stat().st_size < SMALL
        optimizer, card = load_optimizer(name)
        assert card.training["experiment"]["training"]["stages"] and card.results and card.made_with["commit"]
        assert sum(p.numel() for p in optimizer.parameters()) == card.weights.parameters
    listed = CliRunner().invoke(app, ["optimizers"])
    assert listed.exit_code == 0 and all(name in listed.output for name in shipped())
    shown = CliRunner().invoke(app, ["optimizers", "milodo-lasso-ring10"])
    assert shown.exit_code == 0 and read_card(shipped()["milodo-lasso-ring10"]).weights.sha256 in shown.output
