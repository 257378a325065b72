"""A site that computes wrongly is named, and no process of the fit ends as if all were well."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from real import finish, start
from sklearn.datasets import load_breast_cancer
from test_sites import write_csv

from milodo.fit.audit import contradicts
from milodo.fit.pooled import penalty, pooled_problem, scaling, total_of
from milodo.network import StackedNetwork

DATA = load_breast_cancer()
BROKEN = str(Path(__file__).parent / "broken.py")


def fitted(folder, program, *options):
    """How three processes of `milodo node` end."""
    for rank in range(3):
        rows = slice(40 * rank, 40 * rank + 30 + rank)
        write_csv(folder / f"{rank}.csv", map(str, DATA.feature_names[:5]), DATA.data[rows, :5], "y", DATA.target[rows])
    command = [*program, "node", "--data", str(folder / "{rank}.csv"), "--l1", "0.01", "--graph", "path", *options]
    return finish(start([*command, "--iterations", "40", "--timeout", "20", "--out", str(folder / "out")], 3))


@pytest.mark.parametrize(
    ("kind", "options", "said", "bad"),
    [
        ("nan", [], "sent nan to node", 2),
        ("nan", [], "sent nan to node", 1),  # the root of the tree
        ("inf", ["--method", "flood-apg"], "sent inf to node", 0),
        ("nan", ["--loss", "logistic", "--links", "lossy"], "sent nan to node", 0),
        ("turned", [], "contradicts itself", 2),
    ],
)
def test_a_site_that_computes_wrongly_is_named_and_all_end_alike(tmp_path, kind, options, said, bad):
    ends = fitted(tmp_path, [BROKEN, kind, "1", str(bad)], *options)
    assert {end.code for end in ends} == {3}, ends
    assert any(f"node {bad}'s {bad}.csv {said}" in end.err for end in ends)
    assert not any(f"node {other}'s" in end.err for end in ends for other in range(3) if other != bad)
    assert not list((tmp_path / "out").glob("**/fit.json"))


def test_a_method_that_diverges_blames_nobody(tmp_path):
    ends = fitted(tmp_path, ["-m", "milodo"], "--method", "prox-ed", "--set", "gamma=1e40")
    assert [end.code for end in ends] == [1, 1, 1] and "it diverged" in ends[0].err


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_only_gradients_of_another_function_contradict_the_objective(loss, scale):
    torch.manual_seed(0)
    X = [torch.randn(N, 4, dtype=torch.float64) * scale for N in (5, 40)]
    y = [(part[:, 0] > 0).double() for part in X]
    if loss == "softmax":
        y = [torch.stack((part, 1 - part, 0 * part), dim=-1) for part in y]
    y = [part * scale if loss == "squared" else part for part in y]
    scaled = scaling(X, y, total_of(StackedNetwork("path(2)"), reliable=True), centre=True)
    problem = pooled_problem(loss, X, y, scaled, penalty(0.1, None), n=2, intercept=True)
    size = scale if loss == "squared" else 1.0
    first, answer = problem.start()[0], size * torch.randn(problem.d, dtype=torch.float64)
    assert not contradicts(problem, first, answer) and not contradicts(problem, first, first)
    right = type(problem).pull_back
    for wrong in (lambda g: -g, lambda g: 1.5 * g, lambda g: g + size, lambda g: g * torch.nan):
        problem.pull_back = lambda v, wrong=wrong: wrong(right(problem, v))  # type: ignore[method-assign]
        assert contradicts(problem, first, answer)
    assert not contradicts(problem, first, answer * torch.inf)  # what diverged says nothing
