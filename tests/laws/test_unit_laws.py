"""The units of data change nothing but the units of the answer: neither iterations, nor status, nor certificates."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_diabetes
from unit_cases import SMALL, certified_and_wrong, rescaled, runs

from milodo.algorithms import METHODS
from milodo.bench.recorder import Limits, Recorder, record
from milodo.fit import Site, Task, fit_here
from milodo.loop import Result, Stop, solve
from milodo.metrics import judged_point
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import (
    L1,
    Box,
    CustomProblem,
    ElasticNet,
    Lasso,
    LeastSquares,
    LinearModel,
    LogisticRegression,
    NonNegative,
    Reference,
    Zero,
    optimum,
)
from milodo.problems.regularizers import Rescaled, UnpenalizedIntercept
from milodo.solvers.certificates import BOUNDS, Certifier
from milodo.status import Status

sys.path.insert(0, str(Path(__file__).parent.parent))
from real import together

OBSERVER = StackedObserver()
EXACT = sorted(name for name, method in METHODS.items() if method.exact)
TARGETS = st.floats(-100, 100).map(lambda k: 10.0**k)
FEATURES = st.floats(-12, 12).map(lambda k: 10.0**k)
REGS = [Zero(), L1(0.1), ElasticNet(0.1, 0.2), Box(-0.3, 0.4), NonNegative(0.1), NonNegative()]
SAME = 1e-9
"""Data times a number that is no power of two are rounded anew, and a run of some hundred steps carries that along."""


def close(x: torch.Tensor, expected: torch.Tensor, tolerance: float = SAME) -> bool:
    return float((x - expected).norm()) <= tolerance * float(expected.norm())


@pytest.fixture(scope="module")
def lasso() -> LinearModel:
    return Lasso(6, 8, 20, 0.1).sample([0, 1])


@pytest.fixture(scope="module")
def until_solved(build) -> Callable[..., Result]:
    """until_solved(method, problem): a run on a ring."""
    stop = Stop(steps=5000, tolerance=1e-7, every=7)
    return lambda method, problem: solve(build(method, problem), problem, StackedNetwork("ring(6)"), stop)


@pytest.fixture(scope="module")
def in_ordinary_units(lasso, until_solved) -> Callable[..., Result]:
    """in_ordinary_units(method, reg): made once, for all examples."""
    return cache(lambda method, reg: until_solved(method, LeastSquares(lasso.A, lasso.b, reg)))


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("reg", [Zero(), L1(0.1), Box(-0.3, 0.4)], ids=str)
@settings(max_examples=4)
@given(target=TARGETS, feature=FEATURES)
def test_a_run_stops_at_the_same_iteration_in_any_units(lasso, until_solved, in_ordinary_units, method, reg, target, feature):
    # Primal-Dual has one γ for x and for y, which are measured in different units: it stays in those of its features.
    feature = 1.0 if method == "primal-dual" else feature
    here, there = in_ordinary_units(method, reg), until_solved(method, rescaled(lasso, reg, target, feature))
    scale = target / feature
    assert here.status is there.status is Status.CONVERGED
    assert here.k == there.k
    assert close(there.x / scale, here.x) and close(there.objective / target / target, here.objective)


@pytest.mark.parametrize("method", [name for name in sorted(METHODS) if METHODS[name].space])
@settings(max_examples=3)
@given(target=TARGETS)
def test_divergence_is_seen_at_the_same_iteration_in_any_units(lasso, build, method, target):
    first = next(iter(METHODS[method].space))
    found = []
    for problem in (lasso, rescaled(lasso, L1(0.1), target, 1.0)):
        wild = build(method, problem, **{first: 1e3 / float(problem.lipschitz().max())})
        result = solve(wild, problem, StackedNetwork("ring(6)"), Stop(steps=1000))
        recorder = Recorder("wild", problem, StackedNetwork("ring(6)"), torch.zeros(2).double(), [0, 1], 0)
        record(wild, problem, recorder.net, recorder, Limits(iterations=1000))
        found.append((result.status, result.k, recorder.ended, [len(rows) for rows in recorder.rows]))
    assert found[0] == found[1] and found[0][0] is Status.DIVERGED


@given(scale=TARGETS)
def test_an_objective_that_starts_at_zero_diverges_only_if_it_grows(scale):
    """f = (c/2)(x - a)² - (c/2) a²: 0 at the start, whatever c is."""

    def f(x, data):
        return data["c"] * ((x - data["a"]).square().sum() - data["a"].square().sum()) / 2

    data = {"a": torch.arange(6.0).double().reshape(3, 2), "c": torch.full((3,), scale, dtype=torch.float64)}
    problem, net = CustomProblem(f, data, 2, Zero(), lipschitz=scale), StackedNetwork("ring(3)")
    fine = solve(METHODS["prox-ed"](gamma=0.5 / scale), problem, net, Stop(steps=2000, tolerance=1e-9))
    assert fine.status is Status.CONVERGED and close(fine.x, data["a"].mean(0).expand(3, 2), 1e-7)
    assert solve(METHODS["prox-ed"](gamma=5 / scale), problem, net, Stop(steps=2000)).status is Status.DIVERGED


@given(scale=TARGETS)
def test_touching_a_wall_is_a_matter_of_the_walls_size(scale):
    problem = Lasso(3, 2, 5, reg=Box(0.0, scale)).sample([0])
    touching = torch.full((1, 3, 2), scale * (1 + 1e-9), dtype=torch.float64)
    beyond = torch.full((1, 3, 2), scale * 1.1, dtype=torch.float64)
    assert bool((judged_point(touching, problem, OBSERVER) <= scale).all())
    assert bool((judged_point(beyond, problem, OBSERVER) > scale * 1.09).all())


def sites(X: np.ndarray, y: np.ndarray, cuts: tuple[int, ...]) -> list[Site]:
    names = tuple(f"f{k}" for k in range(X.shape[1]))
    return [Site(f"{k}.csv", names, X[rows], y[rows]) for k, rows in enumerate(np.split(np.arange(len(y)), cuts))]


def own_data(loss: str) -> tuple[np.ndarray, np.ndarray]:
    """Few columns, so that a run is short."""
    if loss == "squared":
        data = load_diabetes(scaled=False)
        return data.data[:, :4], data.target
    data = load_breast_cancer()
    return data.data[::3, :4], data.target[::3].astype(float)


@pytest.mark.parametrize("method", [None, "pg-extra", "dapg", "odapg"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@settings(max_examples=3)
@given(target=TARGETS, features=st.lists(FEATURES, min_size=4, max_size=4))
def test_a_fit_is_the_same_in_any_units(method, loss, target, features):
    X, y = own_data(loss)
    target, scale = (target if loss == "squared" else 1.0), np.array(features)
    parameters = {"dapg": {"alpha": 0.1, "K": 2}, "odapg": {"tau": 0.1, "K": 2}}.get(method or "", {})
    found = []
    for t, c in ((1.0, np.ones(4)), (target, scale)):
        l1 = (1.0 if loss == "squared" else 0.02) * t
        task = Task(target="y", loss=loss, l1=l1, standardise=True, method=method, parameters=parameters, tolerance=1e-9)
        found.append(fit_here(sites(X * c, y * t, (20, 90)), task))
    here, there = found
    assert (here.status, here.iterations) == (there.status, there.iterations) and here.status is Status.CONVERGED
    assert np.array(there.coefficients) * scale / target == pytest.approx(here.coefficients, rel=1e-6, abs=1e-9)
    assert there.intercept / target == pytest.approx(here.intercept, rel=1e-6)
    assert 0 <= there.gap <= 1e-9 and there.gap == pytest.approx(here.gap, rel=0.1, abs=1e-13)


@pytest.mark.parametrize("mean", [3.5e6, 0.0])
def test_prices_of_houses_converge(mean):
    """What was right to 15 digits and never said so."""
    X, y = own_data("squared")
    price = mean + 1e5 * (y - y.mean()) / y.std()
    fit = fit_here(sites(X, price, (100, 250)), Task(target="y", l1=100.0, standardise=True))
    plain = fit_here(sites(X, price - mean, (100, 250)), Task(target="y", l1=100.0, standardise=True))
    assert fit.status == plain.status is Status.CONVERGED
    assert fit.coefficients == pytest.approx(plain.coefficients, rel=1e-7) and fit.intercept - plain.intercept == pytest.approx(
        mean
    )


def test_targets_that_are_all_the_same_are_a_fit_without_features():
    X, y = own_data("squared")
    fit = fit_here(sites(X, np.full_like(y, 3.3), (100, 250)), Task(target="y", l1=0.1, standardise=True))
    assert fit.status is Status.CONVERGED and not any(fit.coefficients) and fit.intercept == pytest.approx(3.3)


@settings(max_examples=1, phases=[Phase.generate])  # no smaller example is worth starting processes for
@given(cases=st.lists(st.tuples(TARGETS, FEATURES), min_size=3, max_size=3))
def test_real_processes_stop_where_the_simulation_does_in_any_units(tmp_path_factory, cases):
    out = tmp_path_factory.mktemp("units") / "found.json"
    together([str(Path(__file__).parent / "unit_cases.py"), str(out), json.dumps(cases)], 3)
    simulated = runs([(1.0, 1.0)], lambda: (StackedNetwork("ring(3)"), OBSERVER))[0]
    found = json.loads(out.read_text())
    assert len(found) == len(cases)
    for case in found:
        assert case.keys() == simulated.keys() == set(SMALL)
        for name, (k, status, x) in case.items():
            assert (k, status) == (simulated[name][0], "CONVERGED")
            assert x == pytest.approx(simulated[name][2], rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("reg", REGS, ids=str)
@settings(max_examples=6)
@given(target=TARGETS, features=st.lists(FEATURES, min_size=8, max_size=8))
def test_the_optimum_is_certified_in_any_units_a_column_may_have(lasso, reg, target, features):
    here = optimum(LeastSquares(lasso.A, lasso.b, reg))
    scale, squared = torch.tensor(features, dtype=torch.float64), torch.tensor(target, dtype=torch.float64).square()
    there = optimum(LeastSquares(lasso.A * scale, lasso.b * target, Rescaled(reg, target / scale, squared)))
    assert bool(here.certified.all()) and bool(there.certified.all())
    assert close(there.x * scale / target, here.x, 1e-7)
    assert close(there.value / target / target, here.value, 1e-12)


@pytest.mark.parametrize("reg", REGS, ids=str)
@pytest.mark.parametrize("exponent", [-160, -150, -100, -15, -8, 8, 100, 150])
def test_nothing_false_is_certified(lasso, reg, exponent):
    """Also where targets are too small or too large for their squares to be numbers."""
    assert not certified_and_wrong(lasso, reg, 1.0, 10.0**exponent)
    assert not certified_and_wrong(lasso, reg, 10.0 ** (exponent / 5), 10.0 ** (exponent / 5))


def test_what_fp64_cannot_express_has_no_certificate_and_says_why(lasso):
    for t in (1e-165, 1e-160, 1e160):  # a value of 0, one with three digits, and none
        found = optimum(LeastSquares(lasso.A, lasso.b * t, Zero()))
        assert not bool(found.certified.any()) and "use other units" in found.why


@pytest.mark.parametrize("reg", [Zero(), NonNegative(), L1(0.0)], ids=str)
@pytest.mark.parametrize("intercept", [False, True])
def test_separable_classes_without_a_penalty_have_no_minimum_and_no_certificate(reg, intercept):
    A = torch.randn(1, 30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).abs()
    b = (A.sum(-1) > A.sum(-1).median()).double()
    A = torch.cat((A - (0 if intercept else float(A.sum(-1).median()) / 4), torch.ones_like(A[..., :1])), dim=-1)
    problem = LogisticRegression(A if intercept else A[..., :-1], b, UnpenalizedIntercept(reg) if intercept else reg)
    found = optimum(problem)
    assert not bool(found.certified) and "add a penalty" in found.why and not bool(torch.isfinite(found.certificate))
    assert bool(optimum(LogisticRegression(problem.A, b, UnpenalizedIntercept(L1(0.01)) if intercept else L1(0.01))).certified)


def test_wide_walls_do_not_hide_an_optimum_between_them(lasso):
    wide, none = optimum(LeastSquares(lasso.A, lasso.b, Box(-1e6, 1e6))), optimum(LeastSquares(lasso.A, lasso.b, Zero()))
    assert bool(wide.certified.all()) and wide.kind == "strong convexity"
    assert close(wide.x, none.x, 1e-12)


def test_raw_columns_are_certified_and_no_other_solver_is_below():
    """Breast cancer as it comes: columns from 1e-3 to 4e3."""
    from sklearn.linear_model import LogisticRegression as SklearnLogistic

    data = load_breast_cancer()
    A, b = torch.from_numpy(data.data)[None], torch.from_numpy(data.target.astype(float))[None]
    found = optimum(LogisticRegression(A, b, L1(0.01)))
    assert bool(found.certified) and float(found.certificate) < 1e-12
    model = SklearnLogistic(l1_ratio=1.0, C=1 / (0.01 * len(data.data)), fit_intercept=False, solver="liblinear", tol=1e-8)
    x = model.set_params(max_iter=20_000).fit(data.data, data.target).coef_[0]
    theirs = float(LogisticRegression(A, b, L1(0.01)).objective(torch.from_numpy(x), OBSERVER))
    assert float(found.value) <= theirs * (1 + 1e-13) and theirs == pytest.approx(float(found.value), rel=1e-5)


def noisy_classes() -> tuple[torch.Tensor, torch.Tensor]:
    A = torch.randn(2, 4, 30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return A, (
        A.sum(-1) + 2 * torch.randn(A.shape[:-1], dtype=torch.float64, generator=torch.Generator().manual_seed(2)) > 0
    ).double()


@pytest.mark.parametrize("reg", [Zero(), NonNegative(), Box(-1e6, 1e6)], ids=str)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_what_curvature_proves_holds_for_the_value_and_for_x(lasso, reg, loss):
    problem = LeastSquares(lasso.A, lasso.b, reg) if loss == "squared" else LogisticRegression(*noisy_classes(), reg)
    best, generator, seen = optimum(problem), torch.Generator().manual_seed(0), 0
    assert bool(best.certified.all()) and best.kind == "strong convexity"
    for size in (1e-12, 1e-9, 1e-7, 1e-5, 1e-3, 1e-1):
        for _ in range(10):
            x = problem.reg.project(best.x + size * torch.randn(best.x.shape, dtype=torch.float64, generator=generator))
            proof, value = Certifier(problem)(x, enough=-1.0), problem.objective(x, OBSERVER)
            proven = torch.tensor([kind in BOUNDS for kind in proof.kinds])
            assert ((value - best.value <= (proof.bound + 1e-15) * value.abs()) | ~proven).all()
            known = ~proof.distance.isnan()
            assert ((x - best.x).norm(dim=-1) <= proof.distance * (1 + 1e-9) + 1e-15)[known].all()
            seen += int((proven & known).sum())
    assert seen > 20


def test_what_curvature_proves_is_sharp(lasso):
    """Along the flattest direction of a quadratic the bounds are what is there, and no less."""
    problem = LeastSquares(lasso.A[0], lasso.b[0], Zero())
    rows = problem.A.flatten(0, 1)
    flattest = torch.linalg.eigh(rows.mT @ rows / len(rows)).eigenvectors[:, 0]
    best = optimum(problem)
    x = best.x + 1e-3 * flattest
    proof, value = Certifier(problem)(x, enough=-1.0), float(problem.objective(x, OBSERVER))
    assert proof.kinds == ("strong convexity",)
    assert float(proof.bound) * value == pytest.approx(value - float(best.value), rel=1e-6)
    assert float(proof.distance) == pytest.approx(1e-3, rel=1e-6)


def exact_solution(A: torch.Tensor, b: torch.Tensor) -> list[Fraction]:
    """argmin ‖A x - b‖² in fractions, by Gauss's elimination."""
    rows = [[Fraction(v) for v in row] for row in A.flatten(0, 1).tolist()]
    targets, d = [Fraction(v) for v in b.flatten().tolist()], A.shape[-1]
    M = [[sum(row[i] * row[j] for row in rows) for j in range(d)] for i in range(d)]
    v = [sum(row[i] * t for row, t in zip(rows, targets, strict=True)) for i in range(d)]
    for i in range(d):
        for j in range(d):
            if j != i:
                share = M[j][i] / M[i][i]
                M[j] = [a - share * c for a, c in zip(M[j], M[i], strict=True)]
                v[j] -= share * v[i]
    return [v[i] / M[i][i] for i in range(d)]


