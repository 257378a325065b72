"""Networks as problems: gradients, minibatches, starts, and what is measured of them."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from real import milodo as command
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import milodo
from milodo.bench.benchmark import Benchmark
from milodo.bench.records import read_records
from milodo.bench.run_file import RunFile
from milodo.config import parse_experiment
from milodo.errors import InvalidInput
from milodo.loop import advance, iterate
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import FAMILIES, L1, Box, Neural
from milodo.problems.models import ResNet, mlp
from milodo.problems.neural import Dealt
from milodo.training import Trainer

OBSERVER = StackedObserver()
DOUBLE = torch.float64
N, SIZE, CLASSES = 4, 14, 3


class Skipping(nn.Module):
    """Nothing that the fast paths know: a shortcut, a constant buffer, a frozen and a shared parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.frozen = nn.Parameter(torch.full((6,), 0.3), requires_grad=False)
        self.again = self.inner
        self.out = nn.Linear(6, CLASSES)
        self.register_buffer("shift", torch.full((6,), 0.1))

    def forward(self, x):
        x = x.flatten(1)
        return self.out(self.again((self.inner(x) + self.shift).tanh()) * self.scale + x * self.frozen)


def norm(layer):
    return nn.Sequential(nn.Linear(6, 8), layer, nn.ReLU(), nn.Linear(8, CLASSES))


MODULES = {
    "mlp": lambda: mlp(6, 5, 4, CLASSES),
    "no bias": lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, CLASSES)),
    "of its own": Skipping,
    "batch norm": lambda: norm(nn.BatchNorm1d(8)),
    "group norm": lambda: norm(nn.GroupNorm(2, 8)),
    "dropout": lambda: norm(nn.Dropout(0.5)),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(6, CLASSES)
    ),
}


def data(sizes=(SIZE,) * N, seed=0, dtype=DOUBLE):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 6, dtype=dtype, generator=generator), torch.randint(0, CLASSES, (size,), generator=generator))
        for size in sizes
    ]


def make(kind="mlp", sizes=(SIZE,) * N, **options):
    torch.manual_seed(3)
    return Neural(MODULES[kind]().double(), cross_entropy, data(sizes), **options)


def point(problem, *extra, seed=1):
    noise = torch.randn(*extra, *problem.start().shape, dtype=problem.dtype, generator=torch.Generator().manual_seed(seed))
    return problem.start() + 0.3 * noise


def by_hand(kind, x, inputs, targets):
    """The loss of an ordinary module with these parameters, in the mode that Neural promises, and its gradient."""
    torch.manual_seed(3)
    module = MODULES[kind]().double().train()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.eval()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    nn.utils.vector_to_parameters(x.detach().clone(), trained)
    loss = cross_entropy(module(inputs), targets)
    return loss.detach(), nn.utils.parameters_to_vector(torch.autograd.grad(loss, trained))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)  # the same sums in another order


@pytest.mark.parametrize("sizes", [(SIZE,) * N, (5, 14, 2, 9)], ids=["even", "uneven"])
@pytest.mark.parametrize("kind", MODULES)
def test_value_and_gradient_are_those_of_the_module(kind, sizes):
    problem = make(kind, sizes)
    x = point(problem)
    expected = [by_hand(kind, x_i, *both) for x_i, both in zip(x, data(sizes), strict=True)]
    close(problem.value(x), torch.stack([loss for loss, _ in expected]))
    close(problem.grad(x), torch.stack([g for _, g in expected]))


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("detached", [True, False])
def test_the_gradient_is_the_derivative_of_the_value_on_the_same_minibatch(kind, detached):
    step = make(kind, minibatch=4, detached=detached).at_step(5)
    x = point(step).requires_grad_()
    (expected,) = torch.autograd.grad(step.value(x).sum(), x)
    close(step.grad(x), expected)


@pytest.mark.parametrize("kind", MODULES)
def test_side_by_side_is_one_after_the_other(kind):
    together, alone = (make(kind, minibatch=4, vectorised=flag) for flag in (True, False))
    x = point(together)
    for one, other in ((together, alone), (together.at_step(2), alone.at_step(2))):
        close(one.value(x), other.value(x))
        close(one.grad(x), other.grad(x))


