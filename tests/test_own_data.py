"""The cheapest exact answer from data at uneven sites: what it equals, what it costs, and what is said where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.linear_model import Lasso

from milodo.cli.main import run
from milodo.errors import InvalidInput
from milodo.fit import Site, Task, fit_here
from milodo.fit.newton import NewtonOnSums
from milodo.loop import Stop, solve
from milodo.metrics import Units
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import L1, LeastSquares, LogisticRegression, Zero, optimum
from milodo.problems.regularizers import UnpenalizedIntercept
from milodo.solvers.prox_newton import model_minimum, sparse_quadratic
from milodo.status import Status

OBSERVER = StackedObserver()
DIABETES, CANCER, WINE = load_diabetes(scaled=False), load_breast_cancer(), load_wine()
DATA = {
    "diabetes": (DIABETES.data, DIABETES.target, "squared", 0.01),
    "wine": (WINE.data, (WINE.target == 0).astype(float), "logistic", 0.01),
    "breast cancer": (CANCER.data, CANCER.target.astype(float), "logistic", 0.01),
}


def uneven(X: np.ndarray, y: np.ndarray, n: int) -> list[Site]:
    """n sites, the first with most of the rows, the last but one with a single one."""
    order = np.random.default_rng(1).permutation(len(y))
    sizes = [len(y) // 2, *[max(1, len(y) // (4 * n))] * (n - 3), 1]
    names = tuple(f"x{k}" for k in range(X.shape[1]))
    return [Site(f"{k}.csv", names, X[r], y[r]) for k, r in enumerate(np.split(order, np.cumsum(sizes)))]


def certified(X: np.ndarray, y: np.ndarray, loss: str, l1: float) -> np.ndarray:
    A = torch.from_numpy(np.column_stack([X, np.ones(len(X))]))[None]
    model = LeastSquares if loss == "squared" else LogisticRegression
    best = optimum(model(A, torch.from_numpy(y)[None], UnpenalizedIntercept(L1(l1)) if l1 else UnpenalizedIntercept(Zero())))
    assert bool(best.certified)
    return best.x[:-1].numpy()


@pytest.mark.parametrize("sites", [3, 20])
@pytest.mark.parametrize("columns", ["raw", "standardised"])
@pytest.mark.parametrize("name", DATA)
def test_any_columns_at_any_sites_give_the_pooled_answer_by_sums_and_by_gossip(name, columns, sites):
    X, y, loss, l1 = DATA[name]
    Z = (X - X.mean(0)) / X.std(0) if columns == "standardised" else X
    theirs = certified(Z, y, loss, l1)
    unit = Z.std(0) / (y.std() if loss == "squared" else 1.0)
    ways = ("reliable", "lossy") if sites == 3 and not (name == "breast cancer" and columns == "raw") else ("reliable",)
    for links in ways:
        fit = fit_here(uneven(X, y, sites), Task(target="y", loss=loss, l1=l1, standardise=columns != "raw", links=links))
        ours = np.array(fit.standardised if columns == "standardised" else fit.coefficients)
        assert fit.status is Status.CONVERGED and 0 <= fit.gap <= 1e-8 and np.abs((ours - theirs) * unit).max() < 1e-6
        if links == "reliable":
            assert fit.method == ("Moments" if loss == "squared" else "Newton on sums") and fit.consensus < 1e-15


def test_breast_cancer_at_five_sites_costs_less_than_half_a_megabyte():
    X, y, loss, l1 = DATA["breast cancer"]
    for standardise in (True, False):
        fit = fit_here(uneven(X, y, 5), Task(target="y", loss=loss, l1=l1, standardise=standardise))
        assert (
            fit.status is Status.CONVERGED
            and fit.bytes < 500_000
            and fit.traffic.method.rounds < 150 > 2 * fit.traffic.checks.rounds
        )


def test_many_features_are_iterated_and_what_curvatures_would_need_is_said():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 400)) * 10 ** rng.uniform(-3, 3, 400)
    y = X[:, :5] @ (1 / X[:, :5].std(0)) + rng.standard_normal(120)
    fit = fit_here(uneven(X, y, 4), Task(target="y", l1=0.2, standardise=True))
    assert fit.method == "Tree-APG, 4 bits, coded" and "curvatures of 400 features would be 648 kB a message" in fit.why
    Z = (X - X.mean(0)) / X.std(0)
    model = Lasso(alpha=0.2, tol=1e-14, max_iter=10**6).fit(Z, y)
    assert fit.status is Status.CONVERGED and np.array(fit.standardised) == pytest.approx(model.coef_, abs=1e-6)


def test_columns_that_are_the_same_are_no_obstacle():
    X, y, _, _ = DATA["diabetes"]
    twice = np.column_stack([X, X[:, 2], 3 * X[:, 3] - 1])
    fit = fit_here(uneven(twice, y, 3), Task(target="y", l1=0.5, standardise=True))
    alone = fit_here(uneven(X, y, 3), Task(target="y", l1=0.5, standardise=True))
    assert fit.status is Status.CONVERGED and fit.objective == pytest.approx(alone.objective, rel=1e-9)
    without = fit_here(uneven(twice, y, 3), Task(target="y", l1=0.0))
    assert without.status is Status.CONVERGED and np.isfinite(without.coefficients).all()
    plain = fit_here(uneven(X, y, 3), Task(target="y", l1=0.0))
    assert without.objective == pytest.approx(plain.objective, rel=1e-9)


def test_columns_that_are_almost_the_same_cost_digits_that_are_won_back():
    """The moments of 1 + 1e-9 and 1 know nothing of the difference; the data do."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal(300)
    X = np.column_stack([base, base + 1e-7 * rng.standard_normal(300), rng.standard_normal(300)])
    y = X @ [1.0, 1.0, -1.0] + 0.1 * rng.standard_normal(300)
    fit = fit_here(uneven(X, y, 3), Task(target="y", l1=0.01, standardise=True))
    assert fit.status is Status.CONVERGED and fit.gap < 1e-9


