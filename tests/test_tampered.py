"""Files that were altered, and disks that are full: a sentence each, and what was there before stays whole."""

from __future__ import annotations

import json
import resource
from contextlib import contextmanager
from dataclasses import asdict, fields

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file
from test_training import experiment

from milodo.bench import cache
from milodo.bench.plan import Planner
from milodo.bench.run_file import MethodFacts
from milodo.cli import main
from milodo.config import load_experiment, parse_experiment
from milodo.errors import InvalidInput
from milodo.files import MOST_PARTS, read_toml
from milodo.learned import MiLoDo
from milodo.learned.checkpoint import load_optimizer, save_optimizer
from milodo.loop import Stop, iterate, solve
from milodo.network import StackedNetwork
from milodo.problems import Lasso
from milodo.runtime.snapshots import Snapshots
from milodo.training import Trainer
from milodo.training.saving import Position, load_position, save_position

STRANGE = [None, True, -1, 10**400, float("nan"), float("inf"), "", "7", [], {}, [1]]
"""What may stand in the place of a number."""


@contextmanager
def files_of_at_most(size: int):
    """The system refuses to write more into any file, as it does where a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Run:
    """Prox-ED on four nodes, kept every ten iterations."""

    def __init__(self, folder):
        self.problem, self.net, self.method = Lasso(4, 6, 8, 0.1).sample([0]), StackedNetwork("ring(4)"), None
        from milodo.algorithms import METHODS

        self.method = METHODS["prox-ed"](gamma=0.01)
        self.keeper = Snapshots(folder, 0, self.net, 10, "run")

    def to(self, steps):
        return solve(self.method, self.problem, self.net, Stop(steps=steps), keeper=self.keeper)

    def last(self):
        self.keeper.chosen = self.keeper.available()[-1]
        return self.keeper.last(next(iterate(self.method, self.problem, self.net)))


def test_a_disk_that_is_full_leaves_the_last_snapshot_whole(tmp_path):
    run = Run(tmp_path / "snapshots")
    with files_of_at_most(100), pytest.raises(InvalidInput, match=r"cannot be written \(.*\)\. There is none before it\. Free"):
        run.to(10)
    run.to(10)
    k, kept = run.last()
    with (
        files_of_at_most(100),
        pytest.raises(InvalidInput, match="That after 10 iterations is whole: free some space") as refused,
    ):
        run.to(20)
    assert k == 10 and refused.value.remedies == ("resume",) and "\n" not in str(refused.value)
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["rank0-10.safetensors"]
    again, state = run.last()
    assert again == 10 and torch.equal(state.x, kept.x)


def test_a_disk_that_is_full_leaves_the_position_of_a_training_whole(tmp_path):
    _, exp = experiment(tmp_path)
    trainer, path = Trainer(exp, tmp_path / "run"), tmp_path / "resume.safetensors"
    words = (path, trainer.optimizer, trainer.adam, trainer.best)
    with files_of_at_most(100), pytest.raises(InvalidInput, match=r"cannot be saved \(File too large\)\. Free some space"):
        save_position(*words, Position(update=1))
    save_position(*words, Position(update=1))
    with files_of_at_most(100), pytest.raises(InvalidInput, match="What was saved before is whole: free some space, and resume"):
        save_position(*words, Position(update=2))
    assert load_position(path, trainer.optimizer)[0] == Position(update=1)
    assert not list(tmp_path.glob(".resume*"))


def test_a_command_whose_disk_is_full_ends_with_a_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "race.toml").write_text(
        '[problem]\nfamily = "lasso"\nn = 3\nd = 4\nN = 8\n[network]\ntopology = "ring(3)"\n[run]\niterations = 20\n'
        'instances = 2\n[[methods]]\nname = "prox-ed"\nuse = "given"\nparameters = { gamma = 0.05 }\n'
    )
    with files_of_at_most(300):
        assert main.run(["bench", str(tmp_path / "race.toml"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "cannot write" in said and "File too large" in said and said.count("milodo:") == 1 and "Traceback" not in said


LONG = {
    "plain": ".".join(["a"] * 100_000) + " = 1",
    "quoted": " . ".join(['"a\\"."', "'b.'"] * 50_000) + " = 1",
    "a table": f"[{'.'.join(['a-1'] * 60_000)}]",
    "within another": "x = { " + ".".join(["a"] * (MOST_PARTS + 1)) + " = 1 }",
}


@pytest.mark.parametrize("kind", LONG)
def test_a_key_of_very_many_parts_is_refused_before_it_is_parsed(tmp_path, monkeypatch, kind):
    """The parser takes 13.6 GB for 100,000 parts."""
    monkeypatch.setattr("tomllib.loads", lambda text: pytest.fail("it was parsed"))
    (tmp_path / "a.toml").write_text(f"# first line\n{LONG[kind]}\n")
    with pytest.raises(InvalidInput, match=r"a\.toml, line 2: a key of more than 30 parts") as refused:
        load_experiment(tmp_path / "a.toml")
    assert len(str(refused.value)) < 300 + len(str(tmp_path))


def test_a_very_large_toml_is_refused_and_others_are_read(tmp_path):
    (tmp_path / "a.toml").write_text("# " + "x" * (1 << 20))
    with pytest.raises(InvalidInput, match="larger than 1 MiB"):
        load_experiment(tmp_path / "a.toml")
    numbers = ", ".join(["0.1"] * 500)
    prose = "One. Two. Three words, really. " * 40 + "..." * 40
    (tmp_path / "a.toml").write_text(f'a.b."c.d".e = [{numbers}]\ntext = "{prose}"\nword = "{"z" * 100_000}"\n')
    assert read_toml(tmp_path / "a.toml") == {"a": {"b": {"c.d": {"e": [0.1] * 500}}}, "text": prose, "word": "z" * 100_000}


def test_an_activation_of_any_kind_is_read_or_refused(tmp_path):
    save_optimizer(MiLoDo("ring(3)", hidden=2), tmp_path / "a.safetensors", good_for="tests", training={})
    card = json.loads((tmp_path / "a.json").read_text())
    for strange in [*STRANGE, ["bounded"], {"bounded": 1}]:
        card["settings"]["activations"]["m"]["kind"] = strange
        (tmp_path / "a.json").write_text(json.dumps(card))
        with pytest.raises(InvalidInput, match=r"its card's settings do not describe a milodo \(activations: an activation is"):
            load_optimizer(tmp_path / "a.safetensors")


def test_a_position_with_anything_in_any_place_is_read_or_refused(tmp_path):
    _, exp = experiment(tmp_path)
    trainer, path, refused = Trainer(exp, tmp_path / "run"), tmp_path / "resume.safetensors", 0
    save_position(path, trainer.optimizer, trainer.adam, trainer.best, Position())
    with safe_open(path, framework="pt") as file:
        facts, tensors = json.loads(file.metadata()["milodo"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name in (name for name in facts if name != "format"):
        for strange in STRANGE:
            path.write_bytes(save(tensors, {"milodo": json.dumps({**facts, name: strange})}))
            try:
                found = load_position(path, trainer.optimizer)[0]
            except InvalidInput as error:
                refused += 1
                assert "\n" not in str(error) and error.remedies == ("overwrite",)
            else:
                kinds = {
                    field.name: (int, float, type(None)) if "float" in str(field.type) else int for field in fields(Position)
                }
                assert all(isinstance(value, kinds[name]) for name, value in asdict(found).items()) and name == "best"
    assert refused == (len(facts) - 1) * len(STRANGE) - 3  # the best score may be missing, negative or infinite
    first = next(iter(dict(trainer.optimizer.named_parameters())))
    for key, value in (("step", torch.zeros(3)), ("exp_avg", torch.zeros(7)), ("other", torch.zeros(()))):
        path.write_bytes(save({**tensors, f"adam.{first}.{key}": value}, {"milodo": json.dumps(facts)}))
        with pytest.raises(InvalidInput, match="moments are not those of Adam"):
            load_position(path, trainer.optimizer)
    for strange in ("[]", "[" * 10**5, "7"):
        path.write_bytes(save(tensors, {"milodo": strange}))
        with pytest.raises(InvalidInput, match=r"cannot be read|not written by this milodo"):
            load_position(path, trainer.optimizer)


@pytest.mark.parametrize("key", ["notes", "others", "traffic"])
def test_a_snapshot_that_lacks_something_is_refused(tmp_path, key):
    run = Run(tmp_path)
    run.to(10)
    seen = []
    run.keeper.restored = lambda notes: seen.append(notes["pace"])
    assert run.last()[0] == 10 and seen == [None]
    path = run.keeper.path(10)
    with safe_open(path, framework="pt") as file:
        facts, tensors = json.loads(file.metadata()["milodo"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    less = {name: value for name, value in facts.items() if name != key}
    wrong = [less, *({**facts, key: strange} for strange in STRANGE)]
    for content in wrong:
        save_file(tensors, path, metadata={"milodo": json.dumps(content)})
        if key == "others" and isinstance(content.get(key), dict):  # this state has no other parts
            continue
        with pytest.raises(InvalidInput, match=r"Start again without resuming, or in another folder\.$") as refused:
            run.last()
        assert "\n" not in str(refused.value)


TUNED = {
    "name": "tiny",
    "problem": {"family": "lasso", "n": 3, "d": 2, "N": 4},
    "network": {"topology": "ring(3)"},
    "run": {"iterations": 8, "instances": 1},
    "tuning": {"instances": 1, "iterations": 10, "points": 3, "refinements": 0},
    "methods": [{"name": "prox-ed"}],
}


def test_a_tuned_value_that_was_altered_is_noticed_and_tuned_again(tmp_path, monkeypatch):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path))
    exp, said = parse_experiment(TUNED, "tiny"), []

    def planned() -> tuple[MethodFacts, bool]:
        planner = Planner(exp, exp.network.network(seed=0), lambda task, fraction, detail: said.append(detail))
        facts, tuning = planner.plan(exp.methods[0])
        assert tuning is not None
        return facts, tuning.cached

    first = planned()
    assert not first[1] and planned() == (first[0], True)
    (file,) = (tmp_path / "tuning").iterdir()
    whole = json.loads(file.read_text())
    best = whole["result"]["best"]
    for altered in ({"gamma": best["gamma"] * 2}, {"gama": best["gamma"]}, {"gamma": "x"}, {}, 7):
        file.write_text(json.dumps({**whole, "result": {**whole["result"], "best": altered}}))
        said.clear()
        assert planned() == first and "altered: tuned again" in said[0] and planned()[1]
    # One that vouches for itself, of a method that has no such parameter.
    result = {**whole["result"], "best": {"gama": 0.1}}
    file.write_text(json.dumps({"key": whole["key"], "result": result, "digest": cache.digest(result)}))
    assert planned() == first
