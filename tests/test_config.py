"""A wrong experiment gets one sentence with file, table, key and the nearest right word, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from milodo.cli.experiments import loaded_experiment
from milodo.config import load_experiment
from milodo.config.experiment import read_content
from milodo.errors import InvalidInput
from milodo.shipped import find_experiment, shipped_experiments

GOOD = """
[problem]
family = "lasso"
n = 5
d = 8
N = 20
lam = 0.1

[network]
topology = "ring(5)"

[run]
iterations = 100

[[methods]]
name = "prox-ed"
"""


def load(tmp_path: Path, text: str, **overrides):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_experiment(path, **overrides)


@pytest.mark.parametrize("path", sorted((Path(__file__).parent.parent / "experiments").glob("*/*.toml")), ids=lambda p: p.stem)
def test_every_shipped_experiment_is_valid_and_found_by_its_name(path):
    experiment = loaded_experiment(Path(path.stem))
    assert experiment.name.startswith(path.stem)  # of several panels, the first
    large = path.stem.startswith(("fig-", "table-"))  # the paper itself has one instance of some of these
    assert experiment.run.instances >= 32 or large or experiment.problem.family in ("mlp", "resnet", "cnn")


def test_defaults_and_overrides(tmp_path):
    experiment = load(tmp_path, GOOD, seed=7, dtype="float32")
    assert (experiment.name, experiment.seed, experiment.run.dtype, experiment.run.instances) == ("mine", 7, "float32", 32)
    assert experiment.methods[0].use == "tuned"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("lam = 0.1", "lamda = 0.1"), r"mine.toml: unknown key 'lamda' in \[problem\]. Did you mean 'lam'\?"),
        (('topology = "ring(5)"', 'topolgy = "ring(5)"'), r"unknown key 'topolgy' in \[network\]. Did you mean 'topology'\?"),
        (('name = "prox-ed"', 'name = "prox-de"'), "unknown method 'prox-de'. Did you mean 'prox-ed'"),
        (('family = "lasso"', 'family = "laso"'), "unknown family 'laso'. Did you mean 'lasso'"),
        (('topology = "ring(5)"', 'topology = "ring(6)"'), r"the topology ring\(6\) has 6 nodes, but \[problem\] says n = 5"),
        (('topology = "ring(5)"', 'topology = "rnig(5)"'), "unknown topology 'rnig'. Did you mean 'ring'"),
        (('topology = "ring(5)"', 'topology = "ring(5)"\nweights = "metropolitan"'), "unknown weights 'metropolitan'. Did you mean 'metropolis'"),
        (("lam = 0.1", "lam = -0.1"), r"'lam' in \[problem\] is -0.1"),
        (("iterations = 100", "iterations = 0"), r"'iterations' in \[run\] is 0"),
        (("iterations = 100", 'iterations = "many"'), r"'iterations' in \[run\] is 'many'"),
        (("iterations = 100", 'iterations = 100\ndtype = "float16"'), r"'dtype' in \[run\] is 'float16'"),
        (("iterations = 100", 'iterations = 100\ndevice = "gpu9"'), "device 'gpu9' is not to be had here"),
        (("[run]\niterations = 100\n", ""), r"needs \[run\]"),
        (("iterations = 100", "instances = 32"), r"\[run\] needs 'iterations'"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[[methods]]\nname = "prox-ed"'), "listed twice"),
        (('name = "prox-ed"', 'name = "prox-ed"\nuse = "given"'), "give all of its parameters"),
        (('name = "prox-ed"', 'name = "prox-ed"\nuse = "given"\nparameters = {gamma = -1.0}'), "Prox-ED: gamma is -1, but a step size must be"),
        (('name = "prox-ed"', 'name = "prox-ed"\nuse = "given"\nparameters = {gama = 1.0}'), "unknown parameter 'gama'. Did you mean 'gamma'"),
        (('name = "prox-ed"', 'name = "prox-ed"\nparameters = {gamma = 1.0}'), "would ignore them"),
        (('name = "prox-ed"', 'name = "prox-ed"\nuse = "published"'), "needs the published numbers. Give them in parameters"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[report]\nbaseline = "dapg"'), r"\[report\] baseline: unknown method 'dapg'"),
        (("lam = 0.1", '[problem.regularizer]\nkind = "elastic"'), "unknown regularizer 'elastic'. Did you mean 'elastic_net'"),
        (("lam = 0.1", '[problem.regularizer]\nkind = "box"\nlow = 1.0'), "regularizer 'box' takes low, high, but got low"),
        (("lam = 0.1", '[problem.regularizer]\nkind = "box"\nlwo = 1.0'), r"unknown key 'lwo' in \[problem.regularizer\]. Did you mean 'low'"),
        (("[problem]", "[problem"), "not valid TOML"),
        (("n = 5", 'n = "5"'), r"'n' in \[problem\] is '5'"),
        (("[problem]", 'name = "../up"\n[problem]'), "'name' in the file's first lines is '../up'"),
        (('name = "prox-ed"', 'name = "prox-ed"\nuse = "given"\nparameters = {gamma = true}'), r"'gamma' in \[methods.parameters\] is True"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[report]\ngaps = [-1.0]'), r"'gaps' in \[report\] is -1.0"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[report]\ngaps = []'), r"'gaps' in \[report\] is \[\]"),
        (("lam = 0.1", 'lam = 0.1\n[problem.regularizer]\nkind = "l1"\nlam = 0.2'), "both lam and"),
        (('topology = "ring(5)"', 'topology = "star(5)"\nweights = "third"'), "weights 'third' are for a ring"),
        (("[problem]", "[[problem]]"), r"\[problem\] must be one table"),
        (('name = "prox-ed"', 'name = "milodo"'), "milodo is learned: name its weights"),
        (('name = "prox-ed"', 'name = "milodo"\nweights = "x"\nuse = "tuned"'), "takes weights, neither use nor parameters"),
        (('name = "prox-ed"', 'name = "prox-ed"\nweights = "x"'), "prox-ed is handcrafted and has no weights"),
        (('[[methods]]\nname = "prox-ed"', ""), r"needs \[methods\]"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training]\noptimizer = "milodoo"'), "unknown kind of optimizer 'milodoo'. Did you mean 'milodo'"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training]\nclips = 1.0'), r"unknown key 'clips' in \[training\]. Did you mean 'clip'"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training.optimizer.activations]\nm = [1.0, 0.5]\ns = [0.1, 1]\nu = [0.1, 1]'), r"the bounds \[1.0, 0.5\] must satisfy 0 < low < high"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training.optimizer]\nactivations = "plane"'), "activations are 'plane': write 'bounded', 'plain', or bounds"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training.optimizer.activations]\nm = [1.0]\ns = [0.1, 1]\nu = [0.1, 1]'), r"an activation is \[1.0\]: write \[low, high\]"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training.optimizer]\nkind = "milodo"\ngama = 0.1'), r"unknown key 'gama' in \[training.optimizer\]. Did you mean 'gamma'"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[[training.stages]]\nK_T = 5\nK = 12\nepochs = 1\nlr = 1e-3'), "K = 12 is not a multiple of K_T = 5"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training]\nlayers = 50'), r"unknown key 'layers' in \[training\]. It belongs into \[training.optimizer\]"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training.optimizer]\nlayers = 50'), r"unknown key 'layers' in \[training.optimizer\]. Known: every, inputs"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training.optimizer]\nkind = "base-rules"\ninitial = "special"'), r"unknown key 'initial' in \[training.optimizer\]"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training]\nvalidation_iterations = 50\n[training.optimizer]\ninitial = "random"'), "Validate at least as long"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training]\noptimizer = 3'), "unknown kind of optimizer 3"),
        (("[problem]", 'name = "resume"\n[training]\n[problem]'), "would overwrite a file of its own training"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training.optimizer]\nkind = "lpg-extra"\nlayers = 50'), "unrolls 100 iterations, but lpg-extra can do 50"),
        (("iterations = 100", 'iterations = 100\ndevice = "meta"'), "device 'meta' is not to be had here"),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_sentence(tmp_path, change, says):
    assert change[0] in GOOD
    with pytest.raises(InvalidInput, match=says) as caught:
        load(tmp_path, GOOD.replace(*change))
    assert str(caught.value).startswith(str(tmp_path / "mine.toml"))
    assert "\n" not in str(caught.value)


def test_a_missing_file_suggests_its_neighbour(tmp_path):
    (tmp_path / "lasso.toml").write_text(GOOD)
    with pytest.raises(InvalidInput, match=r"Did you mean .*lasso\.toml"):
        load_experiment(tmp_path / "laso.toml")
    with pytest.raises(InvalidInput, match=r"unknown experiment 'dmo'\. Did you mean 'demo'"):
        find_experiment("dmo")


def test_a_graph_file_is_named_as_seen_from_the_experiment(tmp_path):
    (tmp_path / "links.txt").write_text("0 1\n1 2\n2 3\n3 4\n")
    experiment = load(tmp_path, GOOD.replace('"ring(5)"', '"links.txt"'))
    assert experiment.network.build().diameter == 4


def test_a_folder_named_like_a_shipped_experiment_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert find_experiment("demo").name == "demo.toml"


def test_experiments_have_names_of_their_own_and_stand_in_the_folder_of_what_they_do():
    files = sorted((Path(__file__).parent.parent / "experiments").rglob("*.toml"))
    assert shipped_experiments() == {file.stem: file for file in files} and len({file.stem for file in files}) == len(files)
    assert {file.parent.name for file in files} == {"demo", "paper", "training", "selection"}
    for file in files:
        content = read_content(file)
        assert ("reproduction" in content) == (file.parent.name == "paper"), file
        assert ("training" in content) == (file.parent.name == "training"), file


def test_one_method_may_race_twice_under_two_labels(tmp_path):
    twice = "\n".join(
        f'[[methods]]\nname = "prox-ed"\nlabel = "{c}"\nuse = "given"\nparameters = {{gamma = 0.{c}}}' for c in (1, 2)
    )
    assert [m.key for m in load(tmp_path, GOOD + twice).methods] == ["prox-ed", "prox-ed (1)", "prox-ed (2)"]


def test_any_regularizer_can_be_asked_for(tmp_path):
    text = GOOD.replace("lam = 0.1", '[problem.regularizer]\nkind = "elastic_net"\nlam = 0.1\nmu = 0.2')
    assert "ElasticNet(lam=0.1, mu=0.2)" in load(tmp_path, text).problem.build().name


def test_an_experiment_that_only_trains_needs_no_race_and_defaults_to_the_papers_stages(tmp_path):
    text = GOOD.replace('[[methods]]\nname = "prox-ed"\n', "[training]\n").replace("[run]\niterations = 100\n", "")
    stages = load(tmp_path, text).training.stages
    assert [(s.K_T, s.K, s.epochs, s.lr, s.batch) for s in stages] == [
        (5, 10, 20, 5e-4, 32),
        (10, 20, 10, 1e-4, 32),
        (20, 40, 10, 5e-5, 32),
        (40, 80, 10, 1e-5, 32),
        (20, 100, 5, 1e-5, 32),
    ]


@pytest.mark.parametrize("override", [{"seed": 1}, {"dtype": "float32"}, {"device": "cpu"}])
@pytest.mark.parametrize("run", ["run = 5", 'run = "long"', "run = [1, 2]", "run = true"])
def test_a_run_that_is_no_table_is_refused_whatever_is_overridden(tmp_path, run, override):
    with pytest.raises(InvalidInput, match=r"mine.toml: \[run\] must be one table"):
        load(tmp_path, run + GOOD.replace("[run]\niterations = 100\n", ""), **override)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("N = 20", "N = 10000000000000"), r"one instance of lasso\(5,8,10000000000000,0.1\) would need 3.6 PB of memory, but .* Make n, d or N smaller"),
        (('"ring(5)"', f'"{"x" * 300}"'), "cannot read the topology 'xxx"),
        (('"ring(5)"', f'"y/{"x" * 300}.txt"'), "no graph file 'y/xxx"),
        (('"ring(5)"', '"x\\u0000y"'), "cannot read the topology"),
        (("iterations = 100", f"iterations = 1{'0' * 400}"), "'iterations' in .run. is 1000.*: input should be less than"),
        (("iterations = 100", "iterations = 100\ninstances = 1000000"), "'instances' in .run. is 1000000: input should be less than or equal to 999999"),
        (("iterations = 100", "iterations = 100\n[tuning]\npoints = 1000000000"), "'points' in .tuning. is 1000000000"),
        (('name = "prox-ed"', f'name = "prox-ed"\nuse = "given"\nparameters = {{gamma = 1{"0" * 400}}}'), "Prox-ED: gamma is 1000.*, but a step size must be a finite number"),
        (('name = "prox-ed"', f'name = "{"x" * 5000}"'), "unknown method 'xxx"),
        (('name = "prox-ed"', f'name = "prox-ed"\nlabel = "{"x" * 5000}"\n[report]\nbaseline = "dapg"'), "unknown method 'dapg'"),
        (("[problem]", f"{'x' * 5000} = 1\n[problem]"), "unknown key 'xxx"),
        (("[problem]", "int = 1\n[problem]"), "unknown key 'int' in the file's first lines"),
        (("[problem]", f"title = {'[' * 2000}{']' * 2000}\n[problem]"), "not valid TOML"),
        (("[problem]", f"seed = {'9' * 5000}\n[problem]"), "not valid TOML"),
        (("[problem]", f"seed = {'9' * 30}\n[problem]"), "'seed' in the file's first lines is 999.*: input should be less than"),
        (('name = "prox-ed"', 'name = "prox-ed"\n[training.optimizer]\nhidden = 5000'), "'hidden' in .training.optimizer. is 5000: input should be less than or equal to 4096"),
    ],
)  # fmt: skip
def test_a_mistake_of_any_size_gets_one_short_sentence(tmp_path, change, says):
    assert change[0] in GOOD
    with pytest.raises(InvalidInput, match=says) as caught:
        load(tmp_path, GOOD.replace(*change))
    said = str(caught.value).removeprefix(str(tmp_path))
    assert len(said) < 500 and "\n" not in said


@pytest.mark.parametrize("name", ["x" * 300, f"{'x' * 300}.toml", f"y/{'x' * 300}", "x\0y.toml"])
def test_a_name_that_no_experiment_can_have_is_refused(name):
    with pytest.raises(InvalidInput, match=r"unknown experiment 'xxx|no experiment '") as caught:
        load_experiment(find_experiment(name))
    assert len(str(caught.value)) < 400


def test_a_byte_order_mark_before_an_experiment_does_no_harm(tmp_path):
    (tmp_path / "mine.toml").write_text(GOOD, encoding="utf-8-sig")
    assert load_experiment(tmp_path / "mine.toml").name == "mine"
