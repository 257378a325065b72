"""Every registered method obeys the laws that milodo.testing offers for methods of one's own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from milodo.algorithms import METHODS, ProxDGD, ProxED
from milodo.network import StackedNetwork
from milodo.testing import METHOD_LAWS, MethodCase, check_method
from milodo.testing.comparing import ROUNDING as ROUNDING
from milodo.testing.comparing import close as close
from milodo.testing.comparing import run as run
from milodo.testing.comparing import start as start
from milodo.testing.comparing import tensors as tensors
from milodo.testing.method_laws import fronts_of


@pytest.mark.parametrize("law", METHOD_LAWS, ids=lambda law: law.__name__)
def test_every_registered_method_obeys(name, law, parameters_of):
    law(MethodCase(METHODS[name], lambda problem: parameters_of(name, problem)))


def test_every_round_of_a_registered_method_carries_news_a_hop_further(name, parameters_of):
    method, fronts = fronts_of(MethodCase(METHODS[name], lambda problem: parameters_of(name, problem)))
    assert method.alike or set(np.diff(fronts)) == {method.cost(StackedNetwork("path(20)"), 1).rounds}


def step_size(problem):
    return {"gamma": 0.5 / float(problem.lipschitz().max())}


def test_a_method_of_ones_own_is_checked_as_a_whole():
    check_method(ProxED, step_size)


@dataclass(frozen=True, kw_only=True)
class SeesAll(ProxED):
    """Averages over all nodes, which no node can."""

    def step(self, state, problem, net):
        found = super().step(state, problem, net)
        return found._replace(x=found.x + 1e-3 * (found.x.mean(-2, keepdim=True) - found.x))


@dataclass(frozen=True, kw_only=True)
class CountsWrong(ProxED):
    """Talks once more than it says."""

    def step(self, state, problem, net):
        net.mix(state.x)
        return super().step(state, problem, net)


@dataclass(frozen=True, kw_only=True)
class WritesBack(ProxED):
    """Changes what it was given, in place."""

    def step(self, state, problem, net):
        found = super().step(state, problem, net)
        state.x.mul_(2)
        return found


@dataclass(frozen=True, kw_only=True)
class ClaimsTooMuch(ProxDGD):
    """Says that it is exact."""

    exact = True


@dataclass(frozen=True, kw_only=True)
class LooksTwice(ProxED):
    """Takes a gradient more than it says."""

    def step(self, state, problem, net):
        problem.grad(state.x)
        return super().step(state, problem, net)


@dataclass(frozen=True, kw_only=True)
class MixesInstances(ProxED):
    """What one instance gets depends on the others."""

    def step(self, state, problem, net):
        found = super().step(state, problem, net)
        return found._replace(x=found.x + 1e-6 * found.x.flatten(0, -2).mean(0))


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        (SeesAll, "information_travels_one_hop_per_round"), (CountsWrong, "counts_its_rounds"),
        (WritesBack, "leaves_its_state_alone"), (ClaimsTooMuch, "ends_where_it_says"), (LooksTwice, "counts_its_gradients"),
        (MixesInstances, "treats_each_instance_alone"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_a_method_that_breaks_a_law_is_told_which(method, broken):
    laws = [law for law in METHOD_LAWS if law.__name__ == broken]
    with pytest.raises(AssertionError) as caught:
        check_method(method, step_size, laws=laws)
    assert caught.value.__notes__[0].startswith(f"{method.__name__} breaks the law {broken}: ")