@pytest.mark.parametrize("links", ["reliable", "lossy"])
def test_separable_classes_without_a_penalty_are_said_to_have_no_answer(links):
    X, y, _, _ = DATA["wine"]
    with pytest.raises(InvalidInput, match=r"told apart without a mistake.*Add a penalty"):
        fit_here(uneven(X, y, 3), Task(target="y", loss="logistic", l1=0.0, links=links, iterations=3000))


def test_a_graph_without_a_spanning_tree_is_refused(tmp_path, capsys):
    (tmp_path / "links").write_text("0 1\n2 3\n")
    for k in range(4):
        (tmp_path / f"{k}.csv").write_text(f"a,y\n1,2\n3,{k}\n")
    words = ["solve", "--data", str(tmp_path / "*.csv"), "--graph", str(tmp_path / "links"), "--out", str(tmp_path / "out")]
    assert run(words) == 2 and "disconnected" in capsys.readouterr().err


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_newton_ends_where_the_gradient_does(loss):
    rng = torch.Generator().manual_seed(0)
    A = torch.randn(4, 30, 5, dtype=torch.float64, generator=rng)
    b = torch.randn(4, 30, dtype=torch.float64, generator=rng)
    reg = L1(0.02)
    problem = LeastSquares(A, b, reg) if loss == "squared" else LogisticRegression(A, (b > 0).double(), reg)
    net = StackedNetwork("path(4)")
    best = optimum(problem)
    stop, units = Stop(steps=20, tolerance=1e-9, every=1), Units.of(problem, StackedObserver())
    result = solve(NewtonOnSums(), problem, net, stop, observer=StackedObserver(net), units=units)
    assert result.status is Status.CONVERGED and result.k <= (1 if loss == "squared" else 10)
    assert float((result.x - best.x).norm(dim=-1).max()) <= 1e-8
    assert net.traffic.rounds == 2 * 2 * 3 * result.k  # a tree two high: curvature; where to go, with values; the gradient there
    assert result.checks.rounds == 2 * 2  # of the certificate alone: all nodes know the gradient there


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), rank=st.integers(1, 6), alike=st.sampled_from([1.0, 1e-2, 1e-5, 0.0]))
def test_a_sparse_quadratic_is_solved_exactly_however_alike_its_columns_are(seed, rank, alike):
    rng = torch.Generator().manual_seed(seed)
    B = torch.randn(9, rank, dtype=torch.float64, generator=rng) @ torch.randn(rank, 6, dtype=torch.float64, generator=rng)
    B[:, 1] = B[:, 0] + alike * B[:, 1]
    H, c = B.mT @ B / 9, B.mT @ torch.randn(9, dtype=torch.float64, generator=rng) / 9
    w = 0.1 * torch.rand(6, dtype=torch.float64, generator=rng)
    start = torch.randn(6, dtype=torch.float64, generator=rng) * (torch.rand(6, generator=rng) > 0.5)
    z = sparse_quadratic(H, c, w, start)
    slope = H @ z - c
    off = torch.where(z == 0, (slope.abs() - w).clamp(min=0), (slope + w * z.sign()).abs())
    assert float(off.max()) < 1e-9 * float(c.abs().max() + H.abs().max() * z.abs().max())


def test_an_intercept_is_eliminated_exactly():
    rng = torch.Generator().manual_seed(0)
    B = torch.randn(9, 4, dtype=torch.float64, generator=rng)
    H, g = B.mT @ B / 9, torch.randn(4, dtype=torch.float64, generator=rng)
    x = torch.randn(4, dtype=torch.float64, generator=rng)
    found = model_minimum(H, g, x, UnpenalizedIntercept(L1(0.1)))
    slope = g + H @ (found - x)
    assert float(slope[-1].abs()) < 1e-12 and bool((L1(0.1).distance(found[:-1], -slope[:-1]) < 1e-9).all())


def test_gossip_ends_with_the_features_that_sums_find_and_no_others():
    """Means of nodes that are nearly 0 are not features that are used; the objective is no higher than what was certified."""
    X, y, loss, l1 = DATA["breast cancer"]
    task = Task(target="y", loss=loss, l1=l1, standardise=True)
    sums, gossip = (fit_here(uneven(X, y, 3), replace(task, links=links)) for links in ("reliable", "lossy"))
    used = [np.flatnonzero(fit.coefficients).tolist() for fit in (sums, gossip)]
    assert used[0] == used[1] and 0 < len(used[0]) < X.shape[1]
    assert gossip.objective >= sums.objective - 1e-12 and gossip.gap <= 1e-8
