"""Training: what a segment computes, what the guard undoes, and that a killed training ends where an undisturbed one does."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
import torch
from real import Process, environment, finish, until
from safetensors.torch import load_file

from milodo.algorithms import PGExtra
from milodo.config import load_experiment
from milodo.errors import InvalidInput
from milodo.learned import LPGExtra
from milodo.learned.checkpoint import load_optimizer, read_card
from milodo.loop import Stop, iterate, solve
from milodo.metrics import mean_point
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import Lasso
from milodo.report.training import draw_training
from milodo.training import Trainer, TrainingFailed
from milodo.training.log import read_rows
from milodo.training.loss import MetaLoss, falling
from milodo.training.problem_set import training_set, validation_set
from milodo.tree import detached

TINY = """
[problem]
family = "lasso"
n = 4
d = 12
N = 6
lam = 0.1

[network]
topology = "ring(4)"

[training]
{training}
instances = 16
validation_iterations = 40
validation_instances = 4
validate_every = 60
"""
STAGES = """
[[training.stages]]
K_T = 5
K = 10
epochs = {epochs}
lr = 1e-3
batch = 4

[[training.stages]]
K_T = 10
K = 20
epochs = 2
lr = 5e-4
batch = 8
"""


def experiment(
    folder: Path, training: str = "", *, optimizer: str = "", epochs: int = 3, stages: str | None = None, text: str = TINY
):
    """A file, and the experiment in it."""
    path = folder / "tiny.toml"
    table = f"[training.optimizer]\n{optimizer}\n"
    path.write_text(text.format(training=training) + table + (stages or STAGES.format(epochs=epochs)))
    return path, load_experiment(path)


def milodo(*words: object, cwd: Path) -> Process:
    return Process(["-m", "milodo", *map(str, words)], environment(MILODO_CACHE=str(cwd / "cache")), cwd)


def rows(folder: Path) -> int:
    """Lines of training.csv."""
    file = folder / "training.csv"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The file of an experiment, and the folder of its training."""
    folder = tmp_path_factory.mktemp("undisturbed")
    path, exp = experiment(folder, 'loss = "log-gap"', epochs=10)
    Trainer(exp, folder / "whole").run()
    return path, folder / "whole"


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT], ids=["kill", "ctrl-c"])
def test_a_training_that_was_stopped_ends_bit_for_bit_where_an_undisturbed_one_does(tmp_path, blow, undisturbed):
    path, whole = undisturbed
    cut = milodo("train", path, "--out", "cut", cwd=tmp_path)
    until(lambda: rows(tmp_path / "cut") >= 15, cut)  # of 46; the first validations are behind it
    cut.send_signal(blow)
    _, complaint = cut.communicate()
    if blow == signal.SIGINT:
        assert cut.returncode == 130 and "--resume" in complaint
    assert not (tmp_path / "cut" / "training.png").exists()
    again = milodo("train", path, "--out", "cut", "--resume", cwd=tmp_path)
    said, complaint = again.communicate()
    assert again.returncode == 0, complaint
    assert "from the last start" in said
    folders = whole, tmp_path / "cut"
    ours, theirs = (load_file(folder / "resume.safetensors") for folder in folders)
    assert set(ours) == set(theirs) and any(name.startswith("adam.") for name in ours) is False  # a new stage has a new Adam
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    weights = [(folder / "tiny.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1]
    logs = [[(row.update, row.loss, row.validation) for row in read_rows(folder / "training.csv")] for folder in folders]
    assert str(logs[0]) == str(logs[1])  # as text, in which NaN equals NaN


def test_a_stopped_position_holds_adams_moments(tmp_path):
    _, exp = experiment(tmp_path, epochs=2)
    trainer = Trainer(exp, tmp_path / "run")
    calls = []

    def stop_in_the_middle(task, fraction, detail):
        calls.append(task)
        if len(calls) == 5:
            raise KeyboardInterrupt

    trainer.progress = stop_in_the_middle
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    names = set(load_file(tmp_path / "run" / "resume.safetensors"))
    assert {f"adam.phi_m.w_2.{part}" for part in ("exp_avg", "exp_avg_sq", "step")} <= names


def disturbed(trainer):
    """Weights that let the gradient reach every layer: special initialisation has zeros in the last."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.optimizer.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return trainer


def unrolled_loss(trainer, problem, state, length):
    """The mean loss of `length` iterations from a state, straight from its definition; and the last state."""
    observer, total = StackedObserver(), torch.zeros(())
    for _ in range(length):
        state = trainer.optimizer.step(state, problem, trainer.net)
        total = total + problem.objective(mean_point(state.x, observer), observer).mean() / length
    return total, state


@pytest.mark.parametrize(("K_T", "K"), [(6, 6), (3, 6)], ids=["full", "truncated"])
def test_a_batch_is_backpropagation_over_its_segments_and_an_adam_step_for_each(tmp_path, K_T, K):
    """Computed here by autograd and torch's Adam; over two batches, as Adam's first step from zero hides the gradient's size."""
    stages = f"[[training.stages]]\nK_T = {K_T}\nK = {K}\nepochs = 2\nlr = 1e-2\nbatch = 16\n"
    _, exp = experiment(tmp_path, "clip = inf", stages=stages)
    trainer = disturbed(Trainer(exp, tmp_path / "run"))
    start = trainer._weights()
    adam = torch.optim.Adam(trainer.optimizer.parameters(), lr=1e-2)
    for epoch in range(2):
        (batch,) = trainer.training.epoch((0, epoch), 16)
        problem = trainer.training.problem(batch)
        state = trainer.optimizer.init(problem.start(), problem, trainer.net)
        for _ in range(K // K_T):
            loss, state = unrolled_loss(trainer, problem, state, K_T)
            adam.zero_grad()
            loss.backward()
            adam.step()
            state = detached(state)
    expected = trainer._weights()
    trainer.optimizer.load_state_dict(start)
    trainer.run()
    for name, value in trainer._weights().items():
        assert not torch.equal(start[name], value)
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)  # fp32: sums in another order


@pytest.mark.parametrize("clip", ["1e-3", "0.2", "inf"])
def test_a_gradient_longer_than_clip_is_shortened_to_it_and_keeps_its_direction(tmp_path, clip):
    _, exp = experiment(
        tmp_path, f"clip = {clip}", stages="[[training.stages]]\nK_T = 6\nK = 6\nepochs = 1\nlr = 1e-2\nbatch = 16\n"
    )
    trainer = disturbed(Trainer(exp, tmp_path / "run"))
    (batch,) = trainer.training.epoch((0, 0), 16)
    problem = trainer.training.problem(batch)
    state = trainer.optimizer.init(problem.start(), problem, trainer.net)
    loss, _ = unrolled_loss(trainer, problem, state, 6)
    expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(trainer.optimizer.parameters()))])
    _, _, norm = trainer._segment(state, problem, None, range(1, 7))
    found = torch.cat([part.grad.flatten() for part in trainer.optimizer.parameters()])
    assert float(expected.norm()) > 0.2 and norm == pytest.approx(float(expected.norm()), rel=1e-4)  # logged as it was
    assert float(found.norm()) == pytest.approx(min(float(clip), norm), rel=1e-4)
    assert float(torch.nn.functional.cosine_similarity(found, expected, dim=0)) > 1 - 1e-5


