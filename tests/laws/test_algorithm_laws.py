"""What every registered method must do, whatever its equations are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from milodo.algorithms import METHODS, Algorithm, Continuous
from milodo.loop import iterate
from milodo.metrics import consensus_error
from milodo.network import Network, StackedNetwork, StackedObserver
from milodo.problems import Lasso, LeastSquares, Problem, optimum
from milodo.topology import Topology
from milodo.tree import leaves, tree_map

ROUNDING = 1e-12
"""Some ten steps on numbers of size one, the same arithmetic in another order."""


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Well conditioned: 120 samples of 8 unknowns."""
    return Lasso(6, 8, 20, 0.1).sample([0, 1])


@pytest.fixture
def net() -> StackedNetwork:
    return StackedNetwork("ring(6)")


def start(problem: Problem, *extra: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*extra, *problem.batch, problem.n, problem.d, dtype=torch.float64, generator=generator).to(problem.dtype)


@torch.no_grad()
def run(method: Algorithm, problem: Problem, net: Network, steps: int, x0: torch.Tensor | None = None):
    return next(itertools.islice(iterate(method, problem, net, x0=x0), steps, None))


def close(a, b) -> None:
    """Two states, leaf by leaf."""
    assert leaves(a).keys() == leaves(b).keys()
    for (field, one), other in zip(leaves(a).items(), leaves(b).values(), strict=True):
        if isinstance(one, str):
            assert one == other, field
            continue
        torch.testing.assert_close(one, other, rtol=ROUNDING, atol=ROUNDING, msg=lambda text, field=field: f"{field}: {text}")


def tensors(state) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(state).values() if isinstance(leaf, torch.Tensor)]


def test_information_travels_one_hop_per_round(name, build):
    """Change the data of node 0 on a line: what differs after k steps lies within rounds · k hops, and the front never rests."""
    n = 20
    problem, other = Lasso(n, 3, 8, 0.01).sample([0]), Lasso(n, 3, 8, 0.01).sample([1])
    A = problem.A.clone()
    A[:, 0] = other.A[:, 0]
    changed = type(problem)(A, problem.b, problem.reg)
    method, net, x0 = build(name, problem), StackedNetwork(f"path({n})"), start(problem)
    fronts = []
    for k in range(1, 4):  # after many more steps the foremost difference is too small for fp64
        states = (run(method, p, net, k, x0) for p in (problem, changed))
        differs = torch.stack([_held((a != b).any(-1)[0], net) for a, b in zip(*map(tensors, states), strict=True)]).any(0)
        assert not differs[method.rounds_on(net) * k + 1 :].any()
        fronts.append(int(differs.nonzero().max()))
    # How far the first step sees depends on whether a method computes before it talks; every later one adds `rounds` hops.
    if method.rounds is None:  # a sum over the tree reaches everybody in the first step
        assert fronts[0] == n - 1
    else:
        assert fronts[-1] < n - 1 and set(np.diff(fronts)) == {method.rounds}


def _held(rows: torch.Tensor, net: Network) -> torch.Tensor:
    """At which nodes something is true that is said of nodes, or of arcs, which the node holds that they leave."""
    if len(rows) == net.n:
        return rows
    return torch.zeros(net.n, dtype=torch.bool).index_put((torch.tensor([i for i, _ in net.arcs])[rows],), torch.tensor(True))


def test_relabelling_nodes_relabels_the_trajectory(name, build, problem):
    net = StackedNetwork("erdos_renyi(6,0.5,seed=1)")
    order = (3, 0, 5, 1, 4, 2)  # node i is called order[i]
    back = [order.index(i) for i in range(6)]
    method, x0 = build(name, problem), start(problem)
    state = run(method, problem, net, 10, x0)
    renamed = StackedNetwork(Topology.from_edges((order[i], order[j]) for i, j in net.topology.edges))
    arcs = [net.arcs.index((back[i], back[j])) for i, j in renamed.arcs]
    moved = run(method, problem.at(back), renamed, 10, x0[..., back, :])
    close(moved, tree_map(lambda leaf: leaf[..., back if leaf.shape[-2] == net.n else arcs, :], state))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.exact])
def test_exact_methods_reach_the_optimum_and_stay(name, build, problem, net):
    best = optimum(problem).x.unsqueeze(-2)
    distances = [(state.x - best).norm(dim=-1).max().item() for state in _states(build(name, problem), problem, net, 1300)]
    # The certificate is 1e-15 in value; x itself is determined to about the rounding of a gradient, far below 1e-10.
    assert max(distances[1000:]) < 1e-10


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.exact])
def test_inexact_methods_stall_away_from_the_optimum_and_from_agreement(name, build, problem, net):
    best = optimum(problem).x.unsqueeze(-2)
    early, late = (run(build(name, problem), problem, net, k) for k in (1000, 2000))
    assert (late.x - best).norm(dim=-1).max() > 1e-3
    assert (consensus_error(late.x, StackedObserver()) > 1e-3).all()
    close(early, late)


@torch.no_grad()
def _states(method, problem, net, steps):
    yield from itertools.islice(iterate(method, problem, net), steps)


def test_counted_rounds_are_declared_rounds(name, build, problem, net):
    choices = METHODS[name].space["K"].values if "K" in METHODS[name].space else (None,)
    for K in choices:
        method = build(name, problem) if K is None else build(name, problem, K=K)
        states = iterate(method, problem, net)
        before = net.traffic.snapshot()
        next(states)
        assert (net.traffic - before).rounds == 0  # a start is local
        for k in range(1, 4):
            next(states)
            assert (net.traffic - before).rounds == k * method.rounds_on(net)
        floats, most = (net.traffic - before).floats, 3 * method.floats_on(net, problem.d)
        assert floats == most if method.steady else 0 < floats <= most


