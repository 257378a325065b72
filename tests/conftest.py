"""One valid instance of everything registered, for the laws to run over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import small_data as small
import torch
from hypothesis import settings
from matplotlib.figure import Figure
from torch.nn.functional import one_hot

from milodo.algorithms import METHODS, Algorithm
from milodo.problems import (
    FAMILIES,
    L1,
    REGULARIZERS,
    Box,
    CustomProblem,
    ElasticNet,
    NonNegative,
    Problem,
    Regularizer,
    Softmax,
    Zero,
)
from milodo.problems.synthetic import SyntheticFamily
from milodo.topology import EXAMPLES

torch.set_num_threads(1)  # on tensors this small a second thread costs more than it gives
settings.register_profile("laws", deadline=None, derandomize=True, database=None, max_examples=30)
settings.load_profile("laws")

SYNTHETIC = [kind for kind, family in FAMILIES.items() if issubclass(family, SyntheticFamily)]
"""Families of any size; those that come with a data set have tests of their own."""
REGULARIZER_EXAMPLES: dict[str, tuple[Regularizer, ...]] = {
    "zero": (Zero(),),
    "l1": (L1(0.3),),
    "elastic_net": (ElasticNet(0.3, 0.5), ElasticNet(0.0, 0.5), ElasticNet(0.3, 0.0)),
    "box": (Box(-0.4, 0.7),),
    "non_negative": (NonNegative(), NonNegative(0.3)),
}


def method_parameters(name: str, problem: Problem) -> dict[str, float | int]:
    """Steps safely inside the region of convergence on graphs of degree up to 6; no more is claimed of them."""
    step = 0.5 / float(problem.lipschitz().max())
    return {
        "accelerated-ed": {"gamma": step, "K": 2},
        "tree-apg": {},
        "tree-newton": {},
        "flood-apg": {},
        "apapc": {"eta": 1.5 * step, "tau": 0.3, "theta": 0.9},
        "admm": {"sigma": 1.0, "gamma": 20 * step, "inner": 10},
        "lepdo": {"gamma": step, "alpha": 0.3, "c_s": 0.3, "c_u": 1.0},
        "prox-dgd": {"gamma": step},
        "prox-atc": {"gamma": step},
        "pg-extra": {"gamma": step},
        "prox-ed": {"gamma": step},
        "d-psgd": {"gamma": step},
        "dsgdm": {"gamma": step / 2, "alpha": 0.5},
        "qg-dsgdm": {"gamma": step / 2, "alpha": 0.5},
        "decentlam": {"gamma": step, "alpha": 0.5},
        "gradient-tracking": {"gamma": step / 4},
        "dapg": {"eta": step, "alpha": 0.3, "K": 2},
        "odapg": {"eta": 2 * step, "tau": 0.3, "K": 2},
        # The primal step is γ/n <= 1/(2L), and the dual one needs 2γ²/n ‖lap‖ < 1.
        "primal-dual": {"gamma": min(step * problem.n, problem.n**0.5 / 5)},
    }[name]


def log_cosh(x: torch.Tensor, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """An objective nobody registered; |(log cosh)''| <= 1."""
    u = data["A"] @ x - data["b"]
    return (u.abs() + torch.nn.functional.softplus(-2 * u.abs())).mean()


def make_problem(
    kind: str, reg: Regularizer, seeds: tuple[int, ...] = (0, 1, 2), *, dtype: torch.dtype = torch.float64
) -> Problem:
    """Five nodes, four unknowns (of three classes six), six samples a node."""
    if kind == "softmax":
        logistic = FAMILIES["logistic"](5, 2, 6, reg=reg).sample(list(seeds), dtype=dtype)
        return Softmax(logistic.A, one_hot((2 * logistic.A[..., 0] + logistic.b).round().clamp(0, 2).long(), 3).to(dtype), reg)
    if kind != "custom":
        return FAMILIES[kind](5, 4, 6, reg=reg).sample(list(seeds), dtype=dtype)
    lasso = FAMILIES["lasso"](5, 4, 6, reg=reg).sample(list(seeds), dtype=dtype)
    data = {"A": lasso.A, "b": lasso.b}
    return CustomProblem(log_cosh, data, 4, reg, instances=1, lipschitz=float(lasso.lipschitz().max()))


@pytest.fixture(scope="session", params=sorted(METHODS))
def name(request: pytest.FixtureRequest) -> str:
    """Every registered method."""
    return request.param


@pytest.fixture(scope="session")
def build() -> Callable[..., Algorithm]:
    """build(name, problem, **changes): a method with step sizes that suit the problem."""
    return lambda name, problem, **changes: METHODS[name](**method_parameters(name, problem) | changes)


@pytest.fixture(scope="session")
def parameters_of() -> Callable[[str, Problem], dict[str, float | int]]:
    """parameters_of(name, problem): parameters of a registered method that suit the problem."""
    return method_parameters


@pytest.fixture(scope="session", params=[reg for kind in REGULARIZERS for reg in REGULARIZER_EXAMPLES[kind]], ids=str)
def reg(request: pytest.FixtureRequest) -> Regularizer:
    """Every registered regularizer."""
    return request.param


@pytest.fixture(scope="session", params=[*SYNTHETIC, "custom"])
def kind(request: pytest.FixtureRequest) -> str:
    """Every synthetic family, and an objective of one's own."""
    return request.param


@pytest.fixture(scope="session")
def make() -> Callable[..., Problem]:
    """make(kind, reg, seeds, dtype=...): a small problem of that kind."""
    return make_problem


@pytest.fixture(scope="session")
def problem(kind: str) -> Problem:
    """Three instances with r = 0.3 ‖x‖₁."""
    return make_problem(kind, L1(0.3))


@pytest.fixture(scope="session", params=EXAMPLES)
def example(request: pytest.FixtureRequest) -> str:
    """One graph of every registered family."""
    return request.param


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small data sets in the real formats; to be read, not changed."""
    folder = tmp_path_factory.mktemp("data")
    small.write(folder)
    return folder


@pytest.fixture
def small_data(written: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder is one with small data sets, and a dictionary is learnt in no time."""
    monkeypatch.setenv("MILODO_DATA", str(written))
    monkeypatch.setenv("MILODO_CACHE", str(written / "cache"))
    small.publish(written, monkeypatch)
    small.learn_little(monkeypatch)
    return written


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are empty files, as drawing those of one run takes three seconds."""
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: Path(path).touch())


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every figure only the .png is drawn: the other formats show the same."""
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, path, **how: save(self, path, **how) if str(path).endswith("png") else Path(path).touch()
    )
