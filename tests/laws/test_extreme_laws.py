"""Numbers whose squares are none, rows that are all the same, columns that never change: right, or a sentence that says why not.

Multiplying a column by a power of two changes no digit, so the fit must be the fit of the column as it was, in its units.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from asked import asked

from milodo.errors import InvalidInput
from milodo.fit import Fit, Task, fit_model
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import rows as rows_module
from milodo.problems.regularizers import ElasticNet
from milodo.problems.weighed import Weighed
from milodo.sklearn import (
    DecentralizedElasticNet,
    DecentralizedLasso,
    DecentralizedLassoCV,
    DecentralizedLinearRegression,
    DecentralizedLogisticRegression,
)
from milodo.status import Status

SIZES = (1, 40, 1, 22, 7)
EXPONENTS = (-990, -530, -300, 300, 530, 990)
"""Of 2: from 1e-298 to 1e298."""


def data(loss="squared", seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((sum(SIZES), 4)) + 1
    y = X @ np.array([1.0, -2.0, 0.0, 3.0]) + 1 + rng.standard_normal(len(X))
    return X, y if loss == "squared" else (y + rng.logistic(size=len(X)) > y.mean()).astype(float)


def fitted(X, y, **task) -> Fit:
    ends = np.cumsum(SIZES)[:-1]
    features = [torch.from_numpy(part.copy()) for part in np.split(X, ends)]
    targets = [torch.from_numpy(part.copy()) for part in np.split(y, ends)]
    net = StackedNetwork(f"ring({len(SIZES)})")
    return fit_model(asked(features, targets, Task(target="y", **task), net, StackedObserver(), columns=tuple("abcd")))


def penalties(l1, l2, columns, response, standardise):
    """Of the same fit in other units: the objective is 4^response times what it was."""
    unit = response if standardise else columns + response
    return {"l1": np.ldexp(l1, unit), "l2": np.ldexp(l2, 0 if standardise else 2 * columns)}


@pytest.mark.parametrize("standardise", [False, True], ids=["as they are", "standardised"])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
@pytest.mark.parametrize("l1", [0.0, 0.1])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_fit_is_the_same_in_any_units(loss, l1, intercept, standardise):
    X, y = data(loss)
    how = {"loss": loss, "intercept": intercept, "standardise": standardise}
    plain = fitted(X, y, l1=l1, **how)
    for columns in EXPONENTS:
        responses = (0, -columns // 2, 600) if loss == "squared" else (0,)
        for response in responses:
            if abs(response - columns) > 1000 or abs(columns + response) > 1000:
                continue  # coefficients or penalties that are none
            own = penalties(l1, 0.0, columns, response, standardise)
            found = fitted(np.ldexp(X, columns), np.ldexp(y, response) if response else y, **own, **how)
            assert found.status is Status.CONVERGED
            scaled = np.ldexp(np.array(found.coefficients), columns - response)
            assert scaled == pytest.approx(np.array(plain.coefficients), rel=1e-6, abs=1e-7)
            assert np.ldexp(found.intercept, -response) == pytest.approx(plain.intercept, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("large", [False, True], ids=["small sites", "large sites"])
def test_columns_of_every_size_lie_side_by_side(loss, large, monkeypatch):
    if large:
        for name, value in (("BLOCK", 100), ("SPARE", 0), ("FEWEST", 8)):
            monkeypatch.setattr(rows_module, name, value)
    X, y = data(loss)
    powers = np.array([-990, 0, 700, 40])
    plain, found = fitted(X, y, loss=loss), fitted(np.ldexp(X, powers), y, loss=loss)
    assert found.status is Status.CONVERGED
    assert np.ldexp(np.array(found.coefficients), powers) == pytest.approx(np.array(plain.coefficients), rel=1e-7)


@pytest.mark.parametrize("power", [-990, -530, 400])
def test_estimators_too(power):
    X, y = data()
    c = data("logistic")[1]
    for make, target in (
        (lambda k: DecentralizedLinearRegression(), y),
        (lambda k: DecentralizedLasso(np.ldexp(0.1, k)), y),
        (lambda k: DecentralizedLogisticRegression(np.ldexp(10.0, -k), l1_ratio=1.0), c),
    ):
        plain, found = make(0).fit(X, target), make(power).fit(np.ldexp(X, power), target)
        assert np.ldexp(found.coef_, power) == pytest.approx(plain.coef_, rel=1e-6, abs=1e-7)
    if power < 0:
        found = DecentralizedElasticNet(1e-3).fit(np.ldexp(X, power), np.ldexp(y, power))
        assert np.isfinite(found.coef_).all()


@pytest.mark.parametrize("power", [-700, -900])
def test_columns_that_are_nothing_beside_their_penalty_have_the_coefficients_of_the_limit(power):
    """Σ (y - p) x / (N l2), the gradient without features over l2, where features are too small to bend anything."""
    X, c = data("logistic")
    found = DecentralizedLogisticRegression(C=np.ldexp(1.0, -power)).fit(np.ldexp(X, power), c)
    assert found.coef_[0] == pytest.approx((c - c.mean()) @ (X - X.mean(0)), rel=1e-9)


@pytest.mark.parametrize("power", [-990, 990])
def test_sites_agree_upon_units_by_gossip_too(power):
    X, y = data()
    plain = fitted(X, y, l1=0.1, links="lossy")
    found = fitted(np.ldexp(X, power), y, l1=np.ldexp(0.1, power), links="lossy")
    assert found.status is Status.CONVERGED
    assert np.ldexp(np.array(found.coefficients), power) == pytest.approx(np.array(plain.coefficients), rel=1e-5)


def test_several_classes_too():
    X, y = data()
    three = np.digitize(y, [-1, 2])
    plain = DecentralizedLogisticRegression(1.0, l1_ratio=1.0).fit(X, three).coef_
    found = DecentralizedLogisticRegression(np.ldexp(1.0, -800), l1_ratio=1.0).fit(np.ldexp(X, 800), three).coef_
    assert np.ldexp(found, 800) == pytest.approx(plain, rel=1e-5, abs=1e-6)


def test_numbers_next_to_the_largest_there_is():
    X, y = data()
    most = np.finfo(float).max / np.abs(X).max()
    found = DecentralizedLinearRegression().fit(X * most, y)
    assert found.coef_ * most == pytest.approx(DecentralizedLinearRegression().fit(X, y).coef_, rel=1e-9)
    found = DecentralizedLinearRegression().fit(X, y / np.abs(y).max() * np.finfo(float).max / 100)
    assert np.isfinite(found.coef_).all() and (found.coef_ != 0).any()


def test_what_64_bits_cannot_hold_is_refused_in_a_sentence():
    X, y = data()
    with pytest.raises(InvalidInput, match=r"coefficient of column 'x0' is larger than 64 bits hold.*larger units"):
        DecentralizedLinearRegression().fit(np.ldexp(X, -900), np.ldexp(y, 900))
    with pytest.raises(InvalidInput, match=r"more than 64 bits hold.*larger units"):
        DecentralizedLasso(1.0).fit(np.ldexp(X, -900), np.ldexp(y, -900))


def test_a_path_of_penalties_in_small_units():
    X, y = data()
    plain, found = (DecentralizedLassoCV(alphas=5, cv=3).fit(X, np.ldexp(y, k)) for k in (0, 300))
    assert np.ldexp(found.coef_, -300) == pytest.approx(plain.coef_, rel=1e-6)
    assert np.ldexp(found.mse_path_, -600) == pytest.approx(plain.mse_path_, rel=1e-6)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e-3, 1e8, 1e-200, 1e200])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
@pytest.mark.parametrize("standardise", [False, True], ids=["as they are", "standardised"])
@pytest.mark.parametrize("target", [(1.0, 2.0, 3.0), (2.0, 2.0, 2.0)], ids=str)
def test_rows_that_are_all_the_same(size, intercept, standardise, target):
    """Any best solution: its gradient vanishes, and it predicts the mean wherever features or an intercept can."""
    for seed in range(4):
        X = np.tile(np.random.default_rng(seed).standard_normal(10) / 3 * size, (3, 1))
        sites = (
            [torch.from_numpy(X[k : k + 1].copy()) for k in range(3)],
            [torch.tensor([v], dtype=torch.float64) for v in target],
        )
        task = Task(target="y", intercept=intercept, standardise=standardise, iterations=100)
        fit = fit_model(asked(*sites, task, StackedNetwork("path(3)"), StackedObserver(), columns=tuple("abcdefghij")))
        assert fit.status is Status.CONVERGED and fit.iterations <= 5 and fit.residual < 1e-8
        if standardise or intercept:  # columns are centred, and nothing is left of them
            assert not np.any(fit.coefficients)
        predicted = X @ np.array(fit.coefficients) + fit.intercept
        assert predicted == pytest.approx(2.0 if intercept or not standardise else 0.0, rel=1e-9)


def test_a_column_that_hardly_changes_is_not_taken_for_one_that_does_not():
    X, y = data()
    X[:, 0] = 1.7e9 + X[:, 0]
    found = DecentralizedLinearRegression().fit(X, y)
    centred = X - X.mean(0)
    assert found.coef_ == pytest.approx(np.linalg.lstsq(centred, y - y.mean(), rcond=None)[0], rel=1e-6)


def test_weights_of_each_coordinate_are_an_elastic_net():
    """Where all are the same it is one; the truth is the class for that."""
    torch.manual_seed(0)
    x, v = torch.randn(2, 7, 5).double()
    x[0] = 0
    for lam, mu in ((0.3, 0.0), (0.0, 0.7), (0.2, 0.4)):
        ours, truth = Weighed(torch.full((5,), lam).double(), torch.full((5,), mu).double()), ElasticNet(lam, mu)
        s = truth.dual_scaling(v)
        assert s is not None
        for name, arguments in {
            "each": (x,), "value": (x,), "prox": (v, 0.7), "distance": (x, v), "conjugate": (s.unsqueeze(-1) * v,),
            "dual_scaling": (v,), "slope": (x,), "curvature": (x,),
        }.items():  # fmt: skip
            torch.testing.assert_close(getattr(ours, name)(*arguments), getattr(truth, name)(*arguments))
    nothing = torch.tensor([0.1, 1e-300, 0.1, 0.1, 0.1]).double()
    assert Weighed(nothing, torch.zeros(5).double()).dual_scaling(v) is None