def test_counted_gradients_are_declared_gradients(name, build, net):
    """And so are passes over the data: a gradient is a look at x and one product back, and nothing else asks for another."""
    problem, looked, pulled = Lasso(6, 8, 20, 0.1).sample([0, 1]), [], []
    predict, pull_back = problem.predict, problem.pull_back
    problem.predict = lambda x: looked.append(x) or predict(x)
    problem.pull_back = lambda v: pulled.append(v) or pull_back(v)
    method = build(name, problem)
    states = iterate(method, problem, net)
    next(states)
    first = len(looked), len(pulled)  # of the start
    for k in range(1, 4):
        next(states)
        assert (len(looked) - first[0], len(pulled) - first[1]) == (k * method.gradients, k * method.gradients)


class Plain(LeastSquares):
    """Sees x itself, as a problem does that is nothing but a function."""

    look, value_from, value_and_grad_from = Problem.look, Problem.value_from, Problem.value_and_grad_from

    def value(self, x):
        return (self.predict(x) - self.b).square().mean(-1) / 2

    def hessian_from(self, u):
        return super().hessian_from(self.predict(u))


def test_what_a_problem_sees_of_x_is_its_own_affair(name, build, problem, net):
    method, plain = build(name, problem), Plain(problem.A, problem.b, problem.reg)
    for steps in (1, 3, 10):
        seen, whole = (run(method, each, net, steps, start(problem)).x for each in (problem, plain))
        torch.testing.assert_close(seen, whole, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_and_the_shape_of_the_state_are_kept(name, build, dtype):
    problem = Lasso(6, 8, 20, 0.1).sample([0, 1], dtype=dtype)
    method, seen = build(name, problem), problem.look(problem.zeros()).shape
    for state in itertools.islice(iterate(method, problem, StackedNetwork("ring(6)", dtype=dtype)), 4):
        assert type(state) is method.State and state._fields[0] == "x"
        widths = (8, 1, 8 * 9 // 2, seen[-1])  # a vector, a number, half a matrix, a look
        rows = (6, 12)  # of nodes, or of arcs where a method remembers what was said
        assert all(leaf.dtype == dtype and leaf.shape[0] == 2 and leaf.shape[-2] in rows for leaf in tensors(state))
        assert all(leaf.ndim == 3 and leaf.shape[-1] in widths for leaf in tensors(state))


def test_a_batch_of_instances_is_each_alone(name, build, problem, net):
    method, x0 = build(name, problem), start(problem)
    together = run(method, problem, net, 10, x0)
    for k in range(2):
        alone = type(problem)(problem.A[k], problem.b[k], problem.reg)
        close(tree_map(lambda leaf, k=k: leaf[k], together), run(method, alone, net, 10, x0[k]))


def test_a_grid_of_parameters_is_each_alone(name, build, problem, net):
    base, scales = build(name, problem), torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)
    searched = [key for key, kind in METHODS[name].space.items() if isinstance(kind, Continuous)]
    grid = build(name, problem, **{key: getattr(base, key) * scales.reshape(3, 1, 1, 1) for key in searched})
    x0 = start(problem, 3)
    together = run(grid, problem, net, 10, x0)
    for k, scale in enumerate(scales.tolist()):
        alone = build(name, problem, **{key: getattr(base, key) * scale for key in searched})
        close(tree_map(lambda leaf, k=k: leaf[k], together), run(alone, problem, net, 10, x0[k]))


def test_a_step_leaves_what_it_was_given_alone(name, build, problem, net):
    method = build(name, problem)
    for state in itertools.islice(iterate(method, problem, net, x0=start(problem)), 3):
        before, versions = [leaf.clone() for leaf in tensors(state)], [leaf._version for leaf in tensors(state)]
        method.step(state, problem, net)
        assert all(torch.equal(leaf, copy) for leaf, copy in zip(tensors(state), before, strict=True))
        assert [leaf._version for leaf in tensors(state)] == versions  # nor written and written back


def test_a_step_depends_on_its_arguments_alone(name, build, problem, net):
    method, x0 = build(name, problem), start(problem)
    first = run(method, problem, net, 5, x0)
    run(method, problem, net, 3, 2 * x0)
    assert all(torch.equal(a, b) for a, b in zip(tensors(first), tensors(run(method, problem, net, 5, x0)), strict=True))


def test_three_steps_are_differentiable(name, build, problem, net):
    """In the start and in every parameter that is not a whole number."""
    base = build(name, problem)
    searched = [key for key, kind in METHODS[name].space.items() if isinstance(kind, Continuous)]

    def x3(x0, *parameters):
        method = build(name, problem, **dict(zip(searched, parameters, strict=True)))
        return next(itertools.islice(iterate(method, problem, net, x0=x0), 3, None)).x

    x0 = start(problem).requires_grad_()
    parameters = [torch.tensor(getattr(base, key), dtype=torch.float64, requires_grad=True) for key in searched]
    assert gradcheck(x3, (x0, *parameters), fast_mode=True)
    grads = torch.autograd.grad(x3(x0, *parameters).square().sum(), (x0, *parameters))
    assert all(grad.isfinite().all() and grad.any() for grad in grads)


def test_one_node_is_enough(name, build):
    """Alone, every method is a proximal gradient method and finds the optimum of its own data."""
    problem = Lasso(1, 4, 20, 0.1).sample([0])
    best = optimum(problem).x.unsqueeze(-2)
    last = run(build(name, problem), problem, StackedNetwork("ring(1)"), 2000)
    assert (last.x - best).norm() < 1e-10


def test_the_part_of_a_node_is_the_method_itself(name, build, problem):
    assert build(name, problem).at([0]) == build(name, problem)
