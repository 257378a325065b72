"""Parameters that need no tuning, in an experiment."""

from __future__ import annotations

import pytest

from milodo.algorithms import AcceleratedED
from milodo.bench.benchmark import Benchmark
from milodo.bench.plan import run_seeds
from milodo.bench.records import read_records
from milodo.bench.run_file import RunFile
from milodo.config import load_experiment
from milodo.errors import InvalidInput
from milodo.network import StackedNetwork
from milodo.report.run import Run
from milodo.report.tuning import settings

TEXT = """
[problem]
family = "lasso"
n = 5
d = 8
N = 20
[network]
topology = "ring(5)"
{network}
[run]
iterations = 200
instances = 3
[[methods]]
name = "accelerated-ed"
use = "safe"
[[methods]]
name = "tree-apg"
[[methods]]
name = "admm"
use = "safe"
"""


def test_methods_that_need_no_tuning_are_not_tuned_and_the_report_says_what_they_need(tmp_path):
    (tmp_path / "safe.toml").write_text(TEXT.format(network=""))
    experiment = load_experiment(tmp_path / "safe.toml")
    folder = Benchmark(experiment, tmp_path / "run").run()
    run = RunFile.read(folder)
    assert run.tuning == {}
    L = experiment.problem.build().sample(run_seeds(experiment, (0, 3))).lipschitz()
    chosen, net = run.methods["accelerated-ed (safe)"].parameters, StackedNetwork("ring(5)")
    expected = AcceleratedED.safe(float(L.max()), net, float(L.mean(-1).max()))
    assert chosen == {"gamma": pytest.approx(expected.gamma), "K": expected.K} and expected.gamma > 1 / float(L.max())
    assert run.methods["tree-apg"].rounds_per_iteration == 2 * net.topology.tree.height
    last = {row.method: row for row in read_records(folder / "records.csv")}
    assert all(row.gap < 1e-6 for row in last.values())
    rows = {row["label"]: row for row in settings(Run(folder))}
    assert "links that hold" in rows["Tree-APG"]["notes"] and rows["Tree-APG"]["how"] == "nothing to choose"
    assert run.methods["tree-apg"].gradients_per_iteration == 1 and "gradients" not in rows["Tree-APG"]["notes"]
    assert f"takes {run.methods['admm (safe)'].parameters['inner']} gradients an iteration" in rows["ADMM (safe)"]["notes"]
    assert "derived by the method" in rows["Accelerated-ED (safe)"]["how"]


@pytest.mark.parametrize("network", ["outage = 0.1", 'messages = "top-10%"'])
def test_sums_over_a_tree_are_refused_before_anything_runs_where_they_would_break(tmp_path, network):
    (tmp_path / "lossy.toml").write_text(TEXT.format(network=network))
    with pytest.raises(InvalidInput, match=r"tree-apg needs (links that hold|every coordinate)"):
        load_experiment(tmp_path / "lossy.toml")