@pytest.mark.parametrize("powers", [(0, 0, 0), (-20, 20, 20), (20, -20, 0), (12, 30, -30)], ids=str)
def test_a_distance_from_the_optimum_is_bounded_in_the_units_of_the_columns(powers):
    """The column with the smallest unit has the unknown with the largest error."""
    generator, wrong = torch.Generator().manual_seed(0), 0
    for _ in range(5):
        A = torch.randint(-99, 99, (2, 5, 3), generator=generator).double() * 2.0 ** torch.tensor(powers)
        b = torch.randint(-99, 99, (2, 5), generator=generator).double()
        found = optimum(LeastSquares(A, b, Zero()))
        assert found.kind == "strong convexity"
        off = math.sqrt(sum((Fraction(x) - y) ** 2 for x, y in zip(found.x.tolist(), exact_solution(A, b), strict=True)))
        assert off <= 4 * float(
            found.distance
        )  # at an optimum the gradient that is left is rounding, whose own size is not known better
        wrong += off > 1e-3 * float(found.distance)
    assert wrong > 0  # so that a bound which is a million times too small would be seen


def test_a_reason_is_given_where_nothing_is_proven(lasso):
    found: Reference = optimum(LeastSquares(lasso.A, lasso.b, L1(0.1)), iterations=0)
    assert not bool(found.certified.any()) and "stays at" in found.why
    assert optimum(lasso).why == ""


