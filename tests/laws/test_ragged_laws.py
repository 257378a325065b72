"""Nodes of any sizes: the same problem as in one tensor filled up with samples of weight 0, in no more memory than the data."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from asked import asked
from sklearn.linear_model import Lasso
from torch.nn.parameter import UninitializedTensorMixin

from milodo.fit import Choice, Task, fit_model, fit_path, pooled_problem, scaling
from milodo.fit.pooled import LOSSES, penalty, total_of
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import optimum, rows
from milodo.problems.ragged import Ragged
from milodo.problems.regularizers import L1, ElasticNet, UnpenalizedIntercept
from milodo.problems.rows import grouped
from milodo.problems.sampled import Sampled

SIZES = (3, 57, 0, 5, 40, 1, 7, 38)
COLUMNS = 4
OBSERVER = StackedObserver()


@pytest.fixture
def small_blocks(monkeypatch):
    """So that few samples already are many: groups, nodes that are alone, and blocks that end in the middle of a node."""
    for name, value in (("BLOCK", 40), ("SPARE", 0), ("FEWEST", 8)):
        monkeypatch.setattr(rows, name, value)


def sites(loss, sizes=SIZES, columns=COLUMNS, seed=0):
    rng = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    features = [3 + torch.linspace(0.1, 10, columns).double() * randn(size, columns) for size in sizes]
    u = [X.sum(1) / 10 - 1 + randn(len(X)) for X in features]
    labels = {"squared": lambda v: v, "logistic": lambda v: (v > 0).double(), "softmax": lambda v: _classes(v)}
    return features, [labels[loss](v) for v in u], [torch.rand(size, dtype=torch.float64, generator=rng) for size in sizes]


def _classes(v):
    return torch.nn.functional.one_hot((v > 0).long() + (v > 1).long(), 3).double()


def in_one_tensor(loss, features, targets, weights, scaled, reg, intercept) -> Sampled:
    """The definition: every node filled up to the longest."""
    n, N, d = len(features), max(map(len, features)), features[0].shape[1]
    A, s = torch.zeros(n, N, d + intercept).double(), torch.zeros(n, N).double()
    b = torch.zeros(n, N, *targets[0].shape[1:]).double()
    for i, (X, y, w) in enumerate(zip(features, targets, weights, strict=True)):
        A[i, : len(X), :d] = (X - scaled.mean[i]) / scaled.scale[i]
        A[i, : len(X), d:] = 1
        b[i, : len(X)] = y - scaled.target[i] if intercept and loss == "squared" else y
        s[i, : len(X)] = n * N * w / scaled.weight[i]
    return LOSSES[loss](A, b, UnpenalizedIntercept(reg, scaled.target.shape[-1]) if intercept else reg, s)


@pytest.fixture(params=[(loss, intercept) for loss in LOSSES for intercept in (True, False)], ids=str)
def both(request, small_blocks) -> tuple[Ragged, Sampled]:
    loss, intercept = request.param
    features, targets, weights = sites(loss)
    total = total_of(StackedNetwork(f"ring({len(SIZES)})"), reliable=True)
    scaled = scaling(features, targets, total, centre=intercept, weights=weights)
    reg = ElasticNet(0.02, 0.01)
    found = pooled_problem(loss, features, targets, scaled, reg, n=len(SIZES), intercept=intercept, weights=weights)
    assert isinstance(found, Ragged)
    assert {len(g.nodes) > 1 for g in found.rows.groups} == {g.large for g in found.rows.groups} == {True, False}
    return found, in_one_tensor(loss, features, targets, weights, scaled, reg, intercept)


def points(problem, *extra, seed=1):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*extra, problem.n, problem.d, dtype=torch.float64, generator=rng)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("extra", [(), (3,), (2, 3)], ids=str)
def test_values_gradients_and_curvatures_are_those_of_one_tensor(both, extra):
    found, whole = both
    x = points(whole, *extra)
    close(found.value(x), whole.value(x))
    close(found.grad(x), whole.grad(x))
    close(found.pull_back(found.loss_slope(found.predict(x))), whole.grad(x))
    close(found.value_from(found.look(x)), whole.value(x))
    for own, other in zip(found.value_and_grad_from(found.look(x)), (whole.value(x), whole.grad(x)), strict=True):
        close(own, other)
    if not extra:
        close(found.hessian_from(found.look(x)), whole.hessian_from(whole.look(x)))


def test_constants_of_the_data_are_those_of_one_tensor(both):
    found, whole = both
    close(found.lipschitz(), whole.lipschitz())
    known, expected = found.half(), whole.half()
    assert known is not None and expected is not None
    for own, other in zip(known, expected, strict=True):
        close(own, other)


def test_a_large_node_with_more_columns_than_samples_knows_its_curvature(small_blocks):
    features, targets, _ = sites("squared", (30, 2), 50)
    scaled = scaling(features, targets, total_of(StackedNetwork("path(2)"), reliable=True), centre=True)
    for intercept in (True, False):
        found = pooled_problem("squared", features, targets, scaled, L1(0.1), n=2, intercept=intercept)
        ones = [torch.ones(len(X)).double() for X in features]
        whole = in_one_tensor("squared", features, targets, ones, scaled, L1(0.1), intercept)
        assert isinstance(found, Ragged) and found.rows.groups[0].large
        close(found.lipschitz(), whole.lipschitz())


def test_certificates_and_intercepts_are_those_of_one_tensor(both):
    found, whole = both
    x = points(whole)[0] / 10
    close(found.empty(OBSERVER), whole.empty(OBSERVER))
    for point in (x, whole.settled(x, OBSERVER)):
        close(found.settled(point, OBSERVER), whole.settled(point, OBSERVER))
        close(found.certificate(point, OBSERVER), whole.certificate(point, OBSERVER))
        close(found.objective(point, OBSERVER), whole.objective(point, OBSERVER))
    best = optimum(found)
    close(best.value, optimum(whole).value)
    certified = found.certificate(found.settled(best.x, OBSERVER), OBSERVER)
    assert certified is not None and 0 <= float(certified) < 1e-9


@pytest.mark.parametrize("nodes", [[1], [6, 4], [0, 2, 5], [7, 3, 1, 0]], ids=str)
def test_some_of_the_nodes_are_the_same_problem_there(both, nodes):
    found, whole = both
    x = points(whole)
    part = found.at(nodes)
    assert part.n == len(nodes)
    close(part.grad(x[nodes]), whole.grad(x)[nodes])
    close(part.lipschitz(), whole.lipschitz()[nodes])


def test_other_weights_of_the_same_samples_are_instances(both):
    found, whole = both
    rng = torch.Generator().manual_seed(2)
    own = [torch.rand(size, 2, dtype=torch.float64, generator=rng) for size in SIZES]
    some, other = (p.reweighed(p.placed(own).movedim(-1, 0) * p.weights) for p in both)
    assert some.batch == other.batch == (2,)
    x = points(whole, 2)
    one = whole.everywhere(x[0, 0])
    with torch.no_grad():
        for problem, plain in ((found, whole), (found.reweighed(some.weights[0]), whole.reweighed(other.weights[0]))):
            for point in (one, one, whole.everywhere(x[1, 0]), one):  # what is remembered is that of this point and these weights
                close(problem.grad(point), plain.grad(point))
                close(problem.pull_back(problem.loss_slope(problem.predict(point))), plain.grad(point))
    found.lipschitz()  # of the first weights, which the others must not take over
    close(some.lipschitz(), other.lipschitz())
    close(some.value(x), other.value(x))
    close(some.hessian_from(some.look(x)), other.hessian_from(other.look(x)))
    close(some.under(L1(0.3)).certificate(x[:, 0], OBSERVER), other.under(L1(0.3)).certificate(x[:, 0], OBSERVER))


def test_gradients_flow_through_blocks(both):
    found, whole = both
    x, y = points(whole).requires_grad_(), points(whole).requires_grad_()
    (first,) = torch.autograd.grad(found.grad(x).square().sum(), x)
    (second,) = torch.autograd.grad(whole.grad(y).square().sum(), y)
    close(first, second)


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_a_path_of_penalties_is_the_same_in_blocks(loss, monkeypatch):
    features, targets, weights = sites(loss, (50, 9, 20, 21, 3))

    def chosen():
        net = StackedNetwork("ring(5)")
        choice = Choice(n_alphas=4, eps=0.05, folds=3)
        task = Task(target="y", loss=loss)
        fit, path = fit_path(asked(features, targets, task, net, OBSERVER, columns=tuple("abcd"), weights=weights), choice)
        return np.array(fit.coefficients), np.array(path.losses), net.traffic.bytes

    together = chosen()
    for name, value in (("BLOCK", 40), ("SPARE", 0), ("FEWEST", 8)):
        monkeypatch.setattr(rows, name, value)
    blocks = chosen()
    assert blocks[0] == pytest.approx(together[0], rel=1e-6, abs=1e-7) and blocks[1] == pytest.approx(together[1], rel=1e-6)
    assert blocks[2] == together[2]


UNEVEN = {
    "many small sites beside a large one": [10] * 49 + [30_000],
    "sizes of every magnitude": [1 << k for k in range(15)],
    "two sites": [1, 40_000],
    "one row at each of a thousand": [1] * 999 + [20_000],
    "growing": list(range(1, 2000, 13)),
}


@pytest.mark.parametrize("sizes", UNEVEN.values(), ids=UNEVEN)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_memory_is_at_most_twice_the_data_whatever_the_sizes(loss, sizes):
    features, targets, _ = sites(loss, sizes, 20)
    data = sum(part.nbytes for part in (*features, *targets))
    total = total_of(StackedNetwork(f"star({len(sizes)})"), reliable=True)
    scaled = scaling(features, targets, total, centre=True)
    before = held()
    problem = pooled_problem(loss, features, targets, scaled, penalty(0.1, scaled.scale[0]), n=len(sizes), intercept=True)
    problem.lipschitz(), problem.grad(problem.start())  # what is remembered counts
    assert held() - before <= 2 * data


def held() -> int:
    """Bytes of all tensors there are, those that share their memory counted once."""
    gc.collect()
    stores = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in gc.get_objects()
        if issubclass(type(t), torch.Tensor) and not issubclass(type(t), UninitializedTensorMixin)  # lazy modules have no memory
    }
    return sum(stores.values())


@pytest.mark.parametrize("sizes", UNEVEN.values(), ids=UNEVEN)
def test_small_nodes_lie_together_and_large_ones_are_not_copied(sizes):
    groups = grouped(sizes, 21)
    assert sorted(i for g in groups for i in g.nodes) == list(range(len(sizes)))
    assert [g.start for g in groups] == [0, *[g.stop for g in groups[:-1]]]
    assert all(g.size >= sizes[i] for g in groups for i in g.nodes)
    assert all(len(g.nodes) == 1 for g in groups if g.large) and all(g.size * 21 <= rows.BLOCK for g in groups if not g.large)
    assert len(groups) <= 25  # a pass takes as many steps, beside its blocks
    assert groups[-1].stop * 21 <= rows.ALIKE * sum(sizes) * 21 + rows.SPARE


def test_sites_of_any_sizes_have_scikit_learns_answer():
    features, targets, _ = sites("squared", UNEVEN["many small sites beside a large one"], 20)
    X, y = torch.cat(features).numpy(), torch.cat(targets).numpy()
    truth = Lasso(alpha=0.05, tol=1e-12).fit(X, y)
    net = StackedNetwork("ring(50)")
    fit = fit_model(
        asked(features, targets, Task(target="y", l1=0.05, tolerance=1e-10), net, OBSERVER, columns=tuple(map(str, range(20))))
    )
    assert np.array(fit.coefficients) == pytest.approx(truth.coef_, abs=1e-8) and fit.gap < 1e-10
