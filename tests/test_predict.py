"""A fit that was saved: `milodo predict` and milodo.sklearn.load, and what they say of files that are not theirs."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression

from milodo.cli import main
from milodo.errors import InvalidInput
from milodo.fit.saved import read_fit
from milodo.fit.tables import read_site
from milodo.sklearn import DecentralizedElasticNet, DecentralizedLasso, DecentralizedLogisticRegression, load

DIABETES = load_diabetes(as_frame=True).frame.rename(columns={"target": "y"})
CANCER = load_breast_cancer(as_frame=True)
CANCER = CANCER.data.iloc[:, :6].assign(y=CANCER.target_names[CANCER.target])
FRAMES = {"numbers": DIABETES, "classes": CANCER}
ASKED = {"numbers": ["--l1", "0.1"], "classes": ["--loss", "logistic", "--l1", "0.01", "--standardise"]}


def run(words: list[str]) -> int:
    """The exit code of the program."""
    try:
        return main.run(words)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Folder -> fitted, with the rows dealt out to three files."""
    folder = tmp_path_factory.mktemp("fits")
    for kind, frame in FRAMES.items():
        for k in range(3):
            frame.iloc[k::3].to_csv(folder / f"{kind}-{k}.csv", index=False)
        assert run(["solve", "--data", str(folder / f"{kind}-?.csv"), *ASKED[kind], "--out", str(folder / kind)]) == 0
    return folder


