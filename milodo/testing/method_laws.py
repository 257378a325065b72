"""What every method must do, whatever its equations are."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.autograd import gradcheck

from milodo.algorithms import Algorithm, Choice, Continuous
from milodo.loop import iterate
from milodo.metrics import consensus_error
from milodo.network import Network, StackedNetwork, StackedObserver
from milodo.problems import Lasso, LeastSquares, LinearModel, Problem, optimum
from milodo.testing.comparing import close, equal, near, require, run, start, tensors
from milodo.topology import Topology
from milodo.tree import tree_map

Law = Callable[["MethodCase"], None]
LINE = 20
"""Nodes of the line on which news travel."""


@dataclass(frozen=True)
class MethodCase:
    """A method and the parameters with which it converges on a problem, on graphs of at most six neighbours."""

    method: type[Algorithm]
    parameters: Callable[[Problem], Mapping[str, Any]]

    def build(self, problem: Problem, **changes: Any) -> Algorithm:
        return self.method(**{**self.parameters(problem), **changes})

    @property
    def searched(self) -> list[str]:
        """Its parameters that are not whole numbers."""
        return [name for name, kind in self.method.space.items() if isinstance(kind, Continuous)]


def check_method(
    method: type[Algorithm], parameters: Callable[[Problem], Mapping[str, Any]], laws: Iterable[Law] | None = None
) -> None:
    """Runs every law on a method: `parameters(problem)` gives parameters with which it converges on a problem, on graphs of at
    most six neighbours. The first law that does not hold raises an AssertionError, whose note names it."""
    case = MethodCase(method, parameters)
    for law in METHOD_LAWS if laws is None else laws:
        try:
            law(case)
        except Exception as error:
            error.add_note(f"{method.__name__} breaks the law {law.__name__}: {law.__doc__}")
            raise


def small() -> LinearModel:
    """Well conditioned: 120 samples of 8 unknowns at six nodes, two instances."""
    return Lasso(6, 8, 20, 0.1).sample([0, 1])


def ring() -> StackedNetwork:
    return StackedNetwork("ring(6)")


def information_travels_one_hop_per_round(case: MethodCase) -> None:
    """Change the data of node 0 on a line: what differs after k steps lies within rounds · k hops, and the front never rests."""
    method, fronts = fronts_of(case)
    if method.alike:  # a sum over the tree reaches everybody in the first step
        require(fronts[0] == LINE - 1, "a sum over all nodes does not reach all of them")
    else:
        rests = fronts[-1] >= LINE - 1 or min(np.diff(fronts)) < 1
        require(not rests, f"the news of node 0 are at nodes {fronts} after 1, 2 and 3 steps")


def fronts_of(case: MethodCase) -> tuple[Algorithm, list[int]]:
    """The method on a line, and how far the news of other data at node 0 are after 1, 2 and 3 steps: never beyond its rounds.

    How far the first step sees depends on whether a method computes before it talks; every later one adds at most `rounds` hops.
    """
    problem, other = Lasso(LINE, 3, 8, 0.01).sample([0]), Lasso(LINE, 3, 8, 0.01).sample([1])
    A = problem.A.clone()
    A[:, 0] = other.A[:, 0]
    changed = type(problem)(A, problem.b, problem.reg)
    method, net, x0 = case.build(problem), StackedNetwork(f"path({LINE})"), start(problem)
    fronts = []
    for k in range(1, 4):  # after many more steps the foremost difference is too small for fp64
        states = (run(method, p, net, k, x0) for p in (problem, changed))
        differs = torch.stack([_held((a != b).any(-1)[0], net) for a, b in zip(*map(tensors, states), strict=True)]).any(0)
        reach = method.cost(net, 1).rounds * k
        require(not differs[reach + 1 :].any(), f"after {k} steps a node {reach + 1} hops away or farther knows of node 0")
        fronts.append(int(differs.nonzero().max()))
    return method, fronts


def _held(rows: torch.Tensor, net: Network) -> torch.Tensor:
    """At which nodes something is true that is said of nodes, or of arcs, which the node holds that they leave."""
    if len(rows) == net.n:
        return rows
    return torch.zeros(net.n, dtype=torch.bool).index_put((torch.tensor([i for i, _ in net.arcs])[rows],), torch.tensor(True))


def follows_a_relabelling_of_nodes(case: MethodCase) -> None:
    """Relabelling nodes relabels the trajectory."""
    problem, net = small(), StackedNetwork("erdos_renyi(6,0.5,seed=1)")
    order = (3, 0, 5, 1, 4, 2)  # node i is called order[i]
    back = [order.index(i) for i in range(6)]
    method, x0 = case.build(problem), start(problem)
    state = run(method, problem, net, 10, x0)
    renamed = StackedNetwork(Topology.from_edges((order[i], order[j]) for i, j in net.topology.edges))
    arcs = [net.arcs.index((back[i], back[j])) for i, j in renamed.arcs]
    moved = run(method, problem.at(back), renamed, 10, x0[..., back, :])
    close(moved, tree_map(lambda leaf: leaf[..., back if leaf.shape[-2] == net.n else arcs, :], state))


@torch.no_grad()
def ends_where_it_says(case: MethodCase) -> None:
    """An `exact` method reaches the optimum and stays; another one stalls away from the optimum and from agreement."""
    problem, net = small(), ring()
    best, method = optimum(problem).x.unsqueeze(-2), case.build(problem)
    if not method.exact:
        early, late = (run(method, problem, net, k) for k in (1000, 2000))
        require(bool((late.x - best).norm(dim=-1).max() > 1e-3), "it is not declared exact, and reaches the optimum")
        require(bool((consensus_error(late.x, StackedObserver()) > 1e-3).all()), "it is not declared exact, and agrees")
        close(early, late)
        return
    states = itertools.islice(iterate(method, problem, net), 1000, 1300)
    farthest = max((state.x - best).norm(dim=-1).max().item() for state in states)
    # The certificate is 1e-15 in value; x itself is determined to about the rounding of a gradient, far below 1e-10.
    require(farthest < 1e-10, f"it is declared exact, and after 1000 to 1300 steps it is {farthest:.1e} from the optimum")


def counts_its_rounds(case: MethodCase) -> None:
    """Counted rounds are declared rounds, and numbers sent are those declared, or at most those where they vary."""
    problem, net = small(), ring()
    kind = case.method.space.get("K")
    for K in kind.values if isinstance(kind, Choice) else (None,):
        method = case.build(problem) if K is None else case.build(problem, K=K)
        states = iterate(method, problem, net)
        before = net.traffic.snapshot()
        next(states)
        require((net.traffic - before).rounds == 0, "its start sends messages, but a start is local")
        for k in range(1, 4):
            next(states)
            sent, declared = (net.traffic - before).rounds, k * method.cost(net, 1).rounds
            require(sent == declared, f"{k} steps take {sent} rounds, and it declares {declared}")
        floats, most = (net.traffic - before).floats, 3 * method.cost(net, problem.d).numbers
        fits = floats == most if method.steady else 0 < floats <= most
        require(fits, f"three steps send {floats} numbers, and it declares {most}")


def counts_its_gradients(case: MethodCase) -> None:
    """Counted gradients are declared gradients: one is one linear predictor of x and one product back, and nothing needs more."""
    problem = Counting(small())
    method = case.build(problem)
    states = iterate(method, problem, ring())
    next(states)
    start_passes = problem.passes.copy()
    for k in range(1, 4):
        next(states)
        passes, declared = problem.passes - start_passes, k * method.gradients
        there, back = passes["there"], passes["back"]
        said = f"{k} steps pass {there} times forth and {back} times back over the data, and it declares {declared} gradients"
        require((there, back) == (declared, declared), said)


class Counting(LeastSquares):
    """Counts passes over its data, also of copies of itself."""

    def __init__(self, problem: LinearModel) -> None:
        super().__init__(problem.A, problem.b, problem.reg)
        self.passes = Counter[str]()

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        self.passes["there"] += 1
        return super().predict(x)

    def pull_back(self, v: torch.Tensor) -> torch.Tensor:
        self.passes["back"] += 1
        return super().pull_back(v)


class Plain(LeastSquares):
    """Sees x itself, as a problem does that is nothing but a function."""

    look, value_from, value_and_grad_from = Problem.look, Problem.value_from, Problem.value_and_grad_from

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return (self.predict(x) - self.b).square().mean(-1) / 2

    def hessian_from(self, u: torch.Tensor) -> torch.Tensor:
        return super().hessian_from(self.predict(u))


def leaves_the_linear_predictor_to_the_problem(case: MethodCase) -> None:
    """Iterates are the same whether a problem keeps A x of a point, or the point itself."""
    problem = small()
    method, plain = case.build(problem), Plain(problem.A, problem.b, problem.reg)
    for steps in (1, 3, 10):
        seen, whole = (run(method, each, ring(), steps, start(problem)).x for each in (problem, plain))
        near(seen, whole)


def keeps_precision_and_shape(case: MethodCase) -> None:
    """A state has the dtype and the leading axes of the problem, x first, and a row for each node or arc."""
    for dtype in (torch.float32, torch.float64):
        problem = Lasso(6, 8, 20, 0.1).sample([0, 1], dtype=dtype)
        method, seen = case.build(problem), problem.look(problem.zeros()).shape
        for state in itertools.islice(iterate(method, problem, StackedNetwork("ring(6)", dtype=dtype)), 4):
            first = state._fields[0]
            require(type(state) is method.State and first == "x", "its state is not its State, or x is not the first")
            widths = (8, 1, 8 * 9 // 2, seen[-1])  # a vector, a number, half a matrix, a linear predictor
            rows = (6, 12)  # of nodes, or of arcs where a method remembers what was sent
            for leaf in tensors(state):
                fits = leaf.dtype == dtype and leaf.ndim == 3 and leaf.shape[0] == 2
                fits = fits and leaf.shape[-2] in rows and leaf.shape[-1] in widths
                require(fits, f"of a batch of 2 instances with 6 nodes and 8 unknowns, its state is {leaf.dtype} {leaf.shape}")


def treats_each_instance_alone(case: MethodCase) -> None:
    """A batch of instances is each alone."""
    problem, net = small(), ring()
    method, x0 = case.build(problem), start(problem)
    together = run(method, problem, net, 10, x0)
    for k in range(2):
        alone = type(problem)(problem.A[k], problem.b[k], problem.reg)
        close(tree_map(lambda leaf, k=k: leaf[k], together), run(method, alone, net, 10, x0[k]))


def treats_each_candidate_alone(case: MethodCase) -> None:
    """A grid of parameters, as tensors with leading axes, is each alone."""
    problem, net = small(), ring()
    base, scales = case.build(problem), torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)
    grid = case.build(problem, **{key: getattr(base, key) * scales.reshape(3, 1, 1, 1) for key in case.searched})
    x0 = start(problem, 3)
    together = run(grid, problem, net, 10, x0)
    for k, scale in enumerate(scales.tolist()):
        alone = case.build(problem, **{key: getattr(base, key) * scale for key in case.searched})
        close(tree_map(lambda leaf, k=k: leaf[k], together), run(alone, problem, net, 10, x0[k]))


def leaves_its_state_alone(case: MethodCase) -> None:
    """A step writes into nothing that it was given, nor writes and writes back."""
    problem, net = small(), ring()
    method = case.build(problem)
    for state in itertools.islice(iterate(method, problem, net, x0=start(problem)), 3):
        before, versions = [leaf.clone() for leaf in tensors(state)], [leaf._version for leaf in tensors(state)]
        method.step(state, problem, net)
        equal(tensors(state), before, "a step changes the state that it is given")
        require([leaf._version for leaf in tensors(state)] == versions, "a step writes into the state that it is given")


def depends_on_its_arguments_alone(case: MethodCase) -> None:
    """Running a method again gives the same, whatever ran in between."""
    problem, net = small(), ring()
    method, x0 = case.build(problem), start(problem)
    first = run(method, problem, net, 5, x0)
    run(method, problem, net, 3, 2 * x0)
    equal(tensors(first), tensors(run(method, problem, net, 5, x0)), "the same steps give other numbers the second time")


def is_differentiable(case: MethodCase) -> None:
    """Three steps are differentiable in the start and in every parameter that is not a whole number."""
    problem, net = small(), ring()
    base = case.build(problem)

    def x3(x0: torch.Tensor, *parameters: Any) -> torch.Tensor:
        method = case.build(problem, **dict(zip(case.searched, parameters, strict=True)))
        return next(itertools.islice(iterate(method, problem, net, x0=x0), 3, None)).x

    x0 = start(problem).requires_grad_()
    parameters = [torch.tensor(getattr(base, key), dtype=torch.float64, requires_grad=True) for key in case.searched]
    gradcheck(x3, (x0, *parameters), fast_mode=True)
    grads = torch.autograd.grad(x3(x0, *parameters).square().sum(), (x0, *parameters))
    require(all(bool(grad.isfinite().all() and grad.any()) for grad in grads), "a derivative is 0 or not finite")


@torch.no_grad()
def finds_the_optimum_of_one_node(case: MethodCase) -> None:
    """Alone, every method is a proximal gradient method and finds the optimum of its own data."""
    problem = Lasso(1, 4, 20, 0.1).sample([0])
    best = optimum(problem).x.unsqueeze(-2)
    far = float((run(case.build(problem), problem, StackedNetwork("ring(1)"), 2000).x - best).norm())
    require(far < 1e-10, f"a node alone is {far:.1e} from its optimum after 2000 steps")


def is_its_own_part_at_a_node(case: MethodCase) -> None:
    """The part of a node is the method itself."""
    problem = small()
    require(case.build(problem).at([0]) == case.build(problem), "its part at one node is another method")


METHOD_LAWS: tuple[Law, ...] = (
    information_travels_one_hop_per_round, follows_a_relabelling_of_nodes, ends_where_it_says, counts_its_rounds,
    counts_its_gradients, leaves_the_linear_predictor_to_the_problem, keeps_precision_and_shape, treats_each_instance_alone,
    treats_each_candidate_alone, leaves_its_state_alone, depends_on_its_arguments_alone, is_differentiable,
    finds_the_optimum_of_one_node, is_its_own_part_at_a_node,
)  # fmt: skip