def test_a_gradient_is_a_constant_while_an_optimizer_is_trained_unless_asked():
    x = point(make()).requires_grad_()
    assert not make(minibatch=4).at_step(1).grad(x).requires_grad
    problem = make(minibatch=4, detached=False).at_step(1)
    assert torch.autograd.gradcheck(problem.grad, x, fast_mode=True)
    with torch.no_grad():
        assert not problem.grad(x).requires_grad


def test_candidates_share_the_data():
    problem = make(minibatch=4).at_step(1)
    x = point(problem, 2, 3)
    for k in np.ndindex(2, 3):
        close(problem.value(x)[k], problem.value(x[k]))
        close(problem.grad(x)[k], problem.grad(x[k]))


def test_the_loss_on_much_data_is_the_mean_over_batches_of_a_fixed_size(monkeypatch):
    whole = make("mlp")
    monkeypatch.setattr("milodo.problems.neural.EVALUATED", 4)
    monkeypatch.setattr("milodo.problems.neural.AT_ONCE", 50)  # two nodes at a time
    parts, x = make("mlp"), point(whole)
    close(parts.value(x), whole.value(x))
    close(parts.grad(x), whole.grad(x))
    normed = make("batch norm")  # whose statistics are those of each batch
    inputs, targets = data()[2]
    x = point(normed)
    means = [by_hand("batch norm", x[2], a, b)[0] * len(b) for a, b in zip(inputs.split(4), targets.split(4), strict=True)]
    close(normed.value(x)[2], sum(means) / SIZE)


def test_evaluation_may_look_at_the_first_samples_only():
    few, x = make(evaluate=5), point(make())
    first = Neural(MODULES["mlp"]().double(), cross_entropy, [(a[:5], b[:5]) for a, b in data()])
    close(few.value(x), first.value(x))
    close(few.grad(x), make().grad(x))


# Minibatches


def seen(problem, k):
    """Rows of the minibatch of iteration k, of each node."""
    return [set(row.tolist()) for row in problem.at_step(k).rows]


def test_minibatches_are_the_same_for_everybody_and_differ_between_nodes_iterations_and_seeds():
    one, again = make(minibatch=4), make("group norm", minibatch=4)
    assert [seen(one, k) for k in range(9)] == [seen(again, k) for k in (8, 7, 6, 5, 4, 3, 2, 1, 0)][::-1]  # in any order
    first = [{row % SIZE for row in rows} for rows in seen(one, 0)]
    assert len({frozenset(rows) for rows in first}) > 1
    assert seen(one, 0) != seen(one, 1) != seen(make(minibatch=4, seed=1), 1)


def test_an_epoch_shows_each_sample_at_most_once_and_all_that_fit():
    problem = make(minibatch=4)  # three minibatches of four in fourteen
    for epoch in range(3):
        shown = [seen(problem, k) for k in range(3 * epoch, 3 * epoch + 3)]
        assert all(len(set.union(*node)) == 12 for node in zip(*shown, strict=True))


def test_a_node_with_too_few_samples_shows_them_all():
    problem = make(sizes=(2, 14, 4, 9), minibatch=4)
    assert [len(rows) for rows in seen(problem, 7)] == [2, 4, 4, 4]
    x = point(problem)
    (expected,) = torch.autograd.grad(problem.at_step(7).value(v := x.clone().requires_grad_()).sum(), v)
    close(problem.at_step(7).grad(x), expected)


@pytest.mark.parametrize("nodes", [[2], [3, 0]])
def test_a_node_sees_the_same_wherever_it_is_held(nodes):
    whole = make(minibatch=4)
    for part in (whole.at(nodes), whole.at([1, *nodes]).at(range(1, 1 + len(nodes)))):
        x = point(whole)
        assert torch.equal(part.start(), whole.start()[nodes])
        close(part.value(x[nodes]), whole.value(x)[nodes])
        close(part.at_step(6).grad(x[nodes]), whole.at_step(6).grad(x)[nodes])


def test_without_minibatches_every_iteration_sees_everything():
    problem = make()
    assert problem.at_step(3) is problem


# Families


@pytest.fixture
def digits():
    return FAMILIES["digits-mlp"](n=N, N=40, minibatch=8)


def test_a_batch_of_instances_is_each_alone(digits):
    both = digits.sample([4, 9])
    x = point(both)
    for b, seed in enumerate((4, 9)):
        alone = digits.sample([seed])
        assert torch.equal(alone.start()[0], both.start()[b])
        torch.testing.assert_close(alone.value(x[b : b + 1])[0], both.value(x)[b])
        torch.testing.assert_close(alone.at_step(7).grad(x[b : b + 1])[0], both.at_step(7).grad(x)[b])


