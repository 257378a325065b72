"""Two runtimes, one method: real processes follow the simulation, and send exactly what it counts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from trajectories import CODED, FEW, GRAPHS, LARGE, LOSSY, MORE, REMEMBERING, SHARED, SHORT

from milodo.algorithms import METHODS
from milodo.learned import LEARNED
from milodo.network.frames import PREFIX

sys.path.insert(0, str(Path(__file__).parent.parent))
from real import together

AGREE = 1e-10
INSTANCES = 2
"""That trajectories.py runs at once."""
CASES = [
    f"{graph} {name} perfect"
    for graph in GRAPHS
    for name in (*METHODS, *LEARNED, *MORE, *(f"{name} in bits" for name in REMEMBERING))
]
CASES += [f"{graph} {name} in code perfect" for graph in CODED for name in REMEMBERING]
CASES += [f"{graph} {name} {kind}" for graph, name in SHORT for kind in ("lossy", "short")]
CASES += [f"{graph} {name} lossy" for graph, name in LOSSY]
CASES.append(f"{LARGE} prox-ed perfect")


@pytest.fixture(scope="module", params=[4, SHARED], ids=["a process a node", "several nodes on a process"])
def found(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("real") / "found.json"
    together([str(Path(__file__).parent / "trajectories.py"), str(out)], request.param)
    return request.param, json.loads(out.read_text())


def asked_for(world, case):
    return world != SHARED or case.split()[1] in FEW


def test_every_case_ran(found):
    world, facts = found
    assert set(facts) - {"clocks"} == {case for case in CASES if asked_for(world, case)}


@pytest.mark.parametrize("case", CASES)
def test_real_trajectories_equal_simulated_ones(found, case):
    world, cases = found
    if not asked_for(world, case):
        assert case not in cases
        return
    facts = cases[case]
    assert facts["size"] < 1e3, "a diverging trajectory compares nothing"
    assert facts["worst"] < AGREE
    assert facts["sent"] == facts["simulated"]
    if facts["alone"]:  # every message crosses from one process to another: what is counted is what travels
        # Of rows that travel together and vary in length; digests do not.
        lengths = PREFIX * INSTANCES * (facts["sent"][2] - facts["plain"]) if "in code" in case else 0
        assert facts["carried"] == facts["sent"][1] + lengths
        assert (facts["plain"] > 0) == ("in bits" in case or "in code" in case)


def test_processes_whose_clocks_differ_stop_at_one_iteration(found):
    clocks = found[1]["clocks"]
    assert clocks["status"] == "TIME" and len(set(clocks["iterations"])) == 1
