"""Choosing the penalty: the path, the folds, and what they cost. The truth is scikit-learn's on the pooled data."""

from __future__ import annotations

import csv
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from asked import asked
from real import milodo, together
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import Lasso, LassoCV, LogisticRegressionCV
from sklearn.model_selection import LeaveOneGroupOut

from milodo.cli.main import run
from milodo.cli.sites import at_end
from milodo.errors import InvalidInput
from milodo.fit import Choice, Task, fit_model, fit_path
from milodo.fit.curve import RULES, Curve, decide
from milodo.fit.folds import SITES, deal_folds
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import L1, LeastSquares, LogisticRegression
from milodo.status import Status

SAME = 1e-6
"""Relative: what scikit-learn's own tolerance leaves."""


def sparse(N, d, loss, seed=0):
    """Some features of many, correlated with their neighbours."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, d))
    X[:, 1:] = (X[:, 1:] + X[:, :-1]) / np.sqrt(2)
    w = np.zeros(d)
    w[rng.choice(d, 6, replace=False)] = 2 * rng.standard_normal(6)
    u = X @ w
    u = u + 0.7 * u.std() * rng.standard_normal(N)
    return X, u if loss == "squared" else (u > 0).astype(float)


DIABETES = load_diabetes(return_X_y=True, scaled=False)
CASES = {
    "moments": (DIABETES, "squared", {}),
    "sums": (sparse(120, 204, "squared"), "squared", {}),
    "gossip": (DIABETES, "squared", {"links": "lossy", "standardise": True}),
    "newton": (sparse(200, 8, "logistic"), "logistic", {}),
}


class Sites:
    """Rows of some data at uneven sites in this process."""

    def __init__(self, X, y, cuts=(0.2, 0.55)):
        parts = np.split(np.arange(len(y)), [int(cut * len(y)) for cut in cuts])
        self.rows, self.X, self.y, self.n = np.concatenate(parts), X, y, len(parts)
        self.features = [torch.from_numpy(X[p]) for p in parts]
        self.targets = [torch.from_numpy(np.asarray(y[p], dtype=float)) for p in parts]
        self.columns = tuple(f"x{k}" for k in range(X.shape[1]))

    def net(self):
        return StackedNetwork(f"path({self.n})")

    def choose(self, task, choice=None, **also):
        parts = (self.features, self.targets, task, self.net(), StackedObserver())
        return fit_path(asked(*parts, columns=self.columns, **also), choice or Choice())

    def fit(self, task):
        return fit_model(asked(self.features, self.targets, task, self.net(), StackedObserver(), columns=self.columns))

    def splits(self, choice, loss):
        """The folds as scikit-learn is given them, rows of all sites in one array."""
        dealt = deal_folds(self.targets, self.net(), choice.folds, choice.seed, classes=loss == "logistic")
        fold = torch.cat(dealt).numpy()
        return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(fold.max() + 1)]


@pytest.mark.parametrize(("name", "folds"), [("moments", 5), ("moments", SITES), ("sums", 5), ("gossip", SITES)])
def test_the_penalty_is_the_one_lasso_cv_chooses_on_the_same_folds(name, folds):
    (X, y), loss, options = CASES[name]
    count, tolerance = (4, 1e-4) if name == "gossip" else (10, 1e-6)
    sites, choice = Sites(X, y), Choice(folds=folds, n_alphas=count, eps=0.02, tolerance=tolerance)
    fit, path = sites.choose(Task(target="y", tolerance=1e-2 * tolerance, **options), choice)
    Z = (X - X.mean(0)) / X.std(0) if options.get("standardise") else X
    truth = LassoCV(alphas=count, eps=0.02, cv=sites.splits(choice, loss), tol=1e-8, max_iter=10**6).fit(Z, y)
    assert path.penalties == pytest.approx(truth.alphas_.tolist(), rel=1e-9)  # λ_max by consensus
    assert path.penalty == pytest.approx(truth.alpha_, rel=1e-9) and fit.status is Status.CONVERGED
    exact = np.array(path.tolerances) <= choice.tolerance
    assert np.array(path.losses)[exact] == pytest.approx(truth.mse_path_[exact], rel=1e-2 if name == "gossip" else 2e-4)
    model = Lasso(alpha=truth.alpha_, tol=1e-12, max_iter=10**6).fit(Z, y)
    found = fit.standardised if options.get("standardise") else fit.coefficients
    assert np.array(found) == pytest.approx(model.coef_, abs=(1e-3 if name == "gossip" else SAME) * np.abs(model.coef_).max())


def test_the_penalty_is_the_one_logistic_regression_cv_chooses_on_the_same_folds():
    (X, y), loss, _ = CASES["newton"]
    sites, Cs = Sites(X, y), np.geomspace(0.1, 20, 6)  # below, saga stops before it has found the intercept
    choice = Choice(alphas=tuple(1 / (Cs * len(y))), tolerance=1e-7)
    _, path = sites.choose(Task(target="y", loss=loss), choice)
    own = {"l1_ratios": (1.0,), "solver": "saga", "scoring": "neg_log_loss", "use_legacy_attributes": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = LogisticRegressionCV(Cs=Cs, cv=sites.splits(choice, loss), tol=1e-7, max_iter=20_000, **own).fit(X, y)
    losses = -np.asarray(truth.scores_).reshape(5, len(Cs)).T
    assert np.array(path.losses) == pytest.approx(losses, rel=1e-4)
    assert 1 / (path.penalty * len(y)) == pytest.approx(float(np.ravel(truth.C_)[0]))
    assert 0 < path.chosen < len(Cs) - 1, "a choice at an end of the path says little"


@pytest.mark.parametrize("name", ["moments", "newton", "sums"])
def test_no_feature_is_used_at_the_largest_penalty_and_one_just_below(name):
    (X, y), loss, options = CASES[name]
    sites, task = Sites(X, y), Task(target="y", loss=loss, **options)
    _, path = sites.choose(task, Choice(n_alphas=2, folds=2, eps=0.5))
    used = [np.count_nonzero(sites.fit(replace(task, l1=share * path.penalties[0])).coefficients) for share in (1.0001, 0.999)]
    assert used[0] == 0 < used[1]
    if name != "sums":  # there it moves along until all folds are near enough
        assert path.used[0] == 0


def test_the_rule_of_one_standard_error_takes_the_largest_penalty_that_is_as_good():
    losses = np.array([[9.0, 9.0, 9.0], [3.1, 3.2, 3.3], [3.0, 3.1, 3.5], [3.0, 3.0, 3.36], [4.0, 4.0, 4.0]])
    found = decide(losses, "1se")
    assert found.best == 3 and found.error[3] == pytest.approx(0.12) and found.mean[1] == pytest.approx(3.2)
    assert found.chosen == 1 and decide(losses, "min").chosen == 3  # 3.2 <= 3.12 + 0.12
    X, y = DIABETES
    _, path = Sites(X, y).choose(Task(target="y"), Choice(rule="1se"))
    below = [p for p, mean in enumerate(path.mean) if mean <= path.mean[path.best] + path.error[path.best]]
    assert path.chosen == below[0] < path.best and path.penalty > path.penalties[path.best]


@pytest.mark.parametrize("rule", RULES)
def test_a_penalty_is_called_the_smallest_only_where_it_is(rule):
    X, y = DIABETES
    _, path = Sites(X, y).choose(Task(target="y"), Choice(rule=rule, n_alphas=8, eps=0.02))
    assert path.at_end and (path.chosen == path.best) == (rule == "min")
    assert ("The penalty chosen is the smallest" in at_end(path)) == (rule == "min")


def test_one_site_is_left_out_at_a_time():
    X, y = DIABETES
    sites, choice = Sites(X, y), Choice(folds=SITES, n_alphas=6)
    site = np.concatenate([np.full(len(t), k) for k, t in enumerate(sites.targets)])
    assert [test.tolist() for _, test in sites.splits(choice, "squared")] == [
        test.tolist() for _, test in LeaveOneGroupOut().split(X, groups=site)
    ]
    _, path = sites.choose(Task(target="y"), choice)
    assert path.folds == "one site each" and np.array(path.losses).shape == (6, 3)


def test_folds_lie_inside_the_sites_and_belong_to_nodes_not_to_processes():
    targets = [torch.arange(size, dtype=torch.float64) % 2 for size in (17, 4, 60)]
    net = StackedNetwork("ring(3)")
    dealt = deal_folds(targets, net, 5, 0, classes=True)
    assert [sorted(np.bincount(fold.numpy(), minlength=5).tolist()) for fold in dealt] == [
        [3, 3, 3, 4, 4], [0, 1, 1, 1, 1], [12, 12, 12, 12, 12],
    ]  # fmt: skip
    for fold, y in zip(dealt, targets, strict=True):  # each class is dealt out by itself, to one sample
        for k in range(5):
            inside = y[fold == k]
            assert abs(float(inside.sum()) - len(inside) / 2) <= 1
    other = deal_folds(targets, net, 5, 1, classes=True)
    assert not torch.equal(dealt[2], other[2]) and torch.equal(deal_folds(targets, net, 5, 0, classes=True)[2], dealt[2])


SMALL = {"moments": 1.2, "newton": 6.0, "sums": 6.0}
"""Fits that a path may cost. Newton's counts all that decides when it is exact enough: gradients, and where to go next."""