def test_a_process_builds_only_its_nodes_and_sees_the_same(digits):
    whole, part = digits.sample([4, 9]), digits.sample([4, 9], [2])
    x = point(whole)
    assert len(part.inputs) == len(set(np.concatenate(whole.at([2]).rows).tolist())) < len(whole.inputs)
    torch.testing.assert_close(part.value(x[:, [2]]), whole.value(x)[:, [2]])
    torch.testing.assert_close(part.at_step(7).grad(x[:, [2]]), whole.at_step(7).grad(x)[:, [2]])


def test_all_nodes_start_alike_as_pytorch_initialises():
    for kind, module in (("mlp", lambda: mlp(784, 16, 16, 10)), ("resnet", ResNet)):
        problem = Neural(module(), cross_entropy, tiny(kind), seed=[7, 8])
        start = problem.start()  # [2, n, d]
        assert (start == start[:, :1]).all() and not torch.equal(start[0], start[1])
        torch.manual_seed(8)
        assert torch.equal(start[1, 0], nn.utils.parameters_to_vector(module().parameters()).detach())


def tiny(kind):
    """Two instances of three nodes with two samples each."""
    shape = {"mlp": (784,), "resnet": (3, 8, 8)}[kind]
    rows = [[torch.arange(2 * i, 2 * i + 2) for i in range(3)]] * 2
    return Dealt(torch.randn(6, *shape), torch.arange(6), rows, (0, 1, 2), 3)


def test_a_module_may_bring_its_own_start_and_walls_are_respected():
    module = MODULES["mlp"]()
    own = nn.utils.parameters_to_vector(module.parameters()).detach()
    kept = Neural(module, cross_entropy, data(dtype=torch.float32), fresh=False)
    assert torch.equal(kept.start(), own.expand(N, -1))
    boxed = Neural(module, cross_entropy, data(dtype=torch.float32), fresh=False, reg=Box(-0.1, 0.1))
    assert torch.equal(boxed.start(), own.clamp(-0.1, 0.1).expand(N, -1))


def test_the_module_that_was_given_stays_as_it_was():
    module = MODULES["batch norm"]()
    before = copy.deepcopy(module.state_dict())
    problem = Neural(module, cross_entropy, data(dtype=torch.float32), minibatch=4)
    problem.at_step(1).grad(point(problem))
    assert module.training and all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_papers_networks_have_the_papers_sizes():
    assert FAMILIES["mlp"]().d == 13_002 and FAMILIES["mlp"]().name == "mlp(10,13002,5000,0)"
    assert FAMILIES["resnet"]().d == FAMILIES["resnet"](norm="group").d == 78_042
    assert FAMILIES["resnet"]().name == "resnet(5,78042,5000,0)"
    names = [FAMILIES["mlp"](**more).name for more in ({}, {"split": "label"}, {"minibatch": 50}, {"evaluate": 9}, {"N": 1})]
    assert len(set(names)) == 5  # a name stands for one family


@pytest.mark.parametrize("normed", ["batch", "group"])
def test_the_residual_network_treats_samples_apart_unless_it_norms_over_the_batch(normed):
    network, images = ResNet(normed), torch.randn(4, 3, 16, 16)
    apart = torch.cat([network(image) for image in images.split(2)])
    assert torch.allclose(network(images), apart, atol=1e-5) is (normed == "group")


@pytest.mark.parametrize("kind", ["mlp", "resnet"])
def test_real_formats_become_normalised_images(kind, small_data):
    family = FAMILIES[kind](n=2, N=3, minibatch=2)
    problem = family.sample([0])
    assert problem.inputs.dtype == torch.float32 and problem.inputs[0].numel() == family.pixels
    images, _ = family.images("train")
    pixels = torch.from_numpy(images.astype(np.float64) / 255).reshape(len(images), -1, *images.shape[-2:])
    spread = family.prepared(images).reshape(pixels.shape).double()
    for channel in range(pixels.shape[1]):  # an affine map of pixels, the same for all of a channel
        slope, shift = np.polyfit(pixels[:, channel].flatten(), spread[:, channel].flatten(), 1)
        torch.testing.assert_close(spread[:, channel], slope * pixels[:, channel] + shift, rtol=0, atol=1e-5)  # made in fp32
    with pytest.raises(InvalidInput, match="images, but there are only"):
        FAMILIES[kind](n=2, N=10_000_000).sample([0])