def test_recomputing_gives_the_gradient_of_remembering(tmp_path):
    gradients = []
    for recompute in ("false", "true"):
        folder = tmp_path / recompute
        folder.mkdir()
        _, exp = experiment(folder, f"recompute = {recompute}\nclip = inf", epochs=1)
        trainer = disturbed(Trainer(exp, folder / "run"))
        problem = trainer.training.problem(trainer.training.epoch((0, 0), 4)[0])
        state = trainer.optimizer.init(problem.start(), problem, trainer.net)
        trainer._segment(state, problem, None, range(1, 6))
        gradients.append({name: parameter.grad for name, parameter in trainer.optimizer.named_parameters()})
    for name, gradient in gradients[0].items():
        assert float(gradient.abs().max()) > 0, name
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("moment", ["validation", "after a rollback", "after going back to the best"])
def test_ctrl_c_at_an_awkward_moment_changes_nothing(tmp_path, moment):
    """A batch is made to blow up; the training is stopped there or in the validation after it, and resumed."""
    bad = {"validation": {15}, "after a rollback": {15}, "after going back to the best": {13, 14, 15}}[moment]

    def prepared(folder, stop):
        _, exp = experiment(tmp_path, epochs=4)
        trainer, sane = Trainer(exp, tmp_path / folder), Trainer._sane
        begun = {"batches": 0, "stopped": not stop}

        def blows_up(x, judge):
            here = trainer.position
            return (here.stage, here.epoch * 4 + here.batch) not in {(0, number) for number in bad} and sane(trainer, x, judge)

        trainer._sane = blows_up
        write, validate = trainer._write, trainer._validate

        def stopping_write(row):
            write(row)
            if "undone" in row.remark or "best weights" in row.remark:
                begun["batches"] += 1
                if begun["batches"] == len(bad) and not begun["stopped"] and moment != "validation":
                    begun["stopped"] = True
                    raise KeyboardInterrupt

        def stopping_validate():
            losses = validate()
            if begun["batches"] and not begun["stopped"] and moment == "validation":
                begun["stopped"] = True
                raise KeyboardInterrupt
            return losses

        trainer._write, trainer._validate = stopping_write, stopping_validate
        return trainer

    whole = prepared("whole", stop=False)
    whole.run()
    with pytest.raises(KeyboardInterrupt):
        prepared("cut", stop=True).run()
    again = prepared("cut", stop=False)
    again.run(resume=True)
    assert all(torch.equal(value, again._weights()[name]) for name, value in whole._weights().items())
    assert whole.position.rollbacks == again.position.rollbacks == len(bad)
    assert whole.position.lr_scale == again.position.lr_scale == (0.5 if len(bad) == 3 else 1.0)
    logs = [
        [(r.update, r.loss, r.validation, r.remark) for r in read_rows(tmp_path / f / "training.csv")] for f in ("whole", "cut")
    ]
    assert str(logs[0]) == str(logs[1])


