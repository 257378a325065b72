"""Parameters of every registered method: declared, searched, and refused in one sentence when they cannot work."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest
import torch

from milodo.algorithms import METHODS, Choice, Continuous, Fraction, Share
from milodo.errors import InvalidInput
from milodo.problems import Lasso

PROBLEM = Lasso(3, 2, 4).sample([0])
PARAMETERS = [(name, key, kind) for name, method in METHODS.items() for key, kind in method.space.items()]
CONTINUOUS = [(name, key) for name, key, kind in PARAMETERS if isinstance(kind, Continuous)]
FRACTIONS = [(name, key) for name, key, kind in PARAMETERS if isinstance(kind, Fraction)]
SHARES = [(name, key) for name, key, kind in PARAMETERS if isinstance(kind, Share)]
WHOLE = [(name, key) for name, key, kind in PARAMETERS if isinstance(kind, Choice) and (name, key) not in SHARES]

NAN, INF = float("nan"), float("inf")


def refused(build, name, key, value) -> str:
    with pytest.raises(InvalidInput) as error:
        build(name, PROBLEM, **{key: value})
    sentence = str(error.value)
    assert sentence.startswith(f"{METHODS[name].label}: {key} is ") and sentence.endswith(".") and "\n" not in sentence
    return sentence


def test_every_parameter_is_searched_and_nothing_else(name):
    """But for what is named, not searched: exchanges and ways to weigh, and constants that follow from them unless given."""
    named = {"exchange", "momentum", "dual", "steps", "floor", "by_degree"}
    assert {field.name for field in fields(METHODS[name])} - named == set(METHODS[name].space)
    assert all(field.kw_only for field in fields(METHODS[name]))


def test_a_method_is_called_by_its_label(name):
    assert METHODS[name].label.lower() == name


@pytest.mark.parametrize(("name", "key", "kind"), PARAMETERS)
def test_everything_searched_is_allowed(build, name, key, kind):
    for value in kind.values if isinstance(kind, Choice) else (kind.low, kind.high):
        assert getattr(build(name, PROBLEM, **{key: value}), key) == value


@pytest.mark.parametrize("value", [-0.01, 1.01, -1, NAN, INF, "0.5", None, True, [0.5]])
@pytest.mark.parametrize(("name", "key"), SHARES)
def test_a_share_outside_its_range_is_refused(build, name, key, value):
    assert "it must be a number from 0 to 1" in refused(build, name, key, value)


def test_parameters_are_frozen(build, name):
    method = build(name, PROBLEM)
    with pytest.raises(FrozenInstanceError):
        setattr(method, next(iter(method.space), "gamma"), 1.0)


@pytest.mark.parametrize("value", [0, 0.0, -1.0, NAN, INF, -INF])
@pytest.mark.parametrize(("name", "key"), CONTINUOUS)
def test_a_step_that_is_not_finite_and_positive_is_refused(build, name, key, value):
    assert f"is {value:g}, but" in refused(build, name, key, value)


@pytest.mark.parametrize("value", ["0.1", None, True, [0.1], 1j])
@pytest.mark.parametrize(("name", "key"), CONTINUOUS)
def test_a_step_that_is_no_number_is_refused(build, name, key, value):
    assert "must be a number" in refused(build, name, key, value)


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, INF])
@pytest.mark.parametrize(("name", "key"), CONTINUOUS)
def test_one_bad_step_in_a_grid_is_refused_and_named(build, name, key, bad):
    assert f"is {bad:g}, but" in refused(build, name, key, torch.tensor([0.1, bad, 0.2]))


@pytest.mark.parametrize(("name", "key"), FRACTIONS)
def test_a_fraction_above_one_is_refused(build, name, key):
    assert "must lie in (0, 1]" in refused(build, name, key, 1.5)
    assert "must lie in (0, 1]" in refused(build, name, key, torch.tensor([0.5, 1.5]))
    assert getattr(build(name, PROBLEM, **{key: 1.0}), key) == 1.0


@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, NAN, "2", None, True])
@pytest.mark.parametrize(("name", "key"), WHOLE)
def test_a_number_of_rounds_that_is_not_whole_is_refused(build, name, key, value):
    assert "must be a whole number >= 1" in refused(build, name, key, value)


@pytest.mark.parametrize("name", [name for name in sorted(METHODS) if METHODS[name].space])
def test_an_empty_grid_is_refused(build, name):
    refused(build, name, fields(METHODS[name])[0].name, torch.tensor([]))