# Metrics, races, training


def test_accuracies_are_of_the_average_model_and_of_the_worst_node():
    inputs, targets = data((50,), seed=5)[0]
    problem = make(test=(inputs, targets))
    x = point(problem)
    found = problem.metrics(x, OBSERVER)

    def accuracy(x_i):
        module = MODULES["mlp"]().double()
        nn.utils.vector_to_parameters(x_i, module.parameters())
        return float((module(inputs).argmax(-1) == targets).double().mean())

    assert float(found["test_accuracy"]) == pytest.approx(accuracy(x.mean(0)))
    assert float(found["worst_accuracy"]) == pytest.approx(min(map(accuracy, x)))
    assert make().metrics(x, OBSERVER) == {}


EXPERIMENT = {
    "name": "digits", "problem": {"family": "digits-mlp", "n": 4, "N": 60, "minibatch": 20},
    "network": {"topology": "ring(4)"}, "run": {"iterations": 40, "instances": 1, "dtype": "float32", "samples_per_decade": 3},
    "tuning": {"instances": 1, "iterations": 15, "points": 3, "refinements": 0}, "methods": [{"name": "prox-ed"}],
}  # fmt: skip


def test_a_race_tunes_by_the_loss_and_records_accuracies(tmp_path, monkeypatch):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "cache"))
    folder = Benchmark(parse_experiment(EXPERIMENT, "x"), tmp_path / "run").run()
    records, tuning = read_records(folder / "records.csv"), RunFile.read(folder).tuning["prox-ed"]
    first, last = records[0], records[-1]
    assert last.loss < first.loss and math.isnan(last.gap)
    assert first.metrics["test_accuracy"] < last.metrics["test_accuracy"] and 0 <= last.metrics["worst_accuracy"] <= 1
    assert tuning.cost == "loss" and tuning.best == min(tuning.grid, key=lambda trial: trial.score or math.inf).parameters
    assert sum(not trial.reached for trial in tuning.grid) == len(tuning.grid)


def test_real_processes_see_the_same_minibatches_and_accuracies(tmp_path):
    given = {"methods": [{"name": "prox-ed", "use": "given", "parameters": {"gamma": 0.3}}]}
    experiment = parse_experiment({**EXPERIMENT, **given}, "x")
    toml = tmp_path / "digits.toml"
    toml.write_text(
        '[problem]\nfamily = "digits-mlp"\nn = 4\nN = 60\nminibatch = 20\n[network]\ntopology = "ring(4)"\n'
        '[run]\niterations = 40\ninstances = 1\ndtype = "float32"\nsamples_per_decade = 3\n'
        '[[methods]]\nname = "prox-ed"\nuse = "given"\nparameters = { gamma = 0.3 }\n'
    )
    ran = command("run", toml, "--out", tmp_path / "real", "--processes", 2)
    assert ran.code == 0, ran.err
    Benchmark(experiment, tmp_path / "simulated").run()
    real, simulated = (read_records(tmp_path / where / "records.csv") for where in ("real", "simulated"))
    assert len(real) == len(simulated) > 4
    for a, b in zip(real, simulated, strict=True):
        assert (a.k, a.bytes) == (b.k, b.bytes) and a.loss == pytest.approx(b.loss, rel=1e-4)  # 40 steps in fp32
        assert a.metrics == pytest.approx(b.metrics, abs=0.01)


def test_an_optimizer_trains_and_validates_on_losses(tmp_path):
    training = {
        "instances": 2, "validation_instances": 1, "validation_iterations": 10, "recompute": True,
        "optimizer": {"kind": "milodo", "hidden": 4, "activations": {"m": [1e-3, 1], "s": [0.01, 30], "u": [1e-3, 0.45]}},
        "stages": [{"K_T": 5, "K": 10, "epochs": 1, "lr": 1e-3, "batch": 2}],
    }  # fmt: skip
    content = {**EXPERIMENT, "methods": [], "training": training}
    Trainer(parse_experiment(content, "x"), tmp_path / "run").run()
    _, card = milodo.load_optimizer(str(tmp_path / "run" / "digits.safetensors"))
    assert math.isfinite(card.training["validation_log10_loss"])
    content = {**content, "training": {**training, "loss": "log-gap"}}
    with pytest.raises(InvalidInput, match="cannot be known, and loss = 'log-gap' needs it"):
        Trainer(parse_experiment(content, "x"), tmp_path / "gap").run()


