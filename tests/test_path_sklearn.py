"""Estimators that choose their penalty: scikit-learn's own checks, its splits, and what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LassoCV
from sklearn.model_selection import KFold, LeaveOneGroupOut, ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from milodo.errors import InvalidInput
from milodo.sklearn import DecentralizedLassoCV, DecentralizedLogisticRegressionCV

X, Y = load_diabetes(return_X_y=True)


@parametrize_with_checks([DecentralizedLassoCV(), DecentralizedLogisticRegressionCV()])
def test_an_estimator_that_chooses_is_one(estimator, check):
    check(estimator)


@pytest.mark.parametrize("weighed", [False, True], ids=["alike", "weighed"])
def test_it_chooses_what_lasso_cv_chooses_with_the_same_splits(weighed):
    cv = KFold(4, shuffle=True, random_state=3)
    weights = np.random.default_rng(0).uniform(0.1, 3, len(Y)) if weighed else None
    found = DecentralizedLassoCV(alphas=12, cv=cv, n_sites=4).fit(X, Y, sample_weight=weights)
    truth = LassoCV(alphas=12, cv=cv, tol=1e-10, max_iter=10**6).fit(X, Y, sample_weight=weights)
    assert found.alphas_ == pytest.approx(truth.alphas_) and found.alpha_ == pytest.approx(truth.alpha_)
    assert found.mse_path_ == pytest.approx(truth.mse_path_, rel=1e-6)
    assert found.coef_ == pytest.approx(truth.coef_, abs=1e-6 * np.abs(truth.coef_).max())


def test_sites_are_left_out_as_groups_are():
    sites = np.repeat(["north", "south", "west"], [100, 200, 142])
    found = DecentralizedLassoCV(alphas=8, cv="sites").fit(X, Y, sites=sites)
    truth = LassoCV(alphas=8, cv=list(LeaveOneGroupOut().split(X, Y, sites)), tol=1e-10, max_iter=10**6).fit(X, Y)
    assert found.alpha_ == pytest.approx(truth.alpha_) and found.mse_path_ == pytest.approx(truth.mse_path_, rel=1e-6)


def test_it_works_in_a_pipeline_and_can_be_cloned_and_pickled():
    model = make_pipeline(StandardScaler(), DecentralizedLassoCV(alphas=6, rule="1se")).fit(X, Y)
    again = pickle.loads(pickle.dumps(clone(model).fit(X, Y)))
    assert np.array_equal(model.predict(X), again.predict(X)) and again[-1].path_.chosen < again[-1].path_.best


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"cv": ShuffleSplit(3)}, "cv must hold every row in one test part"),
        ({"cv": 1}, "cv is 1"),
        ({"cv": "rows"}, "cv is 'rows'"),
        ({"cv": "sites", "n_sites": 1}, "there must be two at least"),
        ({"alphas": [0.1, -1.0]}, "finite numbers > 0"),
        ({"alphas": 0}, "the number of penalties is 0"),
        ({"eps": "small"}, "eps is 'small'"),
        ({"rule": "best"}, "unknown rule 'best'"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_one_sentence(own, said):
    with pytest.raises(InvalidInput, match=said):
        DecentralizedLassoCV(**own).fit(X[:50], Y[:50])
