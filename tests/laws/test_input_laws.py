"""What MiLoDo's networks see: raw numbers as in the paper, or numbers relative to each node's own problem."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch

from milodo.algorithms import LEPDO
from milodo.errors import InvalidInput
from milodo.learned import Activations, Bounded, MiLoDo, special_initialisation
from milodo.loop import iterate
from milodo.network import StackedNetwork
from milodo.problems import L1, CustomProblem, Lasso, LeastSquares, optimum

sys.path.insert(0, str(Path(__file__).parent.parent))
from disturb import disturbed

WIDE = Activations(Bounded(1e-3, 5.0), Bounded(1e-3, 20.0), Bounded(1e-3, 0.4))


def made(graph, inputs, *, gamma=1.0, disturb=0.05):
    torch.manual_seed(0)
    return disturbed(MiLoDo(graph, hidden=6, activations=WIDE, inputs=inputs).double(), gamma, disturb)


def xs(algorithm, problem, net, count):
    with torch.no_grad():
        return [state.x for state in itertools.islice(iterate(algorithm, problem, net), count)]


@pytest.mark.parametrize("graph", ["ring(6)", "star(6)"])
def test_relative_inputs_give_the_same_iterates_in_any_units(graph):
    net, problem = StackedNetwork(graph), Lasso(6, 12, 4, 0.1).sample([0, 1])
    a, c = 37.0, 0.003  # of the columns, of the targets
    other = LeastSquares(a * problem.A, c * problem.b, L1(0.1 * a * c))
    optimizer = made(graph, "relative")
    for x, same in zip(xs(optimizer, problem, net, 30), xs(optimizer, other, net, 30), strict=True):
        torch.testing.assert_close(same * a / c, x, rtol=1e-9, atol=1e-9)


def test_raw_inputs_do_not():
    net, problem = StackedNetwork("ring(6)"), Lasso(6, 12, 4, 0.1).sample([0])
    other = LeastSquares(3 * problem.A, problem.b, L1(0.3))
    optimizer = made("ring(6)", "raw", gamma=0.02)
    assert not torch.allclose(3 * xs(optimizer, other, net, 10)[-1], xs(optimizer, problem, net, 10)[-1], rtol=1e-3)


@pytest.mark.parametrize("inputs", ["raw", "relative", "scaled"])
def test_whatever_its_networks_see_its_duals_cancel_and_it_converges(inputs):
    net, problem = StackedNetwork("ring(6)"), Lasso(6, 8, 20, 0.1).sample([0])
    best = optimum(problem)
    optimizer = made("ring(6)", inputs, gamma=1.0 if inputs == "relative" else 0.15)
    with torch.no_grad():
        for state in itertools.islice(iterate(optimizer, problem, net), 1500):
            assert float(state.y.sum(-2).abs().max()) < 1e-10
    torch.testing.assert_close(state.x, best.x.unsqueeze(-2).expand_as(state.x), rtol=0, atol=1e-7)


@pytest.mark.parametrize("inputs", ["raw", "relative"])
def test_special_initialisation_is_the_rule_with_those_constants(inputs):
    """In units of its own where inputs are relative: with the same curvature at every node γ/L is that method's step size."""
    net, drawn = StackedNetwork("ring(6)"), Lasso(6, 8, 20, 0.1).sample([0])
    problem = LeastSquares(drawn.A[:, :1].expand_as(drawn.A).contiguous(), drawn.b, drawn.reg)
    gamma, c_s, c_u = 0.3 / float(problem.lipschitz().max()), 0.4, 1.7
    bounds = Activations(Bounded(1e-4, 50.0), Bounded(1e-4, 50.0), Bounded(1e-4, 1.0))
    optimizer = MiLoDo("ring(6)", hidden=3, activations=bounds, inputs=inputs).double()
    special_initialisation(optimizer, net, 0.3 if inputs == "relative" else gamma, c_s, c_u)
    constant = LEPDO(gamma=gamma, alpha=1.0, c_s=c_s, c_u=c_u)
    for x, same in zip(xs(constant, problem, net, 40), xs(optimizer, problem, net, 40), strict=True):
        torch.testing.assert_close(same, x, rtol=1e-10, atol=1e-10)


def test_a_problem_without_curvature_is_refused_by_relative_inputs_in_a_sentence():
    data = {"c": torch.ones(6, 3, dtype=torch.float64)}
    problem = CustomProblem(lambda x, own: ((x - own["c"]) ** 4).sum(), data, 3, L1(0.1))
    net = StackedNetwork("ring(6)")
    with pytest.raises(InvalidInput, match="measures by the curvature"):
        next(iterate(made("ring(6)", "relative"), problem, net))
    assert torch.isfinite(xs(made("ring(6)", "scaled", gamma=0.05), problem, net, 20)[-1]).all()