def test_tensorboard_shows_what_training_csv_holds(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, exp = experiment(tmp_path, epochs=2)
    Trainer(exp, tmp_path / "run").run()
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    rows = read_rows(tmp_path / "run" / "training.csv")
    for name in ("loss", "validation", "norm", "lr"):
        ours = [(row.update, getattr(row, name)) for row in rows if math.isfinite(getattr(row, name))]
        assert [event.step for event in events.Scalars(name)] == [update for update, _ in ours]
        assert [event.value for event in events.Scalars(name)] == pytest.approx([value for _, value in ours], rel=1e-6)


MEMORY = """
import resource, sys
from pathlib import Path
from milodo.config import load_experiment
from milodo.training import Trainer
import torch
torch.set_num_threads(1)
Trainer(load_experiment(sys.argv[1]), Path(sys.argv[2])).run()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_over_segments(tmp_path):
    """Peak memory of a process that trains over 2 segments a batch, and over 8."""
    peaks = []
    for K in (10, 40):
        folder = tmp_path / str(K)
        folder.mkdir()
        stages = f"[[training.stages]]\nK_T = 5\nK = {K}\nepochs = 1\nlr = 1e-4\nbatch = 16\n"
        text = TINY.replace("d = 12", "d = 600").replace("validation_iterations = 40", "validation_iterations = 1")
        path, _ = experiment(folder, stages=stages, text=text)
        (run,) = finish([Process(["-c", MEMORY, str(path), str(folder / "run")], environment())])
        peaks.append(int(run.out) / 1024)
    kept = 3 * 16 * 4 * 600 * 185 * 4 / 2**20  # MiB that one step keeps for its gradient: 8 segments of 5 would be 40 times that
    assert kept > 25
    assert peaks[1] < peaks[0] + 2 * kept


def test_the_guard_undoes_what_blew_up_says_so_and_gives_up_at_last(tmp_path):
    """Plain activations at an absurd rate: every batch diverges, and the weights that were good stay."""
    stages = "[[training.stages]]\nK_T = 5\nK = 30\nepochs = 40\nlr = 50.0\nbatch = 4\n"
    _, exp = experiment(tmp_path, optimizer='activations = "plain"', stages=stages)
    trainer = Trainer(exp, tmp_path / "run")
    with pytest.raises(TrainingFailed, match="Tighten"):
        trainer.run()
    remarks = [row.remark for row in read_rows(tmp_path / "run" / "training.csv") if row.remark]
    assert any("undone" in remark for remark in remarks) and any("back to the best weights" in remark for remark in remarks)
    optimizer, card = load_optimizer(tmp_path / "run" / "tiny")
    assert trainer.position.rollbacks == len(remarks) + 1 and card.training["rollbacks"] <= trainer.position.rollbacks
    problem = Lasso(4, 12, 6, 0.1).sample([7], dtype=torch.float32)
    assert solve(optimizer, problem, trainer.net, Stop(steps=40)).status.name == "STEPS"
    assert draw_training(tmp_path / "run").stat().st_size > 5000


def test_a_batch_that_is_rolled_back_leaves_weights_and_moments_as_they_were(tmp_path):
    _, exp = experiment(tmp_path, epochs=1)
    trainer = Trainer(exp, tmp_path / "run")
    trainer.run()
    stage, batch = exp.training.stages[0], trainer.training.epoch((0, 0), 4)[0]
    trainer._batch(stage, batch)  # Adam has moments now
    before, moments = trainer._weights(), {k: v["exp_avg"].clone() for k, v in trainer.adam.state.items()}
    update, sane = trainer.position.update, trainer._sane
    trainer._sane = lambda x, judge: False
    assert "undone" in trainer._batch(stage, batch).remark
    assert trainer.position.update == update and trainer.position.rollbacks == 1
    assert all(torch.equal(before[name], value) for name, value in trainer._weights().items())
    assert all(torch.equal(moments[p], state["exp_avg"]) for p, state in trainer.adam.state.items())
    trainer._sane = sane
    assert math.isfinite(trainer._batch(stage, batch).loss)


def test_the_papers_sign_that_a_stage_may_end():
    assert falling([5.0, 4.0, 3.0, 2.0]) and not falling([2.0, 3.0, 4.0, 5.0]) and not falling([1.0, 1.0])
    assert not falling([5.0, 4.0, math.nan, 1.0]) and not falling([math.inf, math.inf])


def test_under_random_initialisation_a_stage_lasts_until_the_loss_falls(tmp_path):
    stages = "[[training.stages]]\nK_T = 5\nK = 10\nepochs = 1\nlr = 1e-5\nbatch = 16\n"
    _, exp = experiment(tmp_path, optimizer='initial = "random"', stages=stages)
    trainer = Trainer(exp, tmp_path / "run")
    answers = iter([[1.0, 2.0], [2.0, 1.0]])  # it does not fall after the first epoch, and does after the second
    validate = trainer._validate

    def validated():
        validate()
        return next(answers) if trainer.position.epoch else [1.0, 2.0]

    trainer._validate = validated
    trainer.run()
    rows = read_rows(tmp_path / "run" / "training.csv")
    assert max(row.epoch for row in rows if math.isfinite(row.loss)) == 2
    assert any("goes on" in row.remark for row in rows)


def test_the_consensus_term_sees_what_the_papers_loss_does_not():
    problem, observer = Lasso(4, 12, 6, 0.1).sample([0]), StackedObserver()
    x = problem.zeros()
    apart = x + torch.tensor([1.0, -1.0, 2.0, -2.0], dtype=x.dtype).reshape(4, 1)  # the same average
    best = torch.zeros(1, dtype=x.dtype)
    for kind in ("objective", "log-gap"):
        plain, both = MetaLoss(kind), MetaLoss(kind, 0.5)
        assert float(plain(x, problem, best, observer)) == pytest.approx(float(plain(apart, problem, best, observer)))
        assert float(both(apart, problem, best, observer)) > float(both(x, problem, best, observer))


@pytest.mark.parametrize("optimizer", ["lpg-extra", "base-rules"])
def test_rivals_learn_with_the_same_trainer(tmp_path, optimizer):
    special = {"lpg-extra": "gamma = 0.05\nlayers = 20\n", "base-rules": "hidden = 24\n"}
    text = TINY.replace("lam = 0.1", "lam = 0.0") if optimizer == "base-rules" else TINY
    epochs = {"lpg-extra": 25, "base-rules": 10}[optimizer]
    stages = f"[[training.stages]]\nK_T = 10\nK = 20\nepochs = {epochs}\nlr = 1e-2\nbatch = 8\n"
    _, exp = experiment(tmp_path, optimizer=f'kind = "{optimizer}"\n{special[optimizer]}', stages=stages, text=text)
    Trainer(exp, tmp_path / "run").run()
    scores = [row.validation for row in read_rows(tmp_path / "run" / "training.csv") if math.isfinite(row.validation)]
    assert min(scores) < scores[0] - 0.2  # the gap after the validation's iterations fell by a third or more
    assert read_card(tmp_path / "run" / "tiny.safetensors").kind == optimizer


def test_lpg_extra_with_one_step_size_everywhere_is_pg_extra_and_ends_with_its_last_layer():
    problem, net = Lasso(5, 6, 8, 0.1).sample([0, 1]), StackedNetwork("path(5)")
    unrolled = list(iterate(LPGExtra("path(5)", layers=30, gamma=0.04).double(), problem, net))
    assert len(unrolled) == 31
    handcrafted = iterate(PGExtra(gamma=torch.tensor(0.04).log().exp().double()), problem, net)  # as rounded by fp32 logs
    for a, b in zip(unrolled, handcrafted, strict=False):
        torch.testing.assert_close(a.x, b.x, rtol=0, atol=1e-6)
    assert solve(LPGExtra("path(5)", layers=30).double(), problem, net, Stop(steps=1000)).k == 30
    with pytest.raises(InvalidInput, match="1 to 100"):
        LPGExtra("path(5)", layers=101)


def test_training_validation_and_test_instances_never_meet(tmp_path):
    _, exp = experiment(tmp_path, "N = [4, 6, 8, 10, 12, 14]")
    train, validation = training_set(exp, torch.float32), validation_set(exp, torch.float32)
    trained = [seed for part in train.seeds for seed in part]
    assert len(trained) == len(set(trained)) == 6 * 16
    assert [family.N for family in train.families] == [4, 6, 8, 10, 12, 14]
    assert [family.N for family in validation.families] == [4, 8, 10, 14] and all(len(s) == 1 for s in validation.seeds)
    assert not set(trained) & {seed for part in validation.seeds for seed in part}
    batches = train.epoch((0, 0), 5)
    assert sorted(seed for batch in batches for seed in batch.seeds) == sorted(trained)
    assert batches == train.epoch((0, 0), 5) and batches != train.epoch((0, 1), 5)


def test_what_cannot_be_trained_or_resumed_is_refused_in_a_sentence(tmp_path):
    path, exp = experiment(tmp_path)
    with pytest.raises(InvalidInput, match="nothing to resume"):
        Trainer(exp, tmp_path / "empty").run(resume=True)
    Trainer(exp, tmp_path / "empty").run()
    (tmp_path / "empty" / "resume.safetensors").unlink()
    with pytest.raises(InvalidInput, match=r"nothing to resume.*Overwrite it"):
        Trainer(exp, tmp_path / "empty").run(resume=True)
    with pytest.raises(InvalidInput, match="already holds a training"):
        Trainer(exp, tmp_path / "empty").run()
    (tmp_path / "empty" / "resume.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(InvalidInput, match="cannot be read"):
        Trainer(exp, tmp_path / "empty").run(resume=True)
    path.write_text(path.read_text().replace("lr = 1e-3", "lr = 2e-3"))
    with pytest.raises(InvalidInput, match="another configuration"):
        Trainer(load_experiment(path), tmp_path / "empty").run(resume=True)
    with pytest.raises(InvalidInput, match="Choose one"):
        Trainer(exp, tmp_path / "empty").run(resume=True, overwrite=True)
    with pytest.raises(InvalidInput, match=r"no \[training\]"):
        Trainer(load_experiment(Path(__file__).parent.parent / "experiments" / "demo" / "demo.toml"), tmp_path / "x")


def test_a_graph_file_that_was_edited_is_not_mixed_into_an_old_training(tmp_path):
    graph = tmp_path / "graph.txt"
    graph.write_text("0 1\n1 2\n2 3\n")
    _, exp = experiment(tmp_path, epochs=1, text=TINY.replace("ring(4)", "graph.txt"))
    Trainer(exp, tmp_path / "run").run()
    graph.write_text("0 1\n1 3\n2 3\n")
    with pytest.raises(InvalidInput, match="another graph"):
        Trainer(exp, tmp_path / "run").run(resume=True)
