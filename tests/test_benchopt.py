"""milodo's methods as a benchopt benchmark, run by benchopt itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from real import LIMIT, environment

pytest.importorskip("benchopt", reason="the benchmark needs pip install 'milodo[benchopt]'")
pandas = pytest.importorskip("pandas")

HERE = Path(__file__).parent.parent / "benchmark_decentralized"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory):
    """`benchopt run` on a small problem, in a copy: benchopt writes beside what it runs."""
    folder = tmp_path_factory.mktemp("benchopt")
    copy = shutil.copytree(HERE, folder / HERE.name, ignore=shutil.ignore_patterns("__pycache__", "outputs", "__cache__"))
    out = folder / "results.parquet"
    words = ["run", copy, "-d", "synthetic[family=lasso,n=10,d=20,N=10,lam=0.1]", "-d", "breast_cancer"]
    words += ["-s", "milodo[method=[prox-ed,tree-apg]]", "-s", "auto[pay=bytes]", "-s", "learned[optimizer=milodo-meta-ring10]"]
    words += ["-n", 12, "-r", 1, "--no-plot", "--no-display", "--no-cache", "--seed", 0, "--output", out]
    env = environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path)), HOME=str(folder))
    command = [sys.executable, "-m", "benchopt", *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return pandas.read_parquet(out)


def test_every_solver_ran_on_every_data_set(results):
    ran = set(zip(results["dataset_name"].str.split("[").str[0], results["solver_name"], strict=True))
    solvers = {"milodo[method=prox-ed]", "milodo[method=tree-apg]", "auto[pay=bytes]", "learned[optimizer=milodo-meta-ring10]"}
    assert ran == {(data, solver) for data in ("synthetic", "breast_cancer") for solver in solvers}


def test_gaps_fall_and_costs_are_recorded(results):
    for (data, solver), rows in results.groupby(["dataset_name", "solver_name"]):
        rows = rows.sort_values("stop_val")
        first, last = rows.iloc[0], rows.iloc[-1]
        assert last["objective_value"] < first["objective_value"], (data, solver)
        assert rows["objective_bytes"].is_monotonic_increasing and last["objective_bytes"] > 0, (data, solver)
        assert rows["objective_rounds"].is_monotonic_increasing, (data, solver)


def test_benchopt_sees_what_milodo_measures(results):
    """Prox-ED sends one vector of fp64 an arc of the ring and iteration; the gap is that of milodo's own solve."""
    import milodo

    rows = results[results["solver_name"].eq("milodo[method=prox-ed]") & results["dataset_name"].str.startswith("synthetic")]
    last = rows.sort_values("stop_val").iloc[-1]
    k = int(last["stop_val"])
    problem, net = milodo.Lasso(10, 20, 10, 0.1).sample([0]), milodo.StackedNetwork("ring(10)")
    method = milodo.ProxED.safe(float(problem.lipschitz().max()), net)
    result = milodo.solve(method, problem, net, milodo.Stop(steps=k))
    assert last["objective_bytes"] == 20 * k * 20 * 8 == net.traffic.bytes
    gap = float(result.objective - milodo.optimum(problem).value)
    assert last["objective_value"] == pytest.approx(gap, rel=1e-9, abs=1e-12)