@pytest.mark.parametrize("name", SMALL)
def test_a_path_of_thirty_penalties_costs_a_few_fits(name):
    """Of all samples alone, and of those outside of each fold: the models of one path take as much as those of another."""
    (X, y), loss, _ = CASES[name]
    sites, task = Sites(X, y), Task(target="y", loss=loss)
    fit, path = sites.choose(task)
    one = sites.fit(replace(task, l1=path.penalty))
    assert len(path.penalties) == 30 and fit.status is one.status is Status.CONVERGED
    assert fit.coefficients == pytest.approx(one.coefficients, abs=SAME * np.abs(one.coefficients).max())
    assert path.bytes / 6 <= SMALL[name] * one.bytes, (path.bytes / one.bytes, one.bytes)
    assert fit.bytes - path.bytes <= 1.2 * one.bytes


def test_beside_moments_only_losses_of_folds_and_one_gradient_travel():
    """Counted by hand: 4 messages over the 2 edges of the tree for each sum, 8 bytes a number."""
    X, y = DIABETES
    d, folds, penalties = X.shape[1], 4, 7
    _, path = Sites(X, y).choose(Task(target="y"), Choice(folds=folds, n_alphas=penalties))
    scaling, sizes, gradient = 2 * d + 2, folds, d + 1
    moments = folds * (d + 1) * (d + 4) // 2
    assert path.bytes == 4 * 8 * (scaling + sizes + gradient + moments + penalties * folds)


