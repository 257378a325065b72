"""What a gap costs, against closed forms: gap = 10^(-rate k), so a gap of 10^-a costs a / rate iterations."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from milodo.bench import speedup
from milodo.bench.records import Record
from milodo.bench.speedup import AXES, cost_to_reach, group, measured_from_end, quantile, speedup_table
from milodo.errors import InvalidInput
from milodo.status import Status

KS = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
GAPS = [1e-1, 1e-2, 1e-3]


def look(method: str, instance: int, k: int, gap: float, status: Status = Status.RUNNING, rounds: int = 1) -> Record:
    return Record(
        method=method, instance=instance, seed=instance, k=k, rounds=rounds * k, messages=20 * rounds * k,
        floats=600 * rounds * k, bytes=4800 * rounds * k, seconds=0.001 * k, loss=1 + gap, gap=gap,
        consensus=gap / 2, status=status,
    )  # fmt: skip


def geometric(
    method: str, instance: int, rate: float, *, ks: list[int] = KS, end: Status = Status.STEPS, rounds: int = 1
) -> list[Record]:
    return [look(method, instance, k, 10 ** (-rate * k), end if k == ks[-1] else Status.RUNNING, rounds) for k in ks]


def race() -> list[Record]:
    """On 5 instances: 'slow' at rates 1/100 .. 1/140, 'fast' four times as fast with 3 rounds an iteration."""
    records = []
    for i in range(5):
        records += geometric("slow", i, 1 / (100 + 10 * i))
        records += geometric("fast", i, 4 / (100 + 10 * i), rounds=3)
    return records


def curves(records: list[Record], method: str, axis: str, quantity: str):
    return speedup.curves(group(records), method, axis, quantity)


def row(records: list[Record], method: str, gap: float, axis: str, baseline: str | None = "slow"):
    (found,) = [r for r in speedup_table(records, [gap], baseline) if (r.method, r.axis) == (method, axis)]
    return found


@pytest.mark.parametrize("power", [0.5, 1, 2, 3, math.pi])
@pytest.mark.parametrize(("axis", "unit"), [("k", 1), ("rounds", 2), ("bytes", 9600), ("seconds", 0.001)])
def test_geometric_convergence_costs_its_closed_form_in_whole_iterations_between_samples_too(power, axis, unit):
    assert cost_to_reach(geometric("m", 0, 1 / 100, rounds=2), 10**-power, axis) == pytest.approx(math.ceil(100 * power) * unit)


def test_the_first_crossing_counts_even_if_the_gap_rises_again():
    gaps = [1, 1e-1, 1e-3, 1, 1e-4]
    records = [look("m", 0, 10 * i, gap) for i, gap in enumerate(gaps)]
    assert cost_to_reach(records, 1e-2, "k") == pytest.approx(15)  # halfway from 1e-1 to 1e-3 on the log scale


def test_the_order_of_the_records_does_not_matter():
    records = geometric("m", 0, 1 / 100)
    assert cost_to_reach(records[::-1], 1e-2, "k") == pytest.approx(200)


def test_a_gap_rounded_to_zero_or_below_is_reached():
    assert 0 < cost_to_reach([look("m", 0, 0, 1.0), look("m", 0, 10, 0.0)], 1e-3, "k") <= 10
    assert 0 < cost_to_reach([look("m", 0, 0, 1.0), look("m", 0, 10, -1e-17)], 1e-3, "k") <= 10


def test_what_is_not_reached_or_not_certified_is_nan():
    assert math.isnan(cost_to_reach(geometric("m", 0, 1 / 1000), 1e-3, "k"))
    assert math.isnan(cost_to_reach([look("m", 0, k, math.nan) for k in KS], 1e-3, "k"))


def test_a_start_below_the_gap_costs_nothing():
    assert cost_to_reach(geometric("m", 0, 1 / 100), 2.0, "bytes") == 0


def test_medians_quartiles_and_ratios_are_the_closed_form():
    slow, fast = row(race(), "slow", 1e-2, "k"), row(race(), "fast", 1e-2, "k")
    assert (slow.q25, slow.median, slow.q75) == pytest.approx((220, 240, 260))
    assert (fast.q25, fast.median, fast.q75) == pytest.approx((55, 60, 65))
    assert (fast.ratio_q25, fast.ratio, fast.ratio_q75) == pytest.approx((4, 4, 4))
    assert fast.instances == fast.reached == 5
    assert row(race(), "fast", 1e-2, "rounds").ratio == pytest.approx(4 / 3)
    assert row(race(), "fast", 1e-2, "bytes").ratio == pytest.approx(4 / 3)
    assert row(race(), "fast", 1e-2, "seconds").ratio == pytest.approx(4)


def test_a_method_is_exactly_as_fast_as_itself():
    for found in speedup_table(race(), GAPS, "fast"):
        if found.method == "fast":
            assert (found.ratio_q25, found.ratio, found.ratio_q75) == (1, 1, 1)


def test_swapping_method_and_baseline_inverts_the_ratio():
    for axis in AXES:
        there, back = row(race(), "fast", 1e-3, axis, "slow"), row(race(), "slow", 1e-3, axis, "fast")
        assert there.ratio * back.ratio == pytest.approx(1)


def test_a_smaller_gap_never_costs_less():
    for axis in AXES:
        costs = [row(race(), "slow", gap, axis).median for gap in (0.5, 0.1, 0.03, 1e-2, 1e-3, 1e-9)]
        assert costs == sorted(costs)


def test_nothing_depends_on_the_order_of_records_or_on_the_numbers_of_instances():
    records = race()
    shuffled = random.Random(0).sample(records, len(records))
    renumbered = [replace(record, instance=4 - record.instance) for record in records]
    expected = {(r.method, r.gap, r.axis): r for r in speedup_table(records, GAPS, "slow")}
    for other in (shuffled, renumbered):
        assert {(r.method, r.gap, r.axis): r for r in speedup_table(other, GAPS, "slow")} == expected
        for a, b in zip(curves(other, "fast", "bytes", "gap"), curves(records, "fast", "bytes", "gap"), strict=True):
            np.testing.assert_allclose(a, b)


def test_instances_that_do_not_get_there_count_as_infinitely_expensive():
    records = geometric("m", 0, 1 / 100) + geometric("m", 1, 1 / 200) + geometric("m", 2, 1 / 10_000)
    found = row(records, "m", 1e-3, "k", None)
    assert (found.reached, found.instances) == (2, 3)
    assert found.median == pytest.approx(600)
    assert found.q75 == math.inf
    most_fail = row(geometric("m", 0, 1 / 100) + geometric("m", 1, 1e-5) + geometric("m", 2, 1e-5), "m", 1e-3, "k", None)
    assert (most_fail.median, most_fail.last) == (math.inf, 1000)


def test_a_baseline_cut_short_gives_a_lower_bound_and_no_number():
    records = geometric("fast", 0, 1 / 10) + geometric("slow", 0, 1 / 1000)
    found = row(records, "fast", 1e-3, "k")
    assert math.isnan(found.ratio)
    assert (found.ratio_least, found.ratio_most) == (pytest.approx(1000 / 30), math.inf)
    back = row(records, "slow", 1e-3, "k", "fast")
    assert math.isnan(back.ratio)
    assert (back.ratio_least, back.ratio_most) == (0, pytest.approx(30 / 1000))


def test_a_method_that_diverges_never_arrives():
    wild = [look("wild", 0, k, 10.0**k, Status.DIVERGED if k == 5 else Status.RUNNING) for k in (0, 1, 2, 5)]
    found = row(geometric("slow", 0, 1 / 100) + wild, "wild", 1e-3, "k")
    assert (found.median, found.diverged, found.ratio) == (math.inf, 1, 0)


def test_an_instance_without_a_certified_optimum_is_left_out():
    records = race() + [look(m, 9, k, math.nan) for m in ("slow", "fast") for k in KS]
    assert row(records, "fast", 1e-2, "k") == row(race(), "fast", 1e-2, "k")
    np.testing.assert_array_equal(curves(records, "fast", "k", "gap")[1], curves(race(), "fast", "k", "gap")[1])


def test_curves_are_the_quartiles_at_every_sample():
    x, median, q25, q75 = curves(race(), "slow", "bytes", "gap")
    gaps = np.array([[10 ** (-k / (100 + 10 * i)) for k in KS] for i in range(5)])
    np.testing.assert_allclose(x, [4800 * k for k in KS])
    np.testing.assert_allclose([median, q25, q75], np.quantile(gaps, [0.5, 0.25, 0.75], axis=0))


def test_a_converged_instance_keeps_its_last_value():
    records = geometric("m", 0, 1 / 100, ks=[0, 10, 100], end=Status.CONVERGED)
    records += geometric("m", 1, 1 / 100, ks=[0, 10, 100, 1000]) + geometric("m", 2, 1 / 200, ks=[0, 10, 100, 1000])
    x, _, _, q75 = curves(records, "m", "k", "gap")
    assert x.tolist() == [0, 10, 100, 1000]
    assert q75[-1] == pytest.approx((10**-1 + 10**-5) / 2)


def test_a_curve_ends_where_half_of_the_instances_have_converged():
    """Carried on, the median would be flat: where runs were stopped would look like where the method stalls."""
    records = geometric("m", 0, 1 / 100, ks=[0, 10, 100], end=Status.CONVERGED) + geometric(
        "m", 1, 1 / 100, ks=[0, 10, 100, 1000]
    )
    assert curves(records, "m", "k", "gap")[0].tolist() == [0, 10, 100]


def test_a_diverged_instance_counts_as_infinite_from_then_on():
    wild = [look("m", i, 0, 1.0) for i in (0, 1)] + [look("m", i, 10, math.nan, Status.DIVERGED) for i in (0, 1)]
    _, median, q25, q75 = curves(geometric("m", 2, 1 / 100, ks=[0, 10, 100]) + wild, "m", "k", "gap")
    assert median.tolist() == [1, math.inf, math.inf]
    assert q75.tolist() == [1, math.inf, math.inf]
    assert q25[0] == 1


def test_a_curve_ends_where_an_instance_was_interrupted():
    records = geometric("m", 0, 1 / 100, ks=[0, 10], end=Status.INTERRUPTED) + geometric("m", 1, 1 / 100, ks=[0, 10, 100])
    assert curves(records, "m", "k", "gap")[0].tolist() == [0, 10]


def test_an_instance_that_ends_between_the_samples_of_others_bends_no_curve():
    records = geometric("m", 0, 1 / 100, ks=[0, 10, 37], end=Status.CONVERGED) + geometric("m", 1, 1 / 100, ks=[0, 10, 100])
    x, median, _, _ = curves(records, "m", "k", "gap")
    at = dict(zip(x.tolist(), median.tolist(), strict=True))
    assert at[37] == pytest.approx(10**-0.37)


def test_a_metric_has_curves_and_of_a_diverged_instance_it_is_unknown():
    """An accuracy should rise: that a run which blew up counted as infinitely accurate would turn the picture round."""
    records = [replace(r, metrics={"accuracy": 1 - r.gap / 2}) for r in race()]
    median = curves(records, "slow", "k", "accuracy")[1]
    np.testing.assert_allclose(median, 1 - curves(records, "slow", "k", "gap")[1] / 2)
    wild = [look("m", 0, 0, 1.0), look("m", 0, 10, math.nan, Status.DIVERGED)]
    assert np.isnan(curves([replace(r, metrics={"accuracy": r.gap}) for r in wild], "m", "k", "accuracy")[1][-1])
    with pytest.raises(InvalidInput, match="Did you mean 'accuracy'"):
        curves(records, "slow", "k", "acuracy")


@pytest.mark.parametrize("q", [0, 0.25, 0.5, 0.75, 1])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_quantile_is_numpys_where_all_is_finite(q, size):
    values = np.random.default_rng(size).normal(size=size)
    assert quantile(values.tolist(), q) == pytest.approx(float(np.quantile(values, q)))


def test_quantile_knows_infinity():
    assert quantile([1, 2, math.inf], 0.5) == 2
    assert quantile([1, math.inf], 0.5) == math.inf
    assert quantile([math.inf, math.inf], 0.25) == math.inf
    assert math.isnan(quantile([], 0.5))


@pytest.mark.parametrize("call", [
    lambda: cost_to_reach(race(), 1e-3, "bites"),
    lambda: curves(race(), "fastt", "k", "gap"),
    lambda: curves(race(), "fast", "k", "gapp"),
])  # fmt: skip
def test_a_slip_is_answered_with_the_nearest_name(call):
    with pytest.raises(InvalidInput, match="Did you mean"):
        call()


def test_without_an_optimum_the_baselines_last_loss_is_to_be_reached():
    """Losses that fall as 10^(-rate k): who falls twice as fast is, after half of the iterations, where the baseline ends."""
    ks = list(range(101))
    rates = {"slow": 0.01, "fast": 0.02, "stuck": 0.001}
    records = [record for method, rate in rates.items() for record in geometric(method, 0, rate, ks=ks)]
    unknown = [replace(record, gap=math.nan) for record in records]
    assert all(found.instances == 0 for found in speedup_table(unknown, [0.0], "slow"))
    rows = {r.method: r for r in speedup_table(measured_from_end(unknown, "slow"), [0.0], "slow") if r.axis == "k"}
    assert rows["slow"].median == 100 and rows["slow"].ratio == 1
    assert rows["fast"].median == pytest.approx(50) and rows["fast"].ratio == pytest.approx(2)
    assert rows["stuck"].reached == 0 and rows["stuck"].ratio_most <= 1
