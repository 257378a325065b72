"""The curve of a cross-validation: which penalty is chosen, computed by brute force, ties included."""

from __future__ import annotations

import math
import statistics

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from milodo.fit.curve import Curve, decide

FEW = st.integers(1, 3)
"""So few different losses that ties are the rule."""


@given(st.integers(2, 4).flatmap(lambda folds: st.lists(st.lists(FEW, min_size=folds, max_size=folds), min_size=1, max_size=8)))
def test_of_penalties_that_are_as_good_the_largest_is_chosen(losses):
    """Penalties fall along the curve, so that the first of equals is the sparsest model. scikit-learn takes the first, too."""
    sums = [sum(row) for row in losses]
    best = sums.index(min(sums))
    limit = statistics.fmean(losses[best]) + statistics.stdev(losses[best]) / math.sqrt(len(losses[best]))
    assume(all(row == limit or abs(row - limit) > 1e-9 for row in map(statistics.fmean, losses)))  # else rounding decides
    within = next(p for p, row in enumerate(losses) if statistics.fmean(row) <= limit)
    found = {rule: decide(np.array(losses, dtype=float), rule) for rule in ("min", "1se")}
    assert [found[rule].best for rule in found] == [best, best]
    assert (found["min"].chosen, found["1se"].chosen) == (best, within)


@given(st.lists(st.lists(FEW, min_size=3, max_size=3), min_size=1, max_size=6), st.lists(FEW, min_size=3, max_size=3))
def test_folds_that_count_more_are_folds_that_are_there_more_often(losses, weights):
    repeated = np.repeat(np.array(losses, dtype=float), weights, axis=1)
    found = decide(np.array(losses, dtype=float), "min", np.array(weights, dtype=float))
    np.testing.assert_allclose(found.mean, repeated.mean(1), rtol=1e-14)
    sums = [sum(map(int, row)) for row in repeated]
    assert found.best == found.chosen == sums.index(min(sums))


@given(
    st.sampled_from(["min", "1se"]),
    st.lists(st.tuples(st.integers(0, 100), st.sampled_from([1e-6, 1e-4, 1e-3, 1e-2])), min_size=2, max_size=8),
)
def test_what_is_solved_again_is_coarse_and_near_what_decides(rule, penalties):
    curve = Curve(rule, unit=2.0, tight=1e-6)
    for mean, tolerance in penalties:
        curve.add(np.array([mean - 1.0, mean + 1.0]) / 50, tolerance)
    now, again = curve.decided, curve.doubtful()
    limits = [now.mean[now.best], now.mean[now.best] + now.error[now.best] * (rule == "1se")]
    near = [
        p
        for p, (_, tolerance) in enumerate(penalties)
        if tolerance > 1e-6 and min(abs(now.mean[p] - limit) for limit in limits) <= 5 * tolerance * 2.0
    ]
    assert (again in near and now.mean[again] == min(now.mean[p] for p in near)) if near else again is None
    exact = Curve(rule, unit=2.0, tight=1e-6, exact=True)
    for mean, tolerance in penalties:
        exact.add(np.array([mean - 1.0, mean + 1.0]) / 50, tolerance)
    assert exact.doubtful() is None  # there is nothing to solve better


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=8))
def test_a_tolerance_is_a_tenth_of_what_the_curve_moves_or_lies_above_its_minimum(means):
    curve = Curve("min", unit=4.0, tight=1e-5)
    assert curve.next_tolerance() == 1e-5
    for mean in means:
        curve.add(np.array([mean, mean], dtype=float) / 100, 1e-5)
    last, before, least = means[-1] / 400, means[-2] / 400, min(means) / 400
    expected = 0.1 * max(abs(last - before), last - least)
    np.testing.assert_allclose(curve.next_tolerance(), min(max(expected, 1e-5), 1e-2), rtol=1e-9)