def test_folds_that_travel_together_are_counted_as_often_as_there_are():
    """K folds in one message are K times the bytes of one, in the same rounds."""
    X, y = sparse(60, 12, "squared")
    sites, task = Sites(X, y), Task(target="y", method="tree-apg")
    sent = {}
    for folds in (2, 5):
        net = sites.net()
        request = asked(sites.features, sites.targets, task, net, StackedObserver(), columns=sites.columns)
        _, path = fit_path(request, Choice(folds=folds, alphas=(0.5,), tolerance=1e-2))
        sent[folds] = path.bytes, path.rounds
    fixed = 4 * 8 * (2 * 12 + 2 + 13)
    per = {folds: (total - fixed - 4 * 8 * 2 * folds) / (folds + 1) for folds, (total, _) in sent.items()}
    iterations = {folds: per[folds] / (4 * 8 * 14) for folds in per}  # a gradient, an intercept and one number more
    assert all(value == round(value) and value >= 1 for value in iterations.values()), iterations


@pytest.mark.parametrize("model", [LeastSquares, LogisticRegression])
def test_other_weights_of_the_same_samples_are_instances(model):
    rng = np.random.default_rng(0)
    A, b = torch.from_numpy(rng.standard_normal((3, 7, 4))), torch.from_numpy((rng.uniform(size=(3, 7)) > 0.5).astype(float))
    weights = torch.from_numpy(rng.uniform(size=(5, 3, 7)) * (rng.uniform(size=(5, 3, 7)) > 0.3))
    many, x = model(A, b, L1(0.1), weights), torch.from_numpy(rng.standard_normal((5, 3, 4)))
    assert many.batch == (5,) and many.at([0, 2]).batch == (5,)
    certificates = many.certificate(x[:, 0], StackedObserver())
    for k in range(5):
        one = model(A, b, L1(0.1), weights[k])
        assert torch.allclose(many.value(x)[k], one.value(x[k])) and torch.allclose(many.grad(x)[k], one.grad(x[k]))
        assert torch.allclose(many.lipschitz()[k], one.lipschitz())
        assert torch.allclose(certificates[k], one.certificate(x[k, 0], StackedObserver()))


