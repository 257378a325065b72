"""Gossip in an ordinary torch loop: what a race of the same methods computes, exactly resumed, and never hanging."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loops import CASES
from real import together

AGREE = 1e-8
"""In fp64 after 50 steps."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("loops") / "found.json"
    together([str(Path(__file__).parent / "loops.py"), str(out)], 4)
    return json.loads(out.read_text())


@pytest.mark.parametrize("case", CASES)
def test_a_loop_in_four_processes_is_the_race_in_one(found, case):
    facts = found["cases"][case]
    assert facts["moved"] > 0.05, "who does not move compares nothing"
    assert max(facts["worst"]) < AGREE
    assert facts["spread"][0] == pytest.approx(facts["spread"][1], abs=AGREE) and facts["spread"][0] > 0
    assert facts["bytes"][0] == facts["bytes"][1]


def test_what_was_kept_goes_on_to_the_last_bit(found):
    assert found["resumed"] and set(found["resumed"].values()) == {0.0}


@pytest.mark.parametrize("name", ["dsgdm", "qg-dsgdm", "gradient-tracking"])
@pytest.mark.parametrize("unscaled", [True, False])
def test_a_step_that_one_scaler_leaves_out_hangs_nobody(found, name, unscaled):
    facts = found["scaled"][f"{name} {unscaled}"]
    like_plain, like_skip, differs = facts["gaps"]
    assert facts["steps"] == 6
    assert like_plain < 1e-12 and like_skip < 1e-12 < differs
