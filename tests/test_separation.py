"""Classes that are separated in part have no coefficients without a penalty: a fit says so, and only then."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from scipy.optimize import linprog
from sklearn.datasets import load_breast_cancer
from test_sites import write_csv

from milodo.cli.main import run
from milodo.errors import InvalidInput
from milodo.sklearn import DecentralizedLogisticRegression

SEPARATED = "the classes are separated in part"


def margins_can_grow(X, y):
    """By linear programming: whether some (v, c) has ±(xᵀv + c) >= 0 for all rows of each class, and > 0 for some."""
    A = np.where(y, 1, -1)[:, None] * np.column_stack((X, np.ones(len(X))))
    found = linprog(-A.sum(0), A_ub=-A, b_ub=np.zeros(len(A)), bounds=(-1, 1))
    return -found.fun > 1e-6


def warned(X, y, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = DecentralizedLogisticRegression(**{"C": np.inf, **options}).fit(X, y)
    return model, [str(each.message) for each in caught if SEPARATED in str(each.message)]


@pytest.mark.parametrize("seed", range(12))
def test_a_fit_without_a_penalty_warns_where_linear_programming_says_that_it_has_no_minimum(seed):
    rng = np.random.default_rng(seed)
    X = np.column_stack((rng.standard_normal((60, 2)), rng.integers(0, 2, (60, 2)), rng.standard_normal(60) * 1e4 + 1e5))
    y = X[:, 0] + rng.logistic(size=60) > 0
    if seed % 3 == 1:  # an event that only one class has, perhaps of a single row
        X[:, 2] = (rng.random(60) < (0.5 if seed % 2 else 0.05)) & y
        X[np.flatnonzero(y)[0], 2] = 1
    if seed % 3 == 2:  # a number that is not 7 in one class only, hidden in a combination of columns
        hidden = np.where(y, 7.0, 7.0 - rng.integers(0, 3, 60))
        X[:, 2], X[:, 3] = hidden - X[:, 0], X[:, 0]
    try:
        _, said = warned(X, y)
    except InvalidInput as error:
        assert "told apart without a mistake" in str(error) and margins_can_grow(X, y)
        return
    assert bool(said) == margins_can_grow(X, y)
    assert margins_can_grow(X, y) == (seed % 3 > 0)


def event(classes=2):
    """Rows of several classes, and a column that is 1 for some rows of the last class alone."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2))
    y = np.digitize(X[:, 0] + rng.logistic(size=200), np.arange(classes - 1))
    return np.column_stack((X, (rng.random(200) < 0.3) & (y == classes - 1))), y


@pytest.mark.parametrize("options", [{}, {"tol": 1e-5}, {"C": 1e9}, {"fit_intercept": False}])
def test_the_warning_names_column_class_and_rows(options):
    X, y = event()
    model, (said,) = warned(X, np.array(["ill", "well"])[y], **options)
    assert f"'x2', tells rows apart without a mistake ({int(X[:, 2].sum())} of class well)" in said
    assert f"It is {model.coef_[0, 2]:.3g} only because" in said and ("Give a larger one" in said) == ("C" in options)
    assert model.fit_.warnings == (said,)


def test_of_several_classes_that_of_the_column_is_named():
    X, y = event(3)
    _, (said,) = warned(X, y)
    assert f"'x2', tells rows apart without a mistake ({int(X[:, 2].sum())} of class 2)" in said


def test_a_penalty_that_counts_is_not_warned_of_nor_are_large_effects():
    X, y = event()
    assert warned(X, y, C=1.0)[1] == warned(X, y, C=100.0)[1] == []
    data = load_breast_cancer()  # its classes can be told apart without a mistake
    assert warned(data.data, data.target, C=1 / (0.01 * len(data.target)), l1_ratio=1.0)[1] == []
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 2))
    model, said = warned(X, 50 * X[:, 0] + rng.logistic(size=2000) > 0)
    assert said == [] and abs(model.coef_).max() > 30


def test_solve_says_so_and_the_fit_keeps_it(tmp_path, capsys):
    X, y = event()
    for k, rows in enumerate(np.split(np.arange(len(X)), [50, 120])):
        write_csv(tmp_path / f"site-{k}.csv", ["a", "b", "event"], X[rows], "y", y[rows])
    with pytest.raises(SystemExit, match="0"):
        run(["solve", "--data", str(tmp_path / "*.csv"), "--loss", "logistic", "--out", str(tmp_path / "out")])
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("warning") == 1 and SEPARATED in said and "above all 'event'" in said
    (kept,) = json.loads((tmp_path / "out" / "fit.json").read_text())["warnings"]
    assert kept in said
