"""Own data at several sites: the fit is that of all data together, and bad input is one sentence."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from asked import asked
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.preprocessing import StandardScaler

from milodo.cli.main import run
from milodo.errors import InvalidInput
from milodo.fit import Listeners, Task, fit_here, fit_model, pooled_problem, scaling
from milodo.fit.pooled import penalty, total_of
from milodo.fit.sites import classes_here, numeric_target
from milodo.fit.tables import read_site
from milodo.network import StackedNetwork, StackedObserver
from milodo.network.consensus import average, average_rounds, maximum
from milodo.problems import L1, LeastSquares, optimum
from milodo.status import Status
from milodo.topology import EXAMPLES

DIABETES, CANCER = load_diabetes(scaled=False), load_breast_cancer()
EQUAL = 1e-6


def write_csv(path, names, X, target, y, delimiter=","):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow([*names, target])
        writer.writerows([*(repr(float(v)) for v in row), value] for row, value in zip(X, y, strict=True))
    return path


def hospitals(folder, cuts=(100, 250)):
    """The diabetes data at three sites of different sizes."""
    parts = np.split(np.arange(len(DIABETES.target)), cuts)
    return [
        write_csv(folder / f"site-{k}.csv", DIABETES.feature_names, DIABETES.data[rows], "progression", DIABETES.target[rows])
        for k, rows in enumerate(parts)
    ]


def clinics(folder):
    """The breast cancer data at four sites, sorted by diagnosis: two of them know one class only."""
    order = np.argsort(CANCER.target, kind="stable")
    names = [str(CANCER.target_names[k]) for k in CANCER.target]
    return [
        write_csv(
            folder / f"clinic-{k}.csv", map(str, CANCER.feature_names), CANCER.data[rows], "diagnosis", [names[r] for r in rows]
        )
        for k, rows in enumerate(np.split(order, [100, 300, 450]))
    ]


@pytest.mark.parametrize("graph", ["ring", "star", "path", "complete"])
def test_lasso_equals_scikit_learn_on_the_pooled_data(tmp_path, graph):
    sites = [read_site(path, "progression") for path in hospitals(tmp_path)]
    fit = fit_here(sites, Task(target="progression", l1=1.0, graph=graph, standardise=True))
    Z = StandardScaler().fit(DIABETES.data)
    model = Lasso(alpha=1.0, tol=1e-14, max_iter=10**6).fit(Z.transform(DIABETES.data), DIABETES.target)
    assert fit.standardised == pytest.approx(model.coef_, abs=EQUAL)
    assert fit.coefficients == pytest.approx(model.coef_ / Z.scale_, abs=EQUAL)
    predicted = DIABETES.data @ np.array(fit.coefficients) + fit.intercept
    assert predicted == pytest.approx(model.predict(Z.transform(DIABETES.data)), abs=1e-5)
    assert (fit.samples, fit.status) == (442, Status.CONVERGED)
    assert 0 <= fit.gap < 1e-6 and fit.consensus < 1e-8


@pytest.mark.parametrize("intercept", [True, False])
def test_lasso_without_scaling_equals_scikit_learn(tmp_path, intercept):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 6)) + 0.5
    y = X @ [1, 0, -2, 0, 0, 3] + 4 + 0.1 * rng.standard_normal(90)
    names = [f"f{k}" for k in range(6)]
    paths = [write_csv(tmp_path / f"{k}.csv", names, X[a:b], "y", y[a:b]) for k, (a, b) in enumerate([(0, 20), (20, 90)])]
    fit = fit_here([read_site(path, "y") for path in paths], Task(target="y", l1=0.05, graph="path", intercept=intercept))
    model = Lasso(alpha=0.05, fit_intercept=intercept, tol=1e-14, max_iter=10**6).fit(X, y)
    assert fit.coefficients == pytest.approx(model.coef_, abs=EQUAL)
    assert fit.intercept == pytest.approx(model.intercept_, abs=EQUAL)


def test_logistic_regression_equals_scikit_learn_although_two_sites_know_one_class_only(tmp_path):
    sites = [read_site(path, "diagnosis") for path in clinics(tmp_path)]
    l1 = 0.03
    fit = fit_here(sites, Task(target="diagnosis", loss="logistic", l1=l1, graph="ring", standardise=True))
    Z = StandardScaler().fit_transform(CANCER.data)
    model = LogisticRegression(l1_ratio=1, C=1 / (l1 * len(Z)), solver="saga", tol=1e-11, max_iter=10**6)
    model.fit(Z, CANCER.target)
    assert fit.classes == ("benign", "malignant")  # sorted, as scikit-learn sorts them
    assert fit.standardised == pytest.approx(-model.coef_[0], abs=EQUAL)  # its targets have benign = 1
    assert fit.status is Status.CONVERGED and 0 <= fit.gap < 1e-8


@pytest.mark.parametrize("graph", EXAMPLES)
def test_everybody_learns_the_average_and_the_largest_from_neighbours_alone(graph):
    net = StackedNetwork(graph)
    x = torch.randn(net.n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e3
    assert float((average(net, x) - x.mean(0)).abs().max()) < 1e-12 * 1e3
    assert net.traffic.rounds == average_rounds(net)
    assert torch.equal(maximum(net, x), x.amax(0).expand(net.n, 3))


@pytest.mark.parametrize("reliable", [True, False])
def test_standardisation_by_sums_or_gossip_is_that_of_the_pooled_data(reliable):
    X = DIABETES.data
    parts = [torch.from_numpy(part) for part in np.split(X, [10, 11, 200])]
    targets = [torch.from_numpy(part) for part in np.split(DIABETES.target, [10, 11, 200])]
    found = scaling(parts, targets, total_of(StackedNetwork("path(4)"), reliable=reliable), centre=True)
    assert found.samples.flatten().tolist() == [442.0] * 4
    assert found.target.numpy() == pytest.approx(np.full((4, 1), DIABETES.target.mean()), rel=1e-13)
    for mean, scale in zip(found.mean, found.scale, strict=True):
        assert mean.numpy() == pytest.approx(X.mean(0), rel=1e-13) and scale.numpy() == pytest.approx(X.std(0), rel=1e-12)


def test_samples_of_weight_zero_count_for_nothing():
    torch.manual_seed(0)
    A, b = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    weights = torch.tensor([[1.0] * 5, [1, 1, 0, 0, 0]], dtype=torch.float64)
    weighted, x = LeastSquares(A, b, L1(0.1), weights), torch.randn(2, 3, dtype=torch.float64)
    value = torch.stack([(A[0] @ x[0] - b[0]).square().sum(), (A[1, :2] @ x[1] - b[1, :2]).square().sum()]) / 2 / 5
    torch.testing.assert_close(weighted.value(x), value)
    x.requires_grad_()
    torch.testing.assert_close(weighted.grad(x.detach()), torch.autograd.grad(weighted.value(x).sum(), x)[0])
    assert bool((weighted.lipschitz() >= torch.linalg.eigvalsh(A[1, :2].mT @ A[1, :2] / 5)[-1] * (1 - 1e-12)).any())
    best = optimum(weighted)
    assert float(best.certificate) < 1e-13
    rows, targets = torch.cat((A[0], A[1, :2])), torch.cat((b[0], b[1, :2]))
    model = Lasso(alpha=0.1 * 10 / 7, fit_intercept=False, tol=1e-14, max_iter=10**6).fit(rows, targets)
    assert best.x.tolist() == pytest.approx(model.coef_, abs=1e-7)
    for bad in (weights[:1], -weights):
        with pytest.raises(InvalidInput, match="weights"):
            LeastSquares(A, b, L1(0.1), bad)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("intercept", [True, False])
def test_the_gap_certificate_bounds_the_distance_to_the_minimum(loss, intercept):
    rng = torch.Generator().manual_seed(0)
    X = [torch.randn(size, 4, dtype=torch.float64, generator=rng) for size in (7, 12)]
    y = [(part.sum(1) > 0).double() for part in X]
    net, observer = StackedNetwork("path(2)"), StackedObserver()
    scaled = scaling(X, y, total_of(net, reliable=True), centre=intercept)
    problem = pooled_problem(loss, X, y, scaled, penalty(0.05, scaled.scale[0]), n=2, intercept=intercept)
    best = optimum(problem)
    settled = problem.settled(best.x, observer)
    value, gap = float(problem.objective(settled, observer)), float(problem.certificate(settled, observer))
    assert value == pytest.approx(float(best.value), abs=1e-9) and 0 <= gap < 1e-9
    for scale in (1e-3, 1e-1, 1.0):
        off = best.x + scale * torch.randn(best.x.shape, dtype=torch.float64, generator=rng)
        for x in (off, problem.settled(off, observer)):
            value, gap = float(problem.objective(x, observer)), float(problem.certificate(x, observer))
            assert gap >= value - float(best.value) - 1e-12


def test_csv_parquet_and_npz_are_the_same_data(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    X, y = DIABETES.data[:20], DIABETES.target[:20]
    names = DIABETES.feature_names
    write_csv(tmp_path / "a.csv", names, X, "y", y)
    write_csv(tmp_path / "b.csv", names, X, "y", y, delimiter=";")
    pq.write_table(pa.table({**{name: X[:, k] for k, name in enumerate(names)}, "y": y}), tmp_path / "c.parquet")
    np.savez(tmp_path / "d.npz", X=X, y=y, columns=np.array(names))
    for path in sorted(tmp_path.iterdir()):
        site = read_site(path, "y")
        assert site.columns == tuple(names) and np.array_equal(site.features, X)
        assert np.array_equal(site.target.astype(float), y)


MISTAKES = {
    "empty file": ("", "the file is empty"),
    "no rows": ("a,y\n", "columns but no rows"),
    "no target": ("a,b\n1,2\n", "no column 'y' to predict"),
    "only the target": ("y\n1\n", "nothing to predict it from"),
    "text feature": ("a,y\n1,1\nred,2\n", "column 'a', row 2 is 'red', not a number"),
    "missing value": ("a,y\n1,1\n,2\n", "column 'a', row 2 is missing"),
    "infinite": ("a,y\ninf,1\n", "row 1 is inf"),
    "short row": ("a,b,y\n1,2,3\n1,2\n", "row 2 has 2 values, but there are 3 columns"),
    "twice": ("a,a,y\n1,2,3\n", "two columns are called 'a'"),
    "non-numeric target": ("a,y\n1,yes\n2,no\n", "column 'y', row 1 is 'yes', not a number"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_bad_file_is_one_sentence(tmp_path, capsys, name):
    content, said = MISTAKES[name]
    (tmp_path / "a.csv").write_text("a,y\n1,2\n3,4\n" if "b" not in content else "a,b,y\n1,2,3\n4,5,6\n")
    (tmp_path / "b.csv").write_text(content)
    assert run(["solve", "--data", str(tmp_path / "*.csv"), "--graph", "path", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error and error.count("milodo:") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("second", "options", "said"),
    [
        ("a,c,y\n1,2,3\n", [], "b.csv has no column 'b', which "),
        ("a,b,c,y\n1,2,3,4\n", [], "b.csv has a column 'c', which "),
        ("a,b,y\n1,2,3\n", ["--graph", "ring(5)"], "ring(5) has 5 nodes, but there are 2 sites"),
        ("a,b,y\n1,2,9\n", ["--loss", "logistic"], "has 3 different values over all sites"),
        ("a,b,y\n1,2,3\n", ["--loss", "hinge"], "unknown loss 'hinge'"),
        ("a,b,y\n1,2,3\n", ["--l1", "-1"], "must be a finite number >= 0"),
        ("a,b,y\n1,2,3\n", ["--links", "rotten"], "unknown kind of links 'rotten'"),
        ("a,b,y\n1,2,3\n", ["--method", "prox-de"], "Did you mean 'prox-ed'?"),
        ("a,b,y\n1,2,3\n", ["--set", "gamma"], "write a name and a number"),
        ("a,b,y\n1,2,3\n", ["--set", "eta=1"], "unknown parameter 'eta'"),
        ("a,b,y\n1,2,3\n", ["--ignore", "z"], "no file has a column 'z' to ignore"),
    ],
)
def test_sites_that_do_not_fit_together_are_refused(tmp_path, capsys, second, options, said):
    (tmp_path / "a.csv").write_text("a,b,y\n1,2,3\n4,5,6\n")
    (tmp_path / "b.csv").write_text(second)
    graph = [] if "--graph" in options else ["--graph", "path"]
    assert run(["solve", "--data", str(tmp_path / "*.csv"), *graph, *options, "--out", str(tmp_path / "out")]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert said in error and error.count("milodo:") == 1


def test_solve_saves_and_shows_the_fit(tmp_path, capsys):
    hospitals(tmp_path)
    out = tmp_path / "out"
    command = ["solve", "--data", str(tmp_path / "site-*.csv"), "--target", "progression", "--l1", "2", "--standardise"]
    with pytest.raises(SystemExit, match="0"):
        run([*command, "--out", str(out)])
    shown = capsys.readouterr().out
    for word in (
        "bmi",
        "(intercept)",
        "above the minimum by at most",
        "consensus error",
        "rounds",
        "bytes sent",
        "moments: one sum",
        "It will cost",
    ):
        assert word in shown
    fit = json.loads((out / "fit.json").read_text())
    rows = list(csv.reader((out / "coefficients.csv").open()))
    assert rows[0] == ["name", "coefficient"] and rows[-1] == ["(intercept)", str(fit["intercept"])]
    assert [float(value) for _, value in rows[1:-1]] == fit["coefficients"]
    assert fit["runtime"] == "simulated" and fit["rounds"] > fit["iterations"] > 0 and fit["bytes"] > 0


def test_what_is_saved_is_what_is_certified(tmp_path):
    """Also where it has not converged: objective and gap are those of the coefficients in the file."""
    sites = [read_site(path, "progression") for path in hospitals(tmp_path)]
    for iterations in (1, 5, 50):
        fit = fit_here(sites, Task(target="progression", l1=1.0, standardise=True, method="prox-ed", iterations=iterations))
        residual = DIABETES.data @ np.array(fit.coefficients) + fit.intercept - DIABETES.target
        assert fit.standardised is not None
        value = float(residual @ residual) / 2 / len(residual) + float(np.abs(fit.standardised).sum())
        assert fit.objective == pytest.approx(value, rel=1e-10)
        assert fit.status is Status.STEPS and fit.gap > 0


@pytest.mark.parametrize("reliable", [True, False])
def test_a_constant_column_is_left_alone_however_long_the_graph(reliable):
    parts = [torch.cat((torch.full((3, 1), 7.3), torch.randn(3, 1)), dim=1).double() for _ in range(40)]
    targets = [torch.zeros(3, dtype=torch.float64) for _ in range(40)]
    found = scaling(parts, targets, total_of(StackedNetwork("path(40)"), reliable=reliable), centre=True)
    assert bool((found.scale[:, 0] == 1).all()) and bool((found.scale[:, 1] > 0.5).all())


def test_damaged_and_odd_files_are_one_sentence(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(3))
    (tmp_path / "a.npy").rename(tmp_path / "array.npz")
    np.savez(tmp_path / "complex.npz", X=np.ones((2, 1)) * 1j, y=np.ones(2))
    np.savez(tmp_path / "twice.npz", X=np.ones((2, 1)), y=np.ones(2), columns=np.array(["y"]))
    whole = (tmp_path / "complex.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "not.parquet").write_text("nothing")
    (tmp_path / "index.csv").write_text(",a,y\n0,1,2\n")
    (tmp_path / "latin.csv").write_bytes("a,y\n1,\xe9\n".encode("latin-1"))
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(InvalidInput, match=path.name):
            read_site(path, "y")


def test_other_methods_find_the_same(tmp_path):
    sites = [read_site(path, "progression") for path in hospitals(tmp_path)]
    task = {"target": "progression", "l1": 1.0, "standardise": True}
    default = fit_here(sites, Task(**task))
    for method, parameters in (("pg-extra", {}), ("dapg", {"alpha": 0.1, "K": 2})):
        other = fit_here(sites, Task(**task, method=method, parameters=parameters))
        assert other.standardised == pytest.approx(default.standardised, abs=1e-5), method
        assert "as asked for" in other.why


def test_a_graph_may_be_a_file_of_any_name_but_a_familys_name_is_the_family(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("links", "links.txt", "ring"):
        (tmp_path / name).write_text("a b\na c\n")
    for name in ("links", "links.txt", "./ring", str(tmp_path / "ring")):
        assert Task(target="y", graph=name).topology(3).edges == ((0, 1), (0, 2))
    assert Task(target="y", graph="ring").topology(3).name == "ring(3)"
    with pytest.raises(InvalidInput, match="no graph file 'there/links'"):
        Task(target="y", graph="there/links").topology(3)
    with pytest.raises(InvalidInput, match="Did you mean 'ring'"):
        Task(target="y", graph="rnig").topology(3)


def test_what_stands_in_quotes_separates_no_columns(tmp_path):
    for header in ('"size, kg";"size, cm";y', '"a,b,c";"d,e,f";y', '"a,b,c,d,e";"f";y', '"two\nlines, really";b;y'):
        (tmp_path / "a.csv").write_text(f"\n{header}\n1;2;3\n4;5;6\n", encoding="utf-8")
        site = read_site(tmp_path / "a.csv", "y")
        assert len(site.columns) == 2 and site.features.tolist() == [[1, 2], [4, 5]]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("a;y\n1;2\n1,5;3\n", "column 'a', row 2 is '1,5': decimal commas are not read. Write points"),
        ('a,y\n"-1.000,5e3",3\n', "column 'a', row 1 is '-1.000,5e3': decimal commas are not read. Write points"),
        ("a,y\n1,2\n1_000,3\n", "column 'a', row 2 is '1_000', which is not read as a number. .*e.g. 1000"),
        ("a,y\n１２,3\n", "column 'a', row 1 is '１２', which is not read as a number. .*e.g. 12"),
        ("a,y\n1,1_0\n", "column 'y', row 1 is '1_0', which is not read as a number. .*e.g. 10"),
        ("a,y\n1,\"2,5\"\n", "column 'y', row 1 is '2,5': decimal commas are not read. Write points"),
        ("a,y\n\x1f1,2\n", r"column 'a', row 1 is '\\x1f1', not a number"),
    ],
)  # fmt: skip
def test_a_number_is_read_as_everybody_writes_it_or_refused_with_its_place(tmp_path, table, says):
    (tmp_path / "a.csv").write_text(table, encoding="utf-8")
    with pytest.raises(InvalidInput, match=says):
        numeric_target(read_site(tmp_path / "a.csv", "y"), "y")


def test_numbers_in_every_plain_spelling_are_read(tmp_path):
    words = ["1", "+1.5", "-.5", "2.", "1e3", "1E-3", " 7 ", "\xa08", "0" * 5000 + "9"]
    (tmp_path / "a.csv").write_text("a,y\n" + "".join(f"{word},0\n" for word in words), encoding="utf-8")
    assert read_site(tmp_path / "a.csv", "y").features[:, 0].tolist() == [1, 1.5, -0.5, 2, 1000, 1e-3, 7, 8, 9]


def test_classes_that_only_python_takes_for_numbers_stay_apart(tmp_path):
    (tmp_path / "a.csv").write_text("a,y\n1,1_0\n2,10\n3,10.0\n", encoding="utf-8")
    assert classes_here(read_site(tmp_path / "a.csv", "y"), "y") == ["10", "1_0"]


def test_truths_and_nulls_of_a_parquet_file_are_numbers_and_missing(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [True, False], "y": [1.0, 2.0]}), tmp_path / "a.parquet")
    assert read_site(tmp_path / "a.parquet", "y").features.tolist() == [[1], [0]]
    pq.write_table(pa.table({"a": [1, None], "y": [1.0, 2.0]}), tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match="column 'a', row 2 is missing"):
        read_site(tmp_path / "a.parquet", "y")


@pytest.mark.parametrize("name", ["x" * 300 + ".csv", "x\0.csv"])
def test_a_name_that_no_table_can_have_is_refused(tmp_path, name):
    with pytest.raises(InvalidInput, match="no file '"):
        read_site(tmp_path / name, "y")


def test_an_archive_is_not_unpacked_beyond_memory(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros((10**5, 100)), y=np.zeros(10**5))
    monkeypatch.setattr("milodo.memory.free_memory", lambda: 10**7)
    with pytest.raises(InvalidInput, match=r"unpacked, would need 80.8 MB of memory, but this machine has 10 MB free"):
        read_site(tmp_path / "a.npz", "y")


def test_lossy_links_are_said_to_be_simulated_in_help_and_output(tmp_path, capsys):
    for command in ("solve", "node"):
        with pytest.raises(SystemExit):
            run([command, "--help"])
        assert "losses are simulated" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    files = [str(path) for path in hospitals(tmp_path)]
    words = [word for file in files for word in ("--data", file)]
    with pytest.raises(SystemExit):
        run(
            ["solve", *words, "--target", "progression", "--links", "lossy", "--tolerance", "0.1", "--out", str(tmp_path / "out")]
        )
    assert "simulated" in capsys.readouterr().out.partition("It will cost")[0]


@pytest.mark.parametrize(
    ("pay", "method"),
    [({"pay": "bytes"}, "Moments"), ({"pay": "rounds"}, "Moments")]
    + [({"pay": "seconds", "latency": 1.0, "bandwidth": wide}, found) for wide, found in ((1e9, "Moments"), (100.0, "APG"))],
)
def test_what_is_paid_for_decides_whether_curvatures_are_summed(pay, method):
    """Of 150 features a curvature is as long as 76 gradients in 64 bits: on a narrow link gradients in few bits are faster."""
    torch.manual_seed(0)
    features = [torch.randn(400, 150, dtype=torch.float64) for _ in range(3)]
    targets = [X[:, 0] for X in features]
    task = Task(target="y", l1=0.3, tolerance=1e-4, **pay)
    net, announced = StackedNetwork("ring(3)"), []
    listeners, columns = Listeners(announce=announced.append), tuple(map(str, range(150)))
    found = fit_model(asked(features, targets, task, net, StackedObserver(), listeners, columns=columns))
    assert found.status is Status.CONVERGED and method in found.method
    assert pay["pay"] == "bytes" or f"fewest {pay['pay']}" in announced[0].why
    with pytest.raises(InvalidInput, match="say their latency"):
        fit_model(asked(features, targets, Task(target="y", pay="seconds"), net, StackedObserver(), columns=columns))
