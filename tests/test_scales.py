"""A column in other units at one site is told before the fit, with site, column and factor; sites that merely differ are not."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from test_sites import hospitals, write_csv

from milodo.cli.main import run
from milodo.fit.pooled import scaling, total_of
from milodo.fit.scales import odd_scales
from milodo.network import StackedNetwork, StackedObserver
from milodo.sklearn import DecentralizedLasso, DecentralizedLassoCV, DecentralizedLogisticRegression

DIABETES = load_diabetes(scaled=False)


def found(parts, *, centre=True, weights=None):
    """(site, column, factor) of what is odd."""
    features = [torch.as_tensor(part, dtype=torch.float64) for part in parts]
    net = StackedNetwork(f"path({len(parts)})")
    targets = [torch.ones(len(part), dtype=torch.float64) for part in parts]
    scaled = scaling(features, targets, total_of(net, reliable=True), centre=centre, weights=weights)
    return [(odd.node, odd.column, odd.factor) for odd in odd_scales(features, scaled, net, StackedObserver(), weights)]


@pytest.mark.parametrize("sizes", [(50, 60), (40, 5, 300), (10,) * 20, (1000, 20, 30)])
@pytest.mark.parametrize("factor", [1000.0, 1e-3, 1e9])
@pytest.mark.parametrize("mean", [0.0, 30.0])
@pytest.mark.parametrize("centre", [True, False])
def test_a_column_in_other_units_is_found_at_its_site_whatever_the_sizes(sizes, factor, mean, centre):
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((size, 3)) + mean for size in sizes]
    assert found(parts, centre=centre) == []
    parts[1][:, 2] *= factor
    odd = found(parts, centre=centre)
    assert (1, 2) in [(site, column) for site, column, _ in odd]
    assert len(odd) == (2 if len(sizes) == 2 else 1)  # of two sites nobody knows which is wrong
    assert np.log(dict((site, times) for site, _, times in odd)[1]) == pytest.approx(np.log(factor), abs=1.5)


def test_sites_that_differ_as_sites_do_are_not_told():
    rng = np.random.default_rng(0)
    parts = []
    for site in range(4):
        N = 300
        columns = [
            np.full(N, 10.0 ** (2 * site)),  # a constant of each site
            np.full(N, 7.0) if site else 1e5 * rng.standard_normal(N),  # constant at all but one
            (rng.random(N) < (0.004 if site else 0.9)).astype(float),  # a rare event that is common at one site
            rng.standard_normal(N) * 3.0**site,  # spreads that differ 27 times
            (rng.random(N) < 0.01) * 1e4,  # mostly 0
            rng.standard_normal(N) + 100 * site,
            np.zeros(N),
            np.exp(3 * rng.standard_normal(N)),  # a long tail
        ]
        parts.append(np.stack(columns, axis=1))
    assert found(parts) == [] and found(parts, centre=False) == []
    data = load_breast_cancer()
    order = np.argsort(data.target, kind="stable")
    assert found(np.split(data.data[order], [100, 300, 450])) == []


def test_rows_of_weight_zero_are_no_rows():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((20, 2)) for _ in range(3)]
    parts[2][5:] *= 1e6
    weights = [torch.ones(20, dtype=torch.float64) for _ in parts]
    weights[2][5:] = 0
    assert found(parts, weights=weights) == [] and found(parts)


@pytest.mark.parametrize("penalty", ["1", "auto"])
def test_solve_warns_and_the_fit_keeps_the_warning(tmp_path, capsys, penalty):
    paths = hospitals(tmp_path)
    X = DIABETES.data[100:250].copy()
    X[:, 3] *= 1000
    write_csv(paths[1], DIABETES.feature_names, X, "progression", DIABETES.target[100:250])
    words = ["solve", "--data", str(tmp_path / "site-*.csv"), "--target", "progression", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="0"):
        run([*words, "--l1", penalty, "--penalties", "3"] if penalty == "auto" else [*words, "--l1", penalty])
    printed = capsys.readouterr()
    said = " ".join(printed.err.split())
    assert said.count("warning") == 1 and "column 'bp' is typically" in said and "site-1.csv" in said
    assert float(said.split("typically ")[1].split(" times as large")[0].replace(",", "")) == pytest.approx(1000, rel=0.1)
    (kept,) = json.loads((tmp_path / "out" / "fit.json").read_text())["warnings"]
    assert kept in said


def test_estimators_warn():
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    sites = np.array(["north", "south", "west"])[np.arange(len(X)) % 3]
    for model in (DecentralizedLasso(1.0), DecentralizedLassoCV(alphas=2, cv=2), DecentralizedLogisticRegression()):
        target = y > 100 if isinstance(model, DecentralizedLogisticRegression) else y
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model.fit(X, target, sites=sites)
        other = X.astype(float)
        other.loc[sites == "south", "bmi"] *= 1000
        with pytest.warns(UserWarning, match=r"column 'bmi' is typically .* times as large at site south"):
            model.fit(other, target, sites=sites)
