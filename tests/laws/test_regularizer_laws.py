"""prox, subdifferential, conjugate and pieces of every registered regularizer, each against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize_scalar

from milodo.errors import InvalidInput
from milodo.problems import L1, Box, ElasticNet, NonNegative, Regularizer

VECTORS = arrays(float, 5, elements=st.floats(-5, 5)).map(torch.from_numpy)
STEPS = st.floats(0.01, 10)
ROUNDING = 1e-12
"""Numbers up to 5, divided by steps as small as 0.01: 1e-16 grows to less than 1e-12."""
KINKS = torch.tensor([0.0, -0.4, 0.7], dtype=torch.float64)
"""Where a ρ of conftest.py can bend or end."""
GRID = torch.cat([torch.linspace(-50, 50, 20_001, dtype=torch.float64), KINKS])
SPACING = 100 / 20_000


def rho(reg: Regularizer, x: torch.Tensor) -> torch.Tensor:
    """ρ(x_l), coordinate by coordinate."""
    return reg.value(x.unsqueeze(-1))


def in_domain(reg: Regularizer, v: torch.Tensor) -> torch.Tensor:
    """A point of dom r* on the way from 0 to v."""
    s = reg.dual_scaling(v)
    return torch.zeros_like(v) if s is None else s.unsqueeze(-1) * v


def grows(reg: Regularizer, v: torch.Tensor) -> torch.Tensor:
    """Whether v x - ρ(x) is unbounded in x, that is v is outside dom ρ*; looked up far out on both sides."""
    far = 1e8
    ends = torch.stack([v * x - rho(reg, x) for x in (torch.full_like(v, far), torch.full_like(v, -far))])
    return ends.amax(0) > far * ROUNDING


@given(v=VECTORS, step=STEPS)
def test_what_prox_removes_is_a_subgradient(reg, v, step):
    x = reg.prox(v, step)
    u = (v - x) / step
    assert (reg.distance(x, u) <= ROUNDING).all()
    # ... and by the definition of a subgradient, ρ(y) >= ρ(x) + u (y - x) for every y.
    y = GRID.unsqueeze(-1)
    assert (rho(reg, y) >= rho(reg, x) + u * (y - x) - 1e-9).all()  # |u (y - x)| reaches 1e4, rounded at 1e-12


@given(v=VECTORS, w=VECTORS, step=STEPS)
def test_prox_brings_no_two_points_further_apart(reg, v, w, step):
    assert ((reg.prox(v, step) - reg.prox(w, step)).abs() <= (v - w).abs() + 1e-14).all()


@given(v=VECTORS, step=STEPS)
def test_no_point_of_a_fine_grid_beats_prox(reg, v, step):
    def cost(x):
        return rho(reg, x) + (x - v).square() / (2 * step)

    assert (cost(reg.prox(v, step)) <= cost(GRID.unsqueeze(-1)).amin(0) + ROUNDING).all()


@given(v=VECTORS, step=STEPS)
def test_prox_is_what_a_scalar_minimizer_finds(reg, v, step):
    low, high = (reg.low, reg.high) if isinstance(reg, Box) else (0 if isinstance(reg, NonNegative) else -10, 10)

    def cost(x, target):
        return float(reg.value(torch.tensor([x], dtype=torch.float64))) + (x - target) ** 2 / (2 * step)

    found = [
        minimize_scalar(cost, bounds=(low, high), args=(target,), method="bounded", options={"xatol": 1e-10}).x
        for target in v.tolist()
    ]
    # Comparing values of size 1e3 rounded at 1e-13 finds the bottom of a parabola of curvature 1/10 to about √1e-12.
    np.testing.assert_allclose(reg.prox(v, step).numpy(), found, rtol=0, atol=1e-5)


@given(v=VECTORS, step=STEPS, lam=st.floats(0, 3), mu=st.floats(0, 3))
def test_prox_is_the_closed_form(v, step, lam, mu):
    u = v.numpy()
    soft = np.sign(u) * np.maximum(np.abs(u) - step * lam, 0)
    for reg, expected in [
        (L1(lam), soft),
        (ElasticNet(lam, mu), soft / (1 + step * mu)),
        (Box(-lam - 0.1, mu), np.minimum(np.maximum(u, -lam - 0.1), mu)),
        (NonNegative(lam), np.maximum(u - step * lam, 0)),
    ]:
        np.testing.assert_allclose(reg.prox(v, step).numpy(), expected, rtol=0, atol=1e-14)


@given(v=VECTORS, steps=arrays(float, 5, elements=STEPS).map(torch.from_numpy))
def test_a_step_per_coordinate_treats_each_on_its_own(reg, v, steps):
    alone = torch.stack([reg.prox(v[k : k + 1], float(steps[k]))[0] for k in range(5)])
    assert torch.equal(reg.prox(v, steps), alone)


def test_a_grid_of_steps_is_every_step_alone(reg):
    v = torch.linspace(-3, 3, 12, dtype=torch.float64).reshape(2, 3, 2)
    steps = torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)
    together = reg.prox(v, steps.reshape(3, 1, 1, 1))
    alone = torch.stack([reg.prox(v, float(step)) for step in steps])
    assert torch.equal(together.expand_as(alone), alone)  # r = 0 has no use for the step and keeps the shape of v


@given(x=VECTORS, v=VECTORS)
def test_conjugates_obey_fenchel_and_young(reg, x, v):
    x, v = reg.prox(x, 1.0), in_domain(reg, v)
    assert (rho(reg, x) + reg.conjugate(v) - x * v >= -ROUNDING).all()


@given(v=VECTORS, step=STEPS)
def test_fenchel_and_young_meet_at_subgradients(reg, v, step):
    x = reg.prox(v, step)
    u = (v - x) / step
    # u reaches 1e3 and is rounded at 1e-13; a ρ* of curvature 2 takes that times u.
    torch.testing.assert_close(rho(reg, x) + reg.conjugate(u), u * x, rtol=1e-11, atol=1e-10)


@given(v=VECTORS)
def test_the_conjugate_is_the_largest_value_on_a_grid(reg, v):
    v = in_domain(reg, v)
    x = GRID.unsqueeze(-1)
    largest = (x * v - rho(reg, x)).amax(0)
    # Between two points of the grid a parabola of curvature 1/2 rises by less than (1/2) SPACING² / 8.
    torch.testing.assert_close(reg.conjugate(v), largest, rtol=0, atol=SPACING**2 / 16 + ROUNDING)


@given(v=VECTORS)
def test_shrinking_ends_in_the_domain_of_the_conjugate_and_no_earlier(reg, v):
    s = reg.dual_scaling(v)
    if s is None:
        assert grows(reg, torch.full_like(v, 1e-3)).all()  # however small, some direction is outside
        return
    assert 0 <= s <= 1
    assert not grows(reg, s * v).any()
    assert s == 1 or grows(reg, 1.001 * s * v).any()


def test_shrinking_nothing_is_allowed(reg):
    s = reg.dual_scaling(torch.zeros(2, 5, dtype=torch.float64))
    assert s is None or torch.equal(s, torch.ones(2, dtype=torch.float64))


@given(x=VECTORS)
def test_slope_and_curvature_are_finite_differences(reg, x):
    h = 1e-3
    x = x[reg.free(x) & reg.free(x - h) & reg.free(x + h) & (x.abs() > h)]
    left, here, right = (rho(reg, x + step) for step in (-h, 0, h))
    # ρ is quadratic on each piece, so differences are exact up to rounding: 1e-15 / h and 1e-14 / h².
    torch.testing.assert_close((right - left) / (2 * h), reg.slope(x), rtol=0, atol=1e-10)
    torch.testing.assert_close((right - 2 * here + left) / h**2, reg.curvature(x), rtol=0, atol=1e-6)


@given(x=VECTORS)
def test_free_is_where_the_slopes_from_both_sides_agree(reg, x):
    h = 1e-7
    x = torch.cat([x[x.abs() > 0.01], KINKS])
    x = x[rho(reg, x).isfinite() & ((x.unsqueeze(-1) - KINKS).abs().amin(-1).gt(2 * h) | torch.isin(x, KINKS))]
    from_left, from_right = ((rho(reg, x + step) - rho(reg, x)) / step for step in (-h, h))
    smooth = (from_right - from_left).abs() < 1e-3  # inf beyond a wall, 2 lam at a kink, curvature · h where smooth
    if isinstance(reg, ElasticNet) and reg.lam == 0:
        smooth &= x != 0  # 0 is called a kink although this ρ is smooth there; Newton only loses a coordinate for a step
    assert torch.equal(reg.free(x), smooth)


@given(x=VECTORS, v=VECTORS)
def test_distance_is_how_far_the_nearest_subgradient_lies(reg, x, v):
    # ∂ρ(x) is the interval between the slopes from both sides; x is at a kink or much further from it than h.
    h = 1e-7
    x = torch.cat([reg.prox(x, 1.0)[:2].round(decimals=3), reg.prox(KINKS, 0.0)])
    low, high = ((rho(reg, x + step) - rho(reg, x)) / step for step in (-h, h))
    expected = torch.maximum(torch.maximum(low - v, v - high), torch.zeros_like(v))
    torch.testing.assert_close(reg.distance(x, v), expected, rtol=0, atol=1e-6)  # 1e-15 / h, and curvature · h


def test_outside_the_walls_there_is_no_subgradient():
    outside = torch.tensor([-1.0, 2.0], dtype=torch.float64)
    for reg in (Box(-0.4, 0.7), NonNegative(0.3)):
        assert reg.distance(outside, torch.zeros(2, dtype=torch.float64))[0] == torch.inf
        assert reg.value(outside) == torch.inf
    assert Box(-0.4, 0.7).distance(outside, outside)[1] == torch.inf


def test_dtype_and_shape_are_kept(reg):
    for dtype in (torch.float32, torch.float64):
        v = torch.linspace(-2, 2, 12, dtype=dtype).reshape(3, 4)
        for result in (reg.prox(v, 0.5), reg.distance(v, v), reg.conjugate(v), reg.slope(v)):
            assert result.dtype == dtype and result.shape == v.shape
        assert reg.value(v).dtype == dtype and reg.value(v).shape == (3,)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_penalty_that_is_no_penalty_is_refused(value):
    for build in (L1, NonNegative, lambda lam: ElasticNet(lam, 0.1)):
        with pytest.raises(InvalidInput, match=f"lam is {value}, but a penalty must be a finite number >= 0"):
            build(value)
    with pytest.raises(InvalidInput, match=f"mu is {value}"):
        ElasticNet(0.1, value)


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.0), (0.0, 0.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_a_box_without_inside_is_refused(low, high):
    with pytest.raises(InvalidInput, match="must be finite with low < high"):
        Box(low, high)


@given(x=VECTORS)
def test_inside_is_the_nearest_point_where_r_is_finite(reg, x):
    inside = reg.project(x)
    assert bool(torch.isfinite(rho(reg, inside)).all())
    finite = torch.isfinite(rho(reg, x))
    torch.testing.assert_close(inside[finite], x[finite], rtol=0, atol=1e-15)  # Box.value forgives a rounding error
    allowed = GRID[torch.isfinite(rho(reg, GRID))]
    for a, b in zip(x, inside, strict=True):
        assert float((a - b).abs()) <= float((allowed - a).abs().min()) + 1e-12