def written(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_numbers_are_predicted_as_scikit_learn_does(fits, tmp_path, capsys):
    new = DIABETES.iloc[:40, ::-1]  # in another order, with the target
    new.to_csv(tmp_path / "new.csv", index=False)
    assert run(["predict", str(fits / "numbers"), "--data", str(tmp_path / "new.csv")]) == 0
    header, *rows = written(fits / "numbers" / "predictions.csv")
    X, y = DIABETES.drop(columns="y"), DIABETES.y
    model = Lasso(0.1, tol=1e-14, max_iter=10**6).fit(X, y)
    assert header == ["prediction"] and np.array(rows, float)[:, 0] == pytest.approx(model.predict(X[:40]), rel=1e-6)
    said = capsys.readouterr().out
    assert f"R²: {model.score(X[:40], y[:40]):.4f}." in said and "40 predictions of 'y'" in said


def test_classes_are_predicted_with_probabilities(fits, tmp_path, capsys):
    new = CANCER.drop(columns="y").iloc[:30]
    new.to_parquet(tmp_path / "new.parquet")
    out = tmp_path / "deep" / "out.csv"
    words = ["predict", str(fits / "classes" / "fit.json"), "--data", str(tmp_path / "new.parquet"), "--out", str(out)]
    assert run(words) == 0
    header, *rows = written(out)
    model = load(fits / "classes")
    assert header == ["prediction", "P(benign)", "P(malignant)"] and [row[0] for row in rows] == list(model.predict(new))
    assert np.array([row[1:] for row in rows], float) == pytest.approx(model.predict_proba(new), abs=1e-12)
    assert "right" not in capsys.readouterr().out


SENTENCES = {
    "missing": (lambda f: f.drop(columns="bmi"), [], "no column 'bmi', which the fit was made with"),
    "unknown": (lambda f: f.assign(shoes=1), [], "column 'shoes' was not there when the model was fitted. Ignore it (--ignore)."),
    "category": (lambda f: f.assign(sex=["M", "F", "M", "F", "M"]), [], "column 'sex', row 1 is 'M', not a number"),
    "gap": (lambda f: f.assign(age=f.age.where(f.index != 2)), [], "column 'age', row 3 is missing"),
    "nothing": (lambda f: f.iloc[:0], [], "the file has columns but no rows"),
    "no such": (lambda f: f, ["--ignore", "hat"], "no column 'hat' to ignore"),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_new_rows_that_do_not_fit_get_one_sentence(case, fits, tmp_path, capsys):
    change, options, sentence = SENTENCES[case]
    change(DIABETES.iloc[:5]).to_csv(tmp_path / "new.csv", index=False)
    assert run(["predict", str(fits / "numbers"), "--data", str(tmp_path / "new.csv"), *options]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_a_class_the_fit_does_not_know_gets_one_sentence_and_can_be_ignored(fits, tmp_path, capsys):
    CANCER.iloc[:5].assign(y="unclear").to_csv(tmp_path / "new.csv", index=False)
    words = ["predict", str(fits / "classes"), "--data", str(tmp_path / "new.csv")]
    assert (
        run(words) == 2 and "holds 'unclear', a class the fit does not know ('benign' and 'malignant')" in capsys.readouterr().err
    )
    assert run([*words, "--ignore", "y"]) == 0
    CANCER.iloc[:50].to_csv(tmp_path / "new.csv", index=False)
    assert run(words) == 0 and "Fraction of classes that are right: " in capsys.readouterr().out


def test_a_fit_opens_as_the_estimator_it_is(fits):
    model = load(fits / "numbers")
    assert isinstance(model, DecentralizedLasso) and model.alpha == 0.1
    X, y = DIABETES.drop(columns="y"), DIABETES.y
    again = DecentralizedLasso(0.1).fit(X, y)
    assert model.predict(X) == pytest.approx(again.predict(X), rel=1e-6) and list(model.feature_names_in_) == list(X.columns)
    assert model.fit_.sha256 == read_fit(fits / "numbers").sha256 and model.fit_.samples == len(y) and 0 <= model.dual_gap_ < 1e-6
    assert (model.n_features_in_, model.n_iter_, model.rounds_ > 0, model.bytes_ > 0) == (10, 1, True, True)
    classes = load(fits / "classes" / "fit.json")
    assert isinstance(classes, DecentralizedLogisticRegression) and list(classes.classes_) == ["benign", "malignant"]
    assert np.isclose(classes.C, 1 / (0.01 * len(CANCER))) and classes.l1_ratio == 1.0


def test_penalties_come_back_in_scikit_learns_terms(fits, tmp_path):
    content = json.loads((fits / "numbers" / "fit.json").read_text())
    content["task"] |= {"l1": 0.03, "l2": 0.01}
    (tmp_path / "fit.json").write_text(json.dumps(content))
    model = load(tmp_path)
    assert isinstance(model, DecentralizedElasticNet)
    X, y = DIABETES.drop(columns="y"), DIABETES.y
    reference = ElasticNet(model.alpha, l1_ratio=model.l1_ratio, tol=1e-14, max_iter=10**6).fit(X, y)
    w = reference.coef_
    slope = X.to_numpy().T @ (y - reference.predict(X)).to_numpy() / len(y)
    assert slope[w != 0] == pytest.approx((0.03 * np.sign(w) + 0.01 * w)[w != 0], abs=1e-8)
    content = json.loads((fits / "classes" / "fit.json").read_text())
    content["task"] |= {"l1": 0.0, "l2": 0.02, "standardise": False}
    content["classes"] = ["0", "1"]
    (tmp_path / "fit.json").write_text(json.dumps(content))
    model = load(tmp_path)
    Z = (CANCER.drop(columns="y") - CANCER.drop(columns="y").mean()) / CANCER.drop(columns="y").std()
    refitted = DecentralizedLogisticRegression(C=model.C, l1_ratio=model.l1_ratio).fit(Z, CANCER.y == "malignant")
    least = LogisticRegression(C=1 / (0.02 * len(Z)), tol=1e-12, solver="newton-cholesky").fit(Z, CANCER.y == "malignant")
    assert refitted.coef_ == pytest.approx(least.coef_, abs=1e-6) and model.classes_.tolist() == [0, 1]


DAMAGE = {
    "coefficients": [1.0],
    "columns": ["a"] * 10,
    "intercept": "high",
    "classes": ["a", "b"],
    "samples": 0,
    "task": {"target": "y", "loss": "hinge", "l1": 0.0},
    "status": "FINE",
    "format": 99,
}


@pytest.mark.parametrize("key", DAMAGE)
def test_a_file_that_was_damaged_is_refused_in_one_sentence(key, fits, tmp_path):
    content = json.loads((fits / "numbers" / "fit.json").read_text())
    (tmp_path / "fit.json").write_text(json.dumps({**content, key: DAMAGE[key]}))
    with pytest.raises(InvalidInput, match=r"fit\.json: (not a fit of `milodo solve` \(|format 99 is newer)") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


STRANGE = [None, True, -1, 10**400, 1e308, float("nan"), "", "\x1b[31m", [], {}, [[1.0]], [None] * 10, {"a": 1}]


def test_a_fit_with_anything_in_any_place_is_read_or_refused_in_one_sentence(fits, tmp_path):
    whole, file = json.loads((fits / "numbers" / "fit.json").read_text()), tmp_path / "fit.json"
    refused = 0
    places = [(whole, key) for key in whole] + [(whole["task"], key) for key in whole["task"]] + [(whole["coefficients"], 3)]
    for table, key in places:
        kept = table[key]
        for strange in STRANGE:
            table[key] = strange
            file.write_text(json.dumps(whole))
            try:
                model = load(file)
                assert model.predict(DIABETES.drop(columns="y")).shape == (len(DIABETES),)
            except InvalidInput as error:
                refused += 1
                assert "\n" not in str(error)
        table[key] = kept
    assert refused > 200


def test_what_is_no_fit_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(InvalidInput, match=r"no fit '.*nowhere'. Give the folder that `milodo solve` wrote to"):
        load(tmp_path / "nowhere")
    (tmp_path / "fit.json").write_bytes(b"\x80\x04\x95cos\nsystem\n.")  # a pickle is not opened, whatever it is called
    with pytest.raises(InvalidInput, match="not readable as JSON"):
        load(tmp_path)


def test_predicting_needs_no_scikit_learn(fits):
    data = fits / "numbers-0.csv"
    words = ["predict", str(fits / "numbers"), "--data", str(data)]
    code = f"import sys; sys.modules['sklearn'] = None; from milodo.cli.main import run; sys.exit(run({words!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_target_among_the_ignored_is_still_the_target(tmp_path):
    pd.DataFrame({"a": [1.0, 2], "b": [3, 4], "y": [1, 2]}).to_csv(tmp_path / "a.csv", index=False)
    assert read_site(tmp_path / "a.csv", "y", ["y", "b"]).columns == ("a",)


@pytest.mark.parametrize(
    ("options", "why"), [(["--set", "gamma=1e3"], "diverged"), (["--iterations", "20"], "used all the iter")]
)
def test_predictions_of_a_fit_that_did_not_converge_say_so(fits, tmp_path, capsys, options, why):
    asked = ["--method", "prox-ed", *options, "--iterations", "60", "--out", str(tmp_path / "fit")]
    assert run(["solve", "--data", str(fits / "numbers-?.csv"), *asked]) == 1
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "fit"), "--data", str(fits / "numbers-0.csv")]) == 0
    said = capsys.readouterr().err
    assert "the fit did not converge" in said and why in said
    assert run(["predict", str(fits / "numbers"), "--data", str(fits / "numbers-0.csv")]) == 0
    assert not capsys.readouterr().err


def test_a_loss_that_tables_do_not_have_is_not_offered(fits, capsys):
    for loss in ("softmax", "huber"):
        assert run(["solve", "--data", str(fits / "numbers-?.csv"), "--loss", loss]) == 2
        assert capsys.readouterr().err == f"milodo: unknown loss '{loss}'. Known: logistic, squared.\n"