def test_a_step_computed_again_for_its_derivative_gives_the_same_one():
    """Recomputing forgets what a step kept; the gradient of the network, a constant, it finds again."""
    problem, net = make(minibatch=4), StackedNetwork("ring(4)")
    gammas = [torch.tensor(0.1, dtype=DOUBLE, requires_grad=True) for _ in range(2)]
    for gamma, again in zip(gammas, (False, True), strict=True):
        method = milodo.ProxED(gamma=gamma)
        state = next(iterate(method, problem, net))
        for k in range(1, 5):
            arguments = (method, state, problem, net, k)
            state = checkpoint(advance, *arguments, use_reentrant=False) if again else advance(*arguments)
        problem.at_step(9).value(state.x).sum().backward()
    one, other = (gamma.grad for gamma in gammas)
    assert one is not None and other is not None and torch.equal(one, other)


def test_exact_diffusion_trains_a_network_that_its_nodes_agree_on():
    inputs = torch.randn(N, 30, 6, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    targets = (inputs.sum(-1) > 0).long()
    problem = Neural(mlp(6, 8, 2).double(), cross_entropy, (inputs, targets), test=(inputs[0], targets[0]), reg=L1(1e-4))
    result = milodo.solve(milodo.ProxED(gamma=0.3), problem, StackedNetwork("ring(4)"), milodo.Stop(steps=300))
    assert float(problem.metrics(result.x, OBSERVER)["worst_accuracy"]) > 0.95 and float(result.consensus) < 0.1


# Sentences


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"module": 3}, "needs a torch module"),
        ({"module": nn.ReLU()}, "no parameters to train"),
        ({"module": nn.LazyLinear(3)}, "lazy"),
        ({"module": nn.Linear(5, 3).double()}, "cannot take the data"),
        ({"loss": lambda a, b: a - 1}, "must be one number"),
        ({"loss": lambda a, b: a @ a}, "cannot take the data"),
        ({"data": []}, "a list of \\(inputs, targets\\)"),
        ({"data": [torch.ones(3)]}, "a list of \\(inputs, targets\\)"),
        ({"data": [(torch.ones(3, 6), torch.ones(2))]}, "node 0 has 3 inputs and 2 targets"),
        ({"data": [(torch.ones(3, 6), torch.ones(3)), (torch.ones(3, 5), torch.ones(3))]}, "differ in shape"),
        ({"data": [(torch.full((3, 6), math.nan).double(), torch.ones(3).long())]}, "NaN or Inf"),
        ({"minibatch": 0}, "minibatch"),
        ({"evaluate": 0.5}, "evaluate"),
    ],
)
def test_what_cannot_be_a_problem_gets_a_sentence(change, said):
    asked = {"module": nn.Linear(6, 3).double(), "loss": cross_entropy, "data": data(), **change}
    with pytest.raises(InvalidInput, match=said):
        Neural(asked.pop("module"), asked.pop("loss"), asked.pop("data"), **asked)


def test_who_needs_a_lipschitz_constant_is_told_that_there_is_none(tmp_path):
    with pytest.raises(InvalidInput, match="no known Lipschitz constant"):
        make().lipschitz()
    content = {**EXPERIMENT, "methods": [{"name": "prox-ed", "use": "safe"}]}
    with pytest.raises(InvalidInput, match="no known Lipschitz constant"):
        Benchmark(parse_experiment(content, "x"), tmp_path / "run").run()


@pytest.mark.parametrize(
    ("change", "said"),
    [({"split": "labels"}, "'uniform', 'label'"), ({"lam": -1.0}, "lam"), ({"norm": "none"}, "'batch' or 'group'")],
)
def test_families_say_what_they_do_not_take(change, said):
    with pytest.raises(InvalidInput, match=said):
        FAMILIES["resnet"](**change)
    with pytest.raises(InvalidInput, match="takes no 'd'"):
        parse_experiment({**EXPERIMENT, "problem": {"family": "mlp", "n": 4, "d": 3}}, "x")
