"""What run.json may say. It is a file that people edit and disks damage: what is of the wrong kind counts as missing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from milodo.errors import LARGEST, as_float

MISSING = object()


@dataclass(frozen=True)
class Each:
    """A list or a table (`of`) of entries of one kind; an entry of another kind is left out, the others stay."""

    of: type
    kind: Any


def text(value: Any) -> bool:
    return isinstance(value, str)


def flag(value: Any) -> bool:
    return isinstance(value, bool)


def count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def number(value: Any) -> bool:
    """Finite, and none that only a whole number can be."""
    found = as_float(value)
    return found is not None and math.isfinite(found)


def number_or_none(value: Any) -> bool:
    return value is None or number(value)


def positive(value: Any) -> bool:
    return number(value) and value > 0


def seeds(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, int) and not isinstance(entry, bool) for entry in value)


def optima(value: Any) -> bool:
    return isinstance(value, list) and all(map(number_or_none, value))


def parameters(value: Any) -> bool:
    """All of them or none: a method with half of its step sizes is another method."""
    return isinstance(value, dict) and all(map(number, value.values()))


def table(value: Any) -> bool:
    return isinstance(value, dict)


def anything(value: Any) -> bool:
    return True


TRIAL = {"parameters": parameters, "score": number_or_none, "reached": flag, "gap": number_or_none, "diverged": flag}
METHOD = {
    "label": text,
    "parameters": parameters,
    "how": text,
    "needs": text,
    "rounds_per_iteration": count,
    "exact": flag,
    "weights": {"name": text, "sha256": text, "trained_on": text},
}
TUNING = {
    "instances": count,
    "iterations": count,
    "target": positive,
    "cost": text,
    "seeds": seeds,
    "fixed": parameters,
    "cached": flag,
    "best": parameters,
    "score": number_or_none,
    "reached": flag,
    "candidates": count,
    "grid": Each(list, TRIAL),
}
TOPOLOGY = {
    "name": text,
    "n": count,
    "edges": anything,  # a graph with some of its edges is another graph: who draws it looks closer
    "diameter": count,
    "weights": text,
    "contraction": number,
    "fingerprint": text,
    "outage": number,
    "messages": text,
}
RUN = {
    "name": text,
    "title": text,
    "description": text,
    "problem": text,
    "instances": count,
    "runtime": text,
    "topology": TOPOLOGY,
    "methods": Each(dict, METHOD),
    "tuning": Each(dict, TUNING),
    "gaps": Each(list, positive),
    "baseline": text,
    "reference": {"kind": text, "largest": number, "values": optima},
    "provenance": {"config": table},
    "merged": Each(list, text),
    "processes": count,
}
"""Of each key that milodo writes: a test, a table of such (what else it holds is kept as it is), or Each."""
ALWAYS = {"topology": dict, "methods": dict, "tuning": dict, "provenance": dict, "gaps": list}
"""Parts that are there, if only empty, whatever the file says."""


def sound(content: dict[str, Any]) -> dict[str, Any]:
    """What a run.json says and can have been meant."""
    return {**{key: empty() for key, empty in ALWAYS.items()}, **_of_kind(content, RUN)}


def _of_kind(value: Any, kind: Any) -> Any:
    """The value without what is of the wrong kind in it; MISSING if it is so itself."""
    if isinstance(kind, Each):
        if not isinstance(value, kind.of):
            return MISSING
        pairs = value.items() if kind.of is dict else enumerate(value)
        kept = {key: entry for key, found in pairs if (entry := _of_kind(found, kind.kind)) is not MISSING}
        return kept if kind.of is dict else list(kept.values())
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return MISSING
        pairs = ((key, _of_kind(found, kind[key]) if key in kind else found) for key, found in value.items())
        return {key: entry for key, entry in pairs if entry is not MISSING}
    return value if kind(value) else MISSING
