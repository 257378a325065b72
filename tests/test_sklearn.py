"""Estimators at uneven sites: what they equal on the pooled rows, what they live in, and what is said of bad input."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from asked import asked
from sklearn import linear_model as theirs
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from milodo.errors import InvalidInput
from milodo.fit import Task, fit_model
from milodo.network import StackedNetwork, StackedObserver
from milodo.sklearn import (
    DecentralizedElasticNet,
    DecentralizedGLM,
    DecentralizedLasso,
    DecentralizedLinearRegression,
    DecentralizedLogisticRegression,
)


def standardised(X):
    return (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1)


DIABETES, CANCER, WINE, DIGITS = load_diabetes(), load_breast_cancer(), load_wine(), load_digits(n_class=2)
DATA = {
    "diabetes": (DIABETES.data, DIABETES.target),
    "breast cancer": (standardised(CANCER.data), CANCER.target_names[CANCER.target]),
    "breast cancer, raw": (CANCER.data, CANCER.target),
    "wine": (standardised(WINE.data), WINE.target),
    "digits 0/1": (DIGITS.data / 16, DIGITS.target),
}
EQUAL = 1e-6
"""Of the largest coefficient: what is promised, and what scikit-learn's own solvers reach."""


def uneven(n: int) -> np.ndarray:
    """A site for each row: the first has half of them, the last one row."""
    sites = np.random.default_rng(1).choice(["a", "b", "c", "d"], n, p=[0.5, 0.3, 0.15, 0.05])
    sites[n // 2] = "e"
    return sites


def weights(n: int) -> np.ndarray:
    """Some of them 0."""
    return np.random.default_rng(2).integers(0, 4, n) / 2


def same(ours, reference, bound: float = EQUAL) -> None:
    unit = np.abs(reference.coef_).max()
    assert ours.coef_.shape == reference.coef_.shape and np.shape(ours.intercept_) == np.shape(reference.intercept_)
    assert np.abs(ours.coef_ - reference.coef_).max() <= bound * unit
    assert np.abs(ours.intercept_ - reference.intercept_).max() <= bound * max(unit, np.abs(reference.intercept_).max())


CLOSE = {"tol": 1e-14, "max_iter": 10**6}
REGRESSIONS = {
    "lasso": (DecentralizedLasso(0.1), theirs.Lasso(0.1, **CLOSE)),
    "lasso without intercept": (DecentralizedLasso(0.1, fit_intercept=False), theirs.Lasso(0.1, fit_intercept=False, **CLOSE)),
    "elastic net": (DecentralizedElasticNet(0.01, l1_ratio=0.3), theirs.ElasticNet(0.01, l1_ratio=0.3, **CLOSE)),
    "least squares": (DecentralizedLinearRegression(), theirs.LinearRegression()),
    "glm": (DecentralizedGLM("squared", "elasticnet", alpha=0.02), theirs.ElasticNet(0.02, **CLOSE)),
    "glm, l1": (DecentralizedGLM("squared", "l1", alpha=0.1), theirs.Lasso(0.1, **CLOSE)),
    "glm, none": (DecentralizedGLM("squared", None), theirs.LinearRegression()),
}


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("name", REGRESSIONS)
def test_regression_is_scikit_learns_on_the_pooled_rows(name, weighed):
    X, y = DATA["diabetes"]
    ours, reference = REGRESSIONS[name]
    w = {"sample_weight": weights(len(y))} if weighed else {}
    same(clone(ours).fit(X, y, sites=uneven(len(y)), **w), clone(reference).fit(X, y, **w))


def test_ridge_is_an_elastic_net_without_l1():
    X, y = DATA["diabetes"]
    ours = DecentralizedElasticNet(0.01, l1_ratio=0.0).fit(X, y, sites=uneven(len(y)))
    same(ours, theirs.Ridge(0.01 * len(y)).fit(X, y))
    same(DecentralizedGLM("squared", "l2", alpha=0.01).fit(X, y), theirs.Ridge(0.01 * len(y)).fit(X, y))


NEWTON = {"solver": "newton-cholesky", "tol": 1e-12, "max_iter": 1000}


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("name", [name for name in DATA if name != "diabetes"])
def test_the_l2_penalty_gives_scikit_learns_classes(name, intercept):
    X, y = DATA[name]
    ours = DecentralizedLogisticRegression(C=0.7, fit_intercept=intercept).fit(X, y, uneven(len(y)), weights(len(y)))
    reference = theirs.LogisticRegression(C=0.7, fit_intercept=intercept, **NEWTON).fit(X, y, weights(len(y)))
    same(ours, reference)
    assert list(ours.classes_) == list(reference.classes_) and (ours.predict(X) == reference.predict(X)).all()
    for verb in ("predict_proba", "decision_function"):
        assert getattr(ours, verb)(X) == pytest.approx(getattr(reference, verb)(X), abs=1e-5)
    assert ours.predict_log_proba(X[:5]) == pytest.approx(reference.predict_log_proba(X[:5]), abs=1e-5)


@pytest.mark.parametrize("l1_ratio", [1.0, 0.5])
@pytest.mark.parametrize("name", ["breast cancer", "wine", "digits 0/1"])
def test_l1_and_elastic_net_give_scikit_learns_classes(name, l1_ratio):
    X, y = DATA[name]
    ours = DecentralizedLogisticRegression(C=0.1, l1_ratio=l1_ratio).fit(X, y, sites=uneven(len(y)))
    saga = theirs.LogisticRegression(C=0.1, l1_ratio=l1_ratio, solver="saga", tol=1e-10, max_iter=10**5, random_state=0)
    same(ours, saga.fit(X, y))
    assert 0 <= ours.dual_gap_ < 1e-10
    glm = DecentralizedGLM("logistic", "elasticnet", alpha=1 / (0.1 * len(y)), l1_ratio=l1_ratio).fit(X, y)
    same(glm, ours)


@pytest.mark.parametrize(("name", "columns"), [("breast cancer", slice(0, 5)), ("wine", [0, 3])])
def test_without_a_penalty_classes_that_overlap_are_scikit_learns(name, columns):
    X, y = DATA[name][0][:, columns], DATA[name][1]
    ours = DecentralizedLogisticRegression(C=np.inf).fit(X, y, sites=uneven(len(y)))
    same(ours, theirs.LogisticRegression(C=np.inf, **NEWTON).fit(X, y))
    assert np.isnan(ours.dual_gap_)


@pytest.mark.parametrize("estimator", [DecentralizedLasso(0.1), DecentralizedLogisticRegression(C=0.1)])
def test_a_weight_of_two_is_the_row_twice_and_of_none_is_no_row(estimator):
    X, y = DATA["diabetes"] if isinstance(estimator, DecentralizedLasso) else DATA["wine"]
    times = np.random.default_rng(0).integers(0, 3, len(y))
    same(clone(estimator).fit(X, y, sample_weight=times), clone(estimator).fit(X.repeat(times, 0), y.repeat(times)), 1e-9)


def test_ten_digits_need_gradients_in_four_bits_and_are_scikit_learns():
    digits = load_digits()
    X, y = digits.data / 16, digits.target
    ours = DecentralizedLogisticRegression(C=0.1).fit(X, y, sites=uneven(len(y)))
    assert ours.coef_.shape == (10, 64) and ours.fit_.method == "Tree-APG, 4 bits, coded" and ours.bytes_ < 1_000_000
    same(ours, theirs.LogisticRegression(C=0.1, **NEWTON).fit(X, y))


def fitted(rows: list[np.ndarray], weights: np.ndarray | None = None, **options):
    """milodo.fit of the diabetes data with these rows at the sites."""
    X, y = (torch.from_numpy(np.ascontiguousarray(array)) for array in (DIABETES.data, DIABETES.target))
    net, parts = StackedNetwork(f"ring({len(rows)})"), [torch.from_numpy(part) for part in rows]
    return fit_model(asked(
        [X[part] for part in parts], [y[part] for part in parts], Task(target="y", **options), net, StackedObserver(),
        columns=tuple(DIABETES.feature_names),
        weights=None if weights is None else [torch.from_numpy(weights)[part] for part in parts],
    ))  # fmt: skip


@pytest.mark.parametrize("asked", [{"links": "reliable"}, {"links": "lossy"}, {"messages": "4-bit"}], ids=str)
def test_a_site_without_rows_is_no_obstacle(asked):
    rows = np.arange(442)
    ours = fitted([rows[:200], rows[:0], rows[200:]], l1=0.1, tolerance=1e-10, **asked)
    pooled = fitted([rows], l1=0.1)
    unit = np.abs(pooled.coefficients).max()
    assert ours.samples == 442 and np.abs(np.subtract(ours.coefficients, pooled.coefficients)).max() < EQUAL * unit


@pytest.mark.parametrize("standardise", [True, False])
def test_weights_are_part_of_means_and_scales(standardise):
    times = np.random.default_rng(3).integers(0, 4, 442)
    penalty = {"l1": 1.0, "l2": 0.5} if standardise else {"l1": 0.1, "l2": 0.001}
    rows = np.arange(442)
    weighed = fitted([rows[:300], rows[300:]], times.astype(float), standardise=standardise, **penalty)
    repeated = fitted([rows.repeat(times)], standardise=standardise, **penalty)
    assert weighed.coefficients == pytest.approx(repeated.coefficients, rel=1e-9, abs=1e-9)
    assert weighed.intercept == pytest.approx(repeated.intercept, rel=1e-12)
    assert (weighed.standardised is None) == (not standardise) and weighed.objective == pytest.approx(
        repeated.objective, rel=1e-12
    )


def test_softmax_without_columns_of_classes_is_refused():
    with pytest.raises(InvalidInput, match="takes classes as columns of 0 and 1"):
        fitted([np.arange(442)], loss="softmax")


MANY = [
    {"n_sites": 1},
    {"n_sites": 7, "graph": "star"},
    {"n_sites": 6, "graph": "grid(2x3)"},
    {"messages": "4-bit"},
    {"method": "auto"},
    {"method": "accelerated-ed"},
    {"method": "accelerated-ed", "messages": "8-bit"},
]


@pytest.mark.parametrize("how", MANY, ids=str)
def test_any_number_of_sites_graph_method_and_messages_find_the_same(how):
    X, y = DATA["diabetes"]
    one = DecentralizedLasso(0.1).fit(X, y)
    ours = DecentralizedLasso(0.1, **how).fit(X, y)
    same(ours, one)
    assert ours.consensus_error_ < 1e-9 and ours.n_iter_ >= 1
    assert (ours.rounds_ == ours.bytes_ == 0) == (how.get("n_sites") == 1)
    wine, classes = DATA["wine"]
    same(
        DecentralizedLogisticRegression(C=0.1, **how).fit(wine, classes),
        DecentralizedLogisticRegression(C=0.1).fit(wine, classes),
    )


def test_four_bits_are_a_fifth_of_the_bytes_of_sixty_four():
    X, y = DATA["wine"]
    full, short = (
        DecentralizedLogisticRegression(C=0.1, method="tree-apg", messages=messages).fit(X, y) for messages in (None, "4-bit")
    )
    assert short.fit_.method == "Tree-APG, 4 bits" and 5 * short.bytes_ < full.bytes_


def test_what_is_known_about_a_fit_is_there():
    X, y = DATA["diabetes"]
    model = DecentralizedLasso(0.1).fit(X, y, sites=uneven(len(y)))
    assert model.sites_ == ["a", "b", "c", "d", "e"] and model.n_features_in_ == 10
    assert model.fit_.method == "Moments" and model.fit_.samples == len(y)
    w, b = model.coef_, model.intercept_
    objective = ((y - X @ w - b) ** 2).mean() / 2 + 0.1 * np.abs(w).sum()
    assert model.fit_.objective == pytest.approx(objective, rel=1e-12) and model.fit_.unit == pytest.approx(
        y.var() / 2, rel=1e-12
    )
    least = theirs.Lasso(0.1, **CLOSE).fit(X, y)
    best = ((y - least.predict(X)) ** 2).mean() / 2 + 0.1 * np.abs(least.coef_).sum()
    assert objective - best <= model.dual_gap_ + 1e-12 * best and 0 <= model.dual_gap_ < 1e-9 * best


def test_a_data_frame_keeps_its_names():
    frame = load_diabetes(as_frame=True)
    model = DecentralizedLasso(0.1).fit(frame.data, frame.target, sites=pd.Series(uneven(len(frame.data))))
    assert list(model.feature_names_in_) == list(frame.data.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.data.rename(columns={"bmi": "BMI"}))


def test_estimators_live_in_pipelines_and_searches_and_are_pickled():
    X, y = CANCER.data, CANCER.target
    pipe = make_pipeline(StandardScaler(), DecentralizedLogisticRegression(C=0.1, l1_ratio=1.0))
    scores = cross_val_score(pipe, X, y, cv=3)
    assert scores.min() > 0.93
    search = GridSearchCV(DecentralizedLasso(), {"alpha": [0.01, 0.1, 1.0]}, cv=3)
    X, y = DATA["diabetes"]
    search.fit(X, y, sites=uneven(len(y)))
    reference = GridSearchCV(theirs.Lasso(**CLOSE), {"alpha": [0.01, 0.1, 1.0]}, cv=3).fit(X, y)
    assert search.best_params_ == reference.best_params_ and search.best_estimator_.sites_ == ["a", "b", "c", "d", "e"]
    assert search.cv_results_["mean_test_score"] == pytest.approx(reference.cv_results_["mean_test_score"], rel=1e-6)
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert (again.predict(X) == search.predict(X)).all() and not hasattr(clone(again), "coef_")


BAD = {
    "NaN": ({"X": "nan"}, "NaN"),
    "fewer samples than sites": ({"n_sites": 500}, "fewer samples than sites: n_samples=442 for n_sites=500"),
    "sites of the wrong length": ({"sites": ["a"] * 441}, r"sites has shape \(441,\), but X has 442 rows"),
    "a site that is none": ({"sites": [None, *["a"] * 441]}, "sites is None for row 0"),
    "a site that is NaN": ({"sites": [0.0] * 441 + [np.nan]}, "sites is .*nan.* for row 441"),
    "sites in two kinds": ({"sites": [*[3] * 441, "a"], "object": True}, "mixes names and numbers"),
    "more nodes than sites": ({"graph": "ring(5)"}, r"ring\(5\) has 5 nodes, but there are 3 sites"),
    "no graph": ({"graph": "rung"}, "Did you mean 'ring"),
    "no method": ({"method": "proxed"}, "unknown method 'proxed'"),
    "no messages": ({"messages": "4-bits"}, "unknown kind of messages"),
    "messages that are full": ({"messages": "full"}, "shortens nothing"),
    "a penalty below 0": ({"alpha": -1}, "alpha is -1, but it must be a finite number >= 0"),
    "a penalty that is a word": ({"alpha": "much"}, "alpha is 'much'"),
    "no tolerance": ({"tol": 0}, "tol is 0, but it must be a number > 0"),
    "no iterations": ({"max_iter": 0}, "max_iter is 0, but it must be a whole number >= 1"),
    "no sites": ({"n_sites": 0}, "n_sites is 0, but it must be a whole number >= 1"),
    "weights below 0": ({"sample_weight": np.full(442, -1.0)}, "Negative values"),
    "weights of nothing": ({"sample_weight": np.zeros(442)}, "weigh|zero"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence(case):
    changes, sentence = BAD[case]
    changes = dict(changes)
    X, y = DATA["diabetes"]
    if changes.pop("X", None):
        X = X.copy()
        X[3, 2] = np.nan
    sites = changes.pop("sites", None)
    sites = np.array(sites, dtype=object) if changes.pop("object", False) else sites
    weight = changes.pop("sample_weight", None)
    with pytest.raises(ValueError, match=sentence):
        DecentralizedLasso(**{"alpha": 0.1, **changes}).fit(X, y, sites=sites, sample_weight=weight)


def test_bad_classes_get_one_sentence():
    X, y = DATA["wine"]
    with pytest.raises(InvalidInput, match="y holds only one class, 0, and a classifier needs at least two"):
        DecentralizedLogisticRegression().fit(X, np.zeros(len(y), dtype=int))
    with pytest.raises(InvalidInput, match="all rows of class 2 have sample_weight 0"):
        DecentralizedLogisticRegression().fit(X, y, sample_weight=(y != 2).astype(float))
    with pytest.raises(InvalidInput, match="told apart without a mistake"):
        DecentralizedLogisticRegression(C=np.inf).fit(X, y)
    for C in (0, -1.0, "1", np.nan):
        with pytest.raises(InvalidInput, match=r"C is .*, but it must be a number > 0; inf penalises nothing"):
            DecentralizedLogisticRegression(C=C).fit(X, y)
    with pytest.raises(InvalidInput, match="l1_ratio is 2, but it must be a finite number >= 0 and <= 1"):
        DecentralizedLogisticRegression(l1_ratio=2).fit(X, y)
    with pytest.raises(InvalidInput, match="unknown loss 'hinge'"):
        DecentralizedGLM("hinge").fit(X, y)
    with pytest.raises(InvalidInput, match="unknown penalty 'l3'"):
        DecentralizedGLM("logistic", "l3").fit(X, y)
    assert not hasattr(DecentralizedGLM("squared"), "predict_proba") and hasattr(DecentralizedGLM("logistic"), "predict_proba")


@pytest.mark.parametrize("how", [{}, {"messages": "4-bit"}, {"method": "accelerated-ed"}], ids=str)
def test_a_site_whose_rows_weigh_nothing_or_hold_one_class_is_no_obstacle(how):
    X, y = DATA["wine"]
    weight = np.where(np.arange(len(y)) % 3 == 0, 0.0, 1.0)  # all rows of the first of three sites
    ours = DecentralizedLogisticRegression(C=0.1, **how).fit(X, y, sample_weight=weight)
    same(ours, DecentralizedLogisticRegression(C=0.1).fit(X[weight > 0], y[weight > 0]))
    same(DecentralizedLogisticRegression(C=0.1, **how).fit(X, y, sites=y), DecentralizedLogisticRegression(C=0.1).fit(X, y))


def test_a_fit_that_did_not_converge_warns():
    X, y = DATA["diabetes"]
    with pytest.warns(ConvergenceWarning, match="Prox-ED ended after 20 iterations: used all the iterations"):
        DecentralizedLasso(0.1, method="prox-ed", max_iter=20).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="Allow more max_iter"):
        DecentralizedLasso(0.1, method="prox-ed", max_iter=20).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="dsgdm ends beside the optimum, however many"):
        DecentralizedLasso(0.1, method="dsgdm", max_iter=20).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="diverged: .* More iterations do not help: leave out method and messages"):
        DecentralizedLasso(0.1, method="prox-atc", messages="top-10%", n_sites=8, max_iter=200).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DecentralizedLasso(0.1).fit(X, y)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_scikit_learn_is_only_needed_by_who_asks_for_it():
    done = run("import sys, milodo, milodo.fit, milodo.cli.main; sys.exit('sklearn' in sys.modules)")
    assert done.returncode == 0, done.stderr
    done = run("import sys; sys.modules['sklearn'] = None; import milodo.sklearn")
    said = done.stderr.strip().splitlines()[-1]
    assert said == "ImportError: milodo.sklearn needs scikit-learn. Install it: pip install 'milodo[sklearn]'."
