"""Passes over the rows of large data: as few as there have to be, and the same sums on any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from asked import asked

from milodo.fit import Task, fit_model, pooled_problem, scaling
from milodo.fit.pooled import LOSSES, total_of
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import rows as rows_module
from milodo.problems.blocks import spread
from milodo.problems.moments import moments_of
from milodo.problems.ragged import Ragged
from milodo.problems.regularizers import L1, ElasticNet, Zero
from milodo.problems.rows import Rows
from milodo.sklearn import DecentralizedLasso, DecentralizedLinearRegression, DecentralizedLogisticRegression
from milodo.status import Status

SIZES, COLUMNS = (900, 1, 1500, 30), 5
OBSERVER = StackedObserver()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for name, value in (("BLOCK", 1000), ("SPARE", 0), ("FEWEST", 8)):
        monkeypatch.setattr(rows_module, name, value)


@pytest.fixture
def passes(monkeypatch):
    """Counts those over the rows of a problem."""
    made = []
    over = Rows.over

    def counted(self, work, groups=None):
        made.append(sum(g.large for g in (self.groups if groups is None else groups)) > 0)
        return over(self, work, groups)

    monkeypatch.setattr(Rows, "over", counted)
    return made


def sites(loss, sizes=SIZES, shift=3.0, seed=0):
    rng = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    features = [shift + torch.linspace(0.1, 10, COLUMNS).double() * randn(size, COLUMNS) for size in sizes]
    u = [(X - shift).sum(1) / 10 + randn(len(X)) for X in features]
    labels = {
        "squared": lambda v: v + 7,
        "logistic": lambda v: (v > 0).double(),
        "softmax": lambda v: torch.nn.functional.one_hot((v > 0).long() + (v > 1).long(), 3).double(),
    }
    return features, [labels[loss](v) for v in u], [torch.rand(size, dtype=torch.float64, generator=rng) for size in sizes]


def problem_of(loss, intercept=True, reg=None, **how) -> Ragged:
    features, targets, weights = sites(loss, **how)
    total = total_of(StackedNetwork(f"ring({len(features)})"), reliable=True)
    scaled = scaling(features, targets, total, centre=intercept, weights=weights)
    reg = reg or ElasticNet(0.02, 0.01)
    found = pooled_problem(loss, features, targets, scaled, reg, n=len(features), intercept=intercept, weights=weights)
    assert isinstance(found, Ragged) and set(found.origins) == {0, 2}
    return found


@pytest.mark.parametrize("intercept", [True, False])
def test_least_squares_take_one_pass_for_the_moments_and_one_for_the_certificate(passes, intercept):
    features, targets, _ = sites("squared")
    X, y = torch.cat(features).numpy(), torch.cat(targets).numpy()
    names = np.repeat(range(len(SIZES)), SIZES)
    for model in (
        DecentralizedLasso(0.05, fit_intercept=intercept),
        DecentralizedLinearRegression(fit_intercept=intercept),
    ):
        passes.clear()
        model.fit(X, y, sites=names)
        assert sum(passes) == 1  # the moments are no pass of the problem


def test_logistic_regression_takes_two_passes_an_iteration(passes):
    features, targets, _ = sites("logistic")
    X, y = torch.cat(features).numpy(), torch.cat(targets).numpy()
    model = DecentralizedLogisticRegression().fit(X, y, sites=np.repeat(range(len(SIZES)), SIZES))
    assert model.fit_.status is Status.CONVERGED
    # The first Hessian and the first gradient are known from the moments, and there is no Hessian at the last point.
    assert sum(passes) <= 2 * model.n_iter_ - 1


@pytest.mark.parametrize("loss", LOSSES)
def test_sums_are_the_same_on_any_number_of_threads(loss):
    def found():
        problem = problem_of(loss)
        x = torch.linspace(-1, 1, problem.d, dtype=torch.float64)
        with torch.no_grad():
            one, apart = problem.everywhere(x), torch.outer(torch.arange(problem.n).double(), x)
            return [
                *(problem.value(x) for x in (one, apart)), *(problem.grad(x) for x in (one, apart)),
                problem.hessian_from(problem.look(one)), problem.lipschitz(), problem.certificate(x, OBSERVER),
            ]  # fmt: skip

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = found()
        torch.set_num_threads(3)
        for own, other in zip(alone, found(), strict=True):
            assert torch.equal(own, other)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_threads_that_begin_later_may_use_as_many_as_before():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with torch.no_grad():
            assert set(spread(lambda _: torch.get_num_threads(), range(9))) == {1}
        with torch.enable_grad():
            assert set(spread(lambda _: torch.get_num_threads(), range(9))) == {2}
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


def test_what_goes_wrong_on_a_thread_is_heard_of():
    before = torch.get_num_threads()

    def work(k):
        if k == 5:
            raise ArithmeticError("five")
        return k

    try:
        torch.set_num_threads(2)
        with torch.no_grad(), pytest.raises(ArithmeticError, match="five"):
            list(spread(work, range(9)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("drift", [0.0, 1e3, 1e9], ids=lambda d: f"drift {d:g}")
@pytest.mark.parametrize("weighed", [True, False])
def test_products_are_those_around_the_mean_wherever_rows_begin(drift, weighed):
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((400, 4)) + 5
    Z[:50] += drift  # the first block is far from all others
    Z[:, 2] = 1 / 3  # a constant column
    s = rng.random(400)
    s[:50] = 0 if drift > 1e6 else s[:50]
    weights = torch.from_numpy(s) if weighed else None
    used = s if weighed else np.ones(400)
    found = moments_of(torch.from_numpy(Z[:, :3]), torch.from_numpy(Z[:, 3]), weights, 50)
    Z, used = Z.astype(np.longdouble), used.astype(np.longdouble)
    mean = used @ Z / used.sum()
    products = (Z - mean).T @ (used[:, None] * (Z - mean))
    assert found.mean.numpy() == pytest.approx(mean.astype(float), rel=1e-13)
    size = np.sqrt(np.outer(products.diagonal(), products.diagonal())).astype(float)
    assert bool((np.abs(found.products.numpy() - products) <= 1e-12 * size + 1e-20).all())


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("reg", [L1(0.05), ElasticNet(0.02, 0.01), Zero()], ids=repr)
@pytest.mark.parametrize("intercept", [True, False])
def test_what_is_known_at_a_point_is_what_a_pass_would_find(loss, reg, intercept):
    """Beside a point that was seen, and where no feature is used; the truth is the same problem in one tensor."""
    problem = problem_of(loss, intercept, reg)
    whole = problem.pooled()  # all rows at one node
    torch.manual_seed(0)
    x = torch.randn(problem.d, dtype=torch.float64) / 10
    beside, nothing, only, near = x.clone(), torch.zeros_like(x), torch.zeros_like(x), x.clone()
    beside[-1], only[-1] = 0.7, -0.3
    near[-1] += 5e-10
    with torch.no_grad():
        for point in (nothing, only, x, near, beside, x, 2 * x):
            once = whole.everywhere(point)
            everywhere = problem.everywhere(point)
            hessian = problem.hessian_from(problem.look(everywhere)).mean(0)
            torch.testing.assert_close(hessian, whole.hessian_from(whole.look(once))[0], rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(problem.grad(everywhere).mean(0), whole.grad(once)[0], rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(problem.value(everywhere).mean(), whole.value(once)[0], rtol=1e-11, atol=1e-12)
            own, true = problem.certificate(point, OBSERVER), whole.certificate(point, OBSERVER)
            assert (own is None) == (true is None)
            if own is not None and true is not None:
                torch.testing.assert_close(own, true, rtol=1e-9, atol=1e-12)
        lengths = torch.tensor([0.0, 1.0, 0.5, 0.1], dtype=torch.float64)
        on_the_way = whole.between(x, beside, lengths)
        torch.testing.assert_close(problem.between(x, beside, lengths).mean(-1), on_the_way.squeeze(-1), rtol=1e-12, atol=0)


def test_rows_that_lie_apart_are_the_same_rows():
    features, targets, _ = sites("logistic", (3000,))
    apart = [features[0][k::3] for k in range(3)]
    close = [X.clone() for X in apart]
    labels = [targets[0][k::3] for k in range(3)]
    fits = [
        fit_model(
            asked(
                X, labels, Task(target="y", loss="logistic", l2=0.1), StackedNetwork("ring(3)"), OBSERVER, columns=tuple("abcde")
            )
        )
        for X in (apart, close)
    ]
    assert fits[0].coefficients.tolist() == fits[1].coefficients.tolist()


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_nothing_that_was_found_under_other_weights_is_remembered(loss):
    problem = problem_of(loss)
    assert problem.weights is not None
    x = torch.linspace(-1, 1, problem.d, dtype=torch.float64)
    with torch.no_grad():
        for point in (x, torch.zeros_like(x)):
            found = [_all_of(problem, point), _all_of(problem.reweighed(3 * problem.weights), point)]
            for once, thrice in zip(*found, strict=True):
                torch.testing.assert_close(thrice, 3 * once, rtol=1e-12, atol=1e-14)


def _all_of(problem, x):
    everywhere = problem.everywhere(x)
    return (
        problem.hessian_from(problem.look(everywhere)), problem.lipschitz(), problem.grad(everywhere), problem.value(everywhere),
    )  # fmt: skip