def test_a_penalty_solved_coarsely_is_solved_again_where_it_might_decide():
    curve = Curve("min", unit=1.0, tight=1e-4)
    for mean, tolerance in ((1.0, 1e-4), (0.5, 1e-2), (0.47, 1e-2), (0.46, 1e-4), (0.9, 1e-2)):
        curve.add(np.array([mean, mean + 0.02]), tolerance)
    assert curve.doubtful() == 2  # 0.47 may be 0.45 in truth, and is the likeliest
    curve.put(2, np.array([0.455, 0.475]), 1e-4)
    assert curve.decided.best == 2 and curve.doubtful() == 1
    curve.put(1, np.array([0.5, 0.52]), 1e-4)
    assert curve.doubtful() is None and curve.next_tolerance() == 1e-2  # the last lies far above the least


def test_sites_with_fewer_rows_than_folds_take_part():
    X, y = DIABETES
    _, path = Sites(X, y, cuts=(0.005, 0.009)).choose(Task(target="y"), Choice(n_alphas=4))
    assert np.isfinite(path.losses).all()


def test_what_cannot_be_folded_is_one_sentence():
    X, y = DIABETES
    with pytest.raises(InvalidInput, match="there must be two at least"):
        Sites(X, y, cuts=()).choose(Task(target="y"), Choice(folds=SITES))
    with pytest.raises(InvalidInput, match=r"fold \d of 9 has no sample of all sites together. Use fewer folds"):
        Sites(X[:8], y[:8]).choose(Task(target="y"), Choice(folds=9))
    labels = np.arange(len(y)) < 30
    with pytest.raises(InvalidInput, match="all samples of a class lie in fold 1 of 3"):
        Sites(X, labels.astype(float)).choose(Task(target="y", loss="logistic"), Choice(folds=SITES))
    for wrong, said in (
        ({"folds": "rows"}, "number of folds, or 'sites'"),
        ({"rule": "2se"}, "unknown rule"),
        ({"eps": 2}, "eps is 2"),
    ):
        with pytest.raises(InvalidInput, match=said):
            Choice(**wrong)


def test_targets_that_no_feature_explains_get_a_model_without_features():
    X, _ = DIABETES
    fit, path = Sites(X, np.full(len(X), 3.0)).choose(Task(target="y"))
    assert set(path.used) == {0} and fit.intercept == pytest.approx(3.0)


