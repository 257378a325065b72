"""What a method or an exchange needs of the network and of the problem: one checker, one sentence a requirement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from milodo.errors import InvalidInput


class Requirement(Enum):
    """Its value is what the requirement asks for."""

    RELIABLE_LINKS = "links that hold (a lost message breaks a sum)"
    EVERY_COORDINATE = "every coordinate of a message"
    FIXED_GRAPH = "one fixed graph (its spectrum, or its spanning tree, decides what is sent)"
    HESSIAN = "problems that know their Hessian"


@dataclass(frozen=True)
class Conditions:
    """What a network is like, as far as requirements ask."""

    outage: float = 0.0
    schedule: Any = None
    """Which changes the graph with the iteration; None where it does not change."""
    sparse: bool = False
    """Whether messages leave coordinates out."""
    hessian: bool = True
    """Whether the problem knows its Hessian, where it is there already."""


REMEDY = "Use a method that gossips with one round, e.g. accelerated-ed with K = 1."


def in_words(requires: Iterable[Requirement]) -> str:
    """All of them; of messages that leave coordinates out only sentences that refuse them speak."""
    said = [each.value for each in Requirement if each in set(requires) and each is not Requirement.EVERY_COORDINATE]
    return "; ".join(said)


def why_not(requires: Iterable[Requirement], conditions: Conditions) -> str | None:
    """What is asked for and is not there, to go behind who asks; None where nothing is amiss."""
    for requirement in sorted(requires, key=list(Requirement).index):
        lacking = _lacking(requirement, conditions)
        if lacking is not None:
            return f"needs {requirement.value}, and {lacking}"
    return None


def check(who: object, requires: Iterable[Requirement], conditions: Conditions, remedy: str = REMEDY) -> None:
    """Refuses in one sentence what cannot run under these conditions."""
    why = why_not(requires, conditions)
    if why is not None:
        raise InvalidInput(f"{who} {why}. {remedy}")


def _lacking(requirement: Requirement, conditions: Conditions) -> str | None:
    if requirement is Requirement.RELIABLE_LINKS and conditions.outage:
        return f"links are down {conditions.outage:.0%} of the time here"
    if requirement is Requirement.EVERY_COORDINATE and conditions.sparse:
        return "these messages leave most of them out"
    if requirement is Requirement.FIXED_GRAPH and conditions.schedule is not None:
        return f"the graph changes with the iteration ({conditions.schedule})"
    if requirement is Requirement.HESSIAN and not conditions.hessian:
        return "this one does not know it"
    return None
