"""Numerics of one machine: what they return is a minimum, whatever they are given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from milodo.problems import L1, Box, ElasticNet, NonNegative, Zero
from milodo.solvers.fista import accelerated, fista, inner_product, momentum
from milodo.solvers.line_search import LENGTHS, WHOLE, best_length
from milodo.solvers.prox_newton import damped_model_minimum, model_minimum, shortest_solution
from milodo.solvers.triangles import last_column, pack, packed_size, unpack

REGULARIZERS = [Zero(), L1(0.3), ElasticNet(0.2, 0.5), Box(-0.1, 0.2), NonNegative(0.1)]


def quadratic(d: int, rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """H ⪰ 0 [3, d, d] and g [3, d]."""
    rng = np.random.default_rng(seed)
    A = torch.from_numpy(rng.standard_normal((3, rows, d)))
    return A.mT @ A / rows, torch.from_numpy(rng.standard_normal((3, d)))


@given(st.integers(1, 7), st.integers(0, 100))
def test_a_triangle_is_all_there_is_of_a_symmetric_matrix(d, seed):
    H = torch.from_numpy(np.random.default_rng(seed).standard_normal((2, d, d)))
    H = H + H.mT
    triangle = pack(H)
    assert triangle.shape == (2, packed_size(d)) and torch.equal(unpack(triangle, d), H)
    assert torch.equal(last_column(triangle, d), H[..., -1])
    leaf = triangle.clone().requires_grad_()
    unpack(leaf, d).sum().backward()  # every entry beside the diagonal stands there twice
    assert torch.equal(unpack(leaf.grad, d), (2 - torch.eye(d)).double().expand(2, d, d))  # type: ignore[arg-type]


@pytest.mark.parametrize("reg", REGULARIZERS, ids=str)
@pytest.mark.parametrize("apart", [0, 10])
def test_accelerated_steps_end_where_no_subgradient_is_left(reg, apart):
    """Also where each of several rows restarts at a time of its own; r at a step of 1/L."""
    H, g = quadratic(6, 12)
    L = torch.linalg.eigvalsh(H)[:, -1:]
    mu = torch.linalg.eigvalsh(H)[:, :1]

    def gradient(x: torch.Tensor) -> torch.Tensor:
        return (H @ x.unsqueeze(-1)).squeeze(-1) + g

    start = reg.project(torch.ones_like(g))
    for x in (
        fista(start, gradient, reg.prox, 1 / L, 3000, apart=apart),
        accelerated(start, gradient, reg.prox, 1 / L, L / mu, 3000),
    ):
        assert float(reg.distance(x, -gradient(x)).max()) < 1e-12


def test_restarts_need_fewer_steps_than_a_momentum_that_only_grows():
    H, g = quadratic(10, 40)
    H = H * torch.logspace(-2, 0, 10).double() * torch.logspace(-2, 0, 10).double().unsqueeze(-1)
    L = torch.linalg.eigvalsh(H)[:, -1:]

    def gradient(x: torch.Tensor) -> torch.Tensor:
        return (H @ x.unsqueeze(-1)).squeeze(-1) + g

    without = fista(torch.zeros_like(g), gradient, Zero().prox, 1 / L, 4000, inner=lambda a, b: -inner_product(a, a))
    restarted = fista(torch.zeros_like(g), gradient, Zero().prox, 1 / L, 4000)
    assert bool((gradient(restarted).norm(dim=-1) < 1e-3 * gradient(without).norm(dim=-1)).all())


def test_the_first_step_has_no_momentum_and_later_ones_approach_one():
    t = torch.ones(1, dtype=torch.float64)
    found = []
    for _ in range(1000):
        beta, t = momentum(t)
        found.append(float(beta))
    assert found[0] == 0 and found == sorted(found) and 0.99 < found[-1] < 1


@pytest.mark.parametrize("reg", REGULARIZERS[:3], ids=str)
@pytest.mark.parametrize("rows", [12, 3])
def test_both_ways_to_a_models_minimum_lead_to_the_same_value(reg, rows):
    """A search over signs and FISTA share no line; with fewer rows than unknowns minima are many, and their value is one."""
    H, g = quadratic(6, rows)
    g = (H @ g.unsqueeze(-1)).squeeze(-1)  # so that the model is bounded below
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((3, 6)))
    by_fista = damped_model_minimum(H, g, x, reg.prox, torch.zeros(3, 1, dtype=torch.float64))

    def value(z: torch.Tensor, k: int) -> float:
        way = z - x[k]
        return float(g[k] @ way + way @ H[k] @ way / 2 + reg.value(z))

    for k in range(3):
        by_signs = model_minimum(H[k], g[k], x[k], reg)
        assert value(by_signs, k) == pytest.approx(value(by_fista[k], k), rel=1e-9, abs=1e-9)


def test_of_all_lengths_the_best_is_taken_and_a_whole_step_where_rounding_hides_it():
    values = torch.linspace(2.0, 1.0, len(LENGTHS)).double()
    assert int(best_length(values)) == len(LENGTHS) - 1
    values[WHOLE] = 0.5
    assert int(best_length(values)) == WHOLE
    flat = torch.ones(len(LENGTHS), 2, dtype=torch.float64)
    flat[WHOLE, 0], flat[WHOLE, 1] = 1 + 1e-15, 1 + 1e-12
    assert best_length(flat).tolist() == [WHOLE, 0]


def test_a_singular_system_has_the_shortest_of_its_solutions():
    H, g = quadratic(5, 2)
    right = H[0] @ g[0]
    found = shortest_solution(H[0], right)
    torch.testing.assert_close(H[0] @ found, right)
    assert float(found.norm()) == pytest.approx(float((torch.linalg.pinv(H[0]) @ right).norm()))