def hospitals(folder, logistic=False):
    """Diabetes, or ten columns of breast cancer, at three sites of different sizes; returns the options for their target."""
    bunch = load_breast_cancer() if logistic else load_diabetes(scaled=False)
    for k, rows in enumerate(np.split(np.arange(len(bunch.target)), [100, 250])):
        with (folder / f"site-{k}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*bunch.feature_names[:10], "y"])
            writer.writerows(
                [*map(float, row), value] for row, value in zip(bunch.data[rows, :10], bunch.target[rows], strict=True)
            )
    return ["--target", "y", *(["--loss", "logistic"] if logistic else []), "--standardise"]


@pytest.mark.parametrize("way", ["moments", "newton", "sums"])
def test_real_nodes_choose_what_one_process_chooses(tmp_path, way):
    words = [*hospitals(tmp_path, way == "newton"), "--l1", "auto", "--rule", "1se", "--penalties", "6"]
    words += ["--method", "tree-apg", "--tolerance", "1e-5"] if way == "sums" else []
    here, there = tmp_path / "here", tmp_path / "there"
    assert milodo("solve", "--data", tmp_path / "site-*.csv", *words, "--out", here).code == 0
    ends = together(["-m", "milodo", "node", *words, "--data", str(tmp_path / "site-{rank}.csv"), "--out", str(there)], 3)
    assert "chosen:" in ends[0].out and "chosen:" not in ends[1].out
    for folder in (there, there / "node-1", there / "node-2"):
        files = {file.name for file in folder.iterdir()}
        assert files >= {"fit.json", "coefficients.csv", "path.json", "path.csv", "path.png"}, folder
    real, simulated = (json.loads((folder / "path.json").read_text()) for folder in (there, here))
    for name in ("penalty", "chosen", "best"):
        assert real[name] == pytest.approx(simulated[name], rel=1e-9), name
    # A look at the tolerance that a rounding decides ends a penalty a few steps sooner or later.
    price, loss, answer = (0.2, 1e-3, 1e-3) if way == "sums" else (0.0, 1e-9, 1e-9)
    for name in ("rounds", "bytes"):
        assert real[name] == pytest.approx(simulated[name], rel=price), name
    assert np.array(real["losses"]) == pytest.approx(np.array(simulated["losses"]), rel=loss)
    fits = [json.loads((folder / "fit.json").read_text()) for folder in (there, here)]
    size = np.abs(fits[1]["standardised"]).max()
    assert fits[0]["standardised"] == pytest.approx(fits[1]["standardised"], abs=answer * size)
    assert fits[0]["task"]["l1"] == real["penalty"] and fits[0]["gap"] < 1e-5


def test_nodes_that_choose_differently_are_refused(tmp_path):
    words = ["-m", "milodo", "node", *hospitals(tmp_path), "--data", str(tmp_path / "site-{rank}.csv"), "--l1", "auto"]
    from real import begin, finish, free_port

    port = free_port()
    out = ["--out", str(tmp_path / "fit"), "--timeout", "200"]
    ends = finish([begin([*words, *out, *(["--folds", "4"] if rank else [])], rank, 3, port) for rank in range(3)])
    said = " ".join(end.err for end in ends)
    assert all(end.code in (2, 3) for end in ends) and "its choice.folds is 4, but node 0 (rank 0) has 5" in said


def test_one_command_chooses_fits_certifies_and_draws(tmp_path, capsys):
    words = hospitals(tmp_path)
    command = ["solve", "--data", str(tmp_path / "site-*.csv"), *words, "--l1", "auto", "--out", str(tmp_path / "fit")]
    with pytest.raises(SystemExit, match="0"):
        run(command)
    said = capsys.readouterr().out
    for part in ("mean squared error", "standard error", "chosen:", "bmi", "above the minimum by at most", "path.png"):
        assert part in said
    with (tmp_path / "fit" / "path.csv").open() as file:
        header, *rows = csv.reader(file)
    path = json.loads((tmp_path / "fit" / "path.json").read_text())
    assert len(rows) == 30 and header[-1] == "s6" and float(rows[path["chosen"]][0]) == path["penalty"]
    assert [int(row[4]) for row in rows].index(1) == path["chosen"]
    assert (tmp_path / "fit" / "path.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--l1", "much"], "'much' is no number"),
        (["--l1", "0.1", "--folds", "3"], "--folds says how a penalty is chosen, but --l1 is 0.1. Give --l1 auto."),
        (["--l1", "auto", "--folds", "all"], "or 'sites' to leave out one at a time (--folds)."),
        (["--l1", "auto", "--folds", "1"], "must be a whole number >= 2"),
        (["--l1", "auto", "--rule", "most"], "unknown rule 'most'"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(tmp_path, capsys, options, said):
    words = ["solve", "--data", str(tmp_path / "site-*.csv"), *hospitals(tmp_path), *options, "--out", str(tmp_path / "fit")]
    try:
        code = run(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and said in " ".join(capsys.readouterr().err.replace("│", " ").split()) and not (tmp_path / "fit").exists()