@pytest.mark.parametrize("reg", REGS, ids=str)
@settings(max_examples=20)
@given(
    v=st.lists(st.floats(-3, 3), min_size=4, max_size=4).map(lambda v: torch.tensor(v, dtype=torch.float64)),
    scale=st.lists(st.integers(-4, 4), min_size=4, max_size=4).map(lambda v: 2.0 ** torch.tensor(v, dtype=torch.float64)),
    factor=st.integers(-4, 4).map(lambda k: 2.0**k),
    step=st.floats(0.1, 10),
)
def test_a_penalty_in_other_units_is_the_same_penalty(reg, v, scale, factor, step):
    other = Rescaled(reg, scale, torch.tensor(factor, dtype=torch.float64))
    x = other.prox(v, step)
    assert torch.equal(other.free(x), reg.free(x / scale))
    assert float(other.value(x)) == pytest.approx(factor * float(reg.value(x / scale)), rel=1e-12)
    u = (v - x) / step
    assert (other.distance(x, u) <= 1e-11).all()  # what prox removes is a subgradient
    grid = torch.linspace(-40, 40, 4001, dtype=torch.float64).unsqueeze(-1)
    assert (other.each(grid.expand(-1, 4)) >= other.each(x) + u * (grid - x) - 1e-8).all()
    if other.dual_scaling(u) is not None and float(other.dual_scaling(u)) == 1:
        assert other.conjugate(u) + other.each(x) == pytest.approx((u * x).numpy(), abs=1e-9)  # Fenchel's equality
    inner = other.project(v)
    assert torch.allclose(inner / scale, reg.project(v / scale), rtol=1e-12, atol=1e-15)
