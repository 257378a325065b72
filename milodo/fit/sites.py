"""One model from data at several sites, each with arrays of its own: what is to be predicted, and from what."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, quoted, shortened
from milodo.fit.model import Plan, fit_model
from milodo.fit.path import Choice, PenaltyPath, fit_path
from milodo.fit.task import Fit, SiteFacts, Task
from milodo.network import Network, Observer, StackedNetwork, StackedObserver

BLANK = "[ \t\r\n\xa0]*"
PLAIN = re.compile(
    rf"{BLANK}[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf|infinity){BLANK}", re.IGNORECASE | re.ASCII
)
"""A number as everybody writes it. Python also reads 1_000, and digits of other alphabets."""
DECIMAL_COMMA = re.compile(rf"{BLANK}[+-]?[0-9.]*,[0-9]+(e[+-]?[0-9]+)?{BLANK}", re.IGNORECASE)


@dataclass(frozen=True)
class Site:
    """Features [N, d] with the names of their columns, and the target as it was written [N]."""

    name: str
    """How messages to people call it: its file, as a rule."""
    columns: tuple[str, ...]
    features: np.ndarray
    target: np.ndarray

    def __len__(self) -> int:
        return len(self.features)


def fit_here(
    sites: Sequence[Site],
    task: Task,
    progress: Callable[[int, float], None] | None = None,
    announce: Callable[[Plan], None] | None = None,
    listing: Callable[[Sequence[SiteFacts]], None] | None = None,
) -> Fit:
    """All sites in this process: a simulation that moves no bytes, and counts those it would move.

    `listing` is shown the sites before anything is computed.
    """
    sites, net, classes, facts = _met(sites, task, listing)
    return replace(fit_sites(sites, classes, task, net, StackedObserver(), progress=progress, announce=announce), sites=facts)


def choose_here(
    sites: Sequence[Site], task: Task, choice: Choice, listing: Callable[[Sequence[SiteFacts]], None] | None = None, **also: Any
) -> tuple[Fit, PenaltyPath]:
    """The same with a penalty that is chosen; `also` are further arguments of fit_path."""
    sites, net, classes, facts = _met(sites, task, listing)
    fit, path = choose_sites(sites, classes, task, choice, net, StackedObserver(), **also)
    return replace(fit, sites=facts), path


def _met(
    sites: Sequence[Site], task: Task, listing: Callable[[Sequence[SiteFacts]], None] | None
) -> tuple[list[Site], StackedNetwork, tuple[str, str] | None, tuple[SiteFacts, ...]]:
    for site in sites[1:]:
        same_columns(sites[0].name, sites[0].columns, site.name, site.columns)
    facts = tuple(facts_of(site, task) for site in sites)
    if listing:
        listing(facts)
    for (one, first), (two, other) in combinations(zip(facts, sites, strict=True), 2):
        if may_be_the_same(one, two) and content_digest(first) == content_digest(other):
            raise twice(first.name, other.name)
    net = StackedNetwork(task.topology(len(sites)), task.weights)
    classes = two_classes([fact.classes or () for fact in facts], task.target) if task.loss == "logistic" else None
    return list(sites), net, classes, facts


def facts_of(site: Site, task: Task) -> SiteFacts:
    """What the others and the file of the fit are told of it."""
    classes = class_counts(site, task.target) if task.loss == "logistic" else None
    return SiteFacts(site.name, len(site), len(site.columns), classes)


def may_be_the_same(one: SiteFacts, other: SiteFacts) -> bool:
    """As far as can be seen without looking at the rows."""
    return (one.rows, one.classes) == (other.rows, other.classes)


def content_digest(site: Site) -> bytes:
    """Of names, features and target: equal for the same rows in the same order."""
    found = hashlib.sha256(repr(site.columns).encode())
    found.update(np.ascontiguousarray(site.features).data)
    target = site.target
    found.update(repr(target.tolist()).encode() if target.dtype == object else np.ascontiguousarray(target).data)
    return found.digest()


def twice(first: str, other: str) -> InvalidInput:
    return InvalidInput(
        f"{other} holds the very same rows as {first}, so each of them would count twice. Leave one of them out; if two sites do "
        "have the same rows, put both into one file."
    )


def fit_sites(
    sites: Sequence[Site], classes: tuple[str, str] | None, task: Task, net: Network, observer: Observer, **also: Any
) -> Fit:
    """The model of all sites, from those held here; `also` are further arguments of fit_model."""
    return fit_model(*_arrays(sites, classes, task), task, net, observer, columns=sites[0].columns, classes=classes, **also)


def choose_sites(
    sites: Sequence[Site], classes: tuple[str, str] | None, task: Task, choice: Choice, net: Network, observer: Observer,
    **also: Any,
) -> tuple[Fit, PenaltyPath]:  # fmt: skip
    """The same with a penalty that is chosen; `also` are further arguments of fit_path."""
    arrays = _arrays(sites, classes, task)
    return fit_path(*arrays, task, choice, net, observer, columns=sites[0].columns, classes=classes, **also)


def _arrays(sites: Sequence[Site], classes: tuple[str, str] | None, task: Task) -> tuple[list[Tensor], list[Tensor]]:
    features = [torch.from_numpy(site.features) for site in sites]
    targets = [torch.from_numpy(indicator(site, classes) if classes else numeric_target(site, task.target)) for site in sites]
    return features, targets


def same_columns(first: str, ours: Sequence[str], other: str, theirs: Sequence[str]) -> None:
    if list(ours) == list(theirs):
        return
    missing = [name for name in ours if name not in theirs]
    extra = [name for name in theirs if name not in ours]
    if missing:
        said = f"{other} has no column {missing[0]!r}, which {first} has"
    elif extra:
        said = f"{other} has a column {extra[0]!r}, which {first} has not"
    else:
        said = f"{other} has the columns of {first} in another order"
    raise InvalidInput(f"{said}. All sites need the same columns in the same order.", "ignore")


def numeric_target(site: Site, name: str) -> np.ndarray:
    """For the squared loss."""
    return numbers(site.name, name, site.target, "The squared loss needs numbers; use the logistic loss for classes.", "loss")


def classes_here(site: Site, name: str) -> list[str]:
    """The different values of the target at one site, as text."""
    return list(class_counts(site, name))


def class_counts(site: Site, name: str) -> dict[str, int]:
    """How many rows have each value of the target, sorted by the values as text."""
    found: Counter[str] = Counter()
    for value, count in Counter(site.target.tolist()).items():
        found[label(value)] += count
    if {"", "nan", "None"} & set(found):
        raise InvalidInput(f"{site.name}: column {quoted(name)} has missing values. Remove those rows first.")
    if len(found) > 2:  # said here and told to nobody: so many values are data, not classes
        raise InvalidInput(
            f"{site.name}: column {quoted(name)} has {len(found)} different values, but the logistic loss needs two classes. "
            "Use the squared loss for numbers, or milodo.sklearn for more classes.",
            "loss",
        )
    return dict(sorted(found.items()))


def two_classes(everywhere: Sequence[Iterable[str]], name: str) -> tuple[str, str]:
    """The two classes of all sites together, in sorted order (numbers by value): the second is what is predicted."""
    found = {label for labels in everywhere for label in labels}
    if len(found) != 2:
        few = ", ".join(shortened(label, 30) for label in sorted(found)[:5])
        raise InvalidInput(
            f"column {quoted(name)} has {len(found)} different values over all sites ({few}{', ...' if len(found) > 5 else ''}), "
            "but the logistic loss needs two classes. Use the squared loss for numbers, or milodo.sklearn for more classes.",
            "loss",
        )
    first, second = sorted(found, key=float if all(map(_is_number, found)) else str)
    return first, second


def indicator(site: Site, classes: tuple[str, str]) -> np.ndarray:
    """1 where the target is the second class."""
    values = site.target.tolist()
    second = {value: float(label(value) == classes[1]) for value in set(values)}
    return np.array([second[value] for value in values])


def label(value: object) -> str:
    """1, 1.0 and '1' are one class."""
    if isinstance(value, bool):
        return str(int(value))
    text = str(value).strip()
    if not _is_number(text):
        return text
    number = float(text)
    return str(int(number)) if number.is_integer() else str(number)


def numbers(
    site: str, name: str, values: np.ndarray, advice: str = "Ignore it, or encode it first.", remedy: str | None = "ignore"
) -> np.ndarray:
    """A column as numbers, all of them finite."""
    if values.dtype.kind not in "biuf":
        row = next((k for k, value in enumerate(values.tolist()) if not _is_number(value)), None)
        if row is not None:
            said = f"{site}: column {quoted(name)}, row {row + 1} {_why_no_number(values.tolist()[row], advice)}"
            raise InvalidInput(said, *[remedy] * said.endswith(advice) if remedy else [])
    found = values.astype(np.float64)
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found))[0])
        raise InvalidInput(f"{site}: column {quoted(name)}, row {row + 1} is {found[row]}. Fill it in, or remove the row.")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or PLAIN.fullmatch(str(value)) is not None


def _why_no_number(value: object, advice: str) -> str:
    text = str(value)
    if value is None or not text.strip():
        return "is missing. Fill it in, or remove the row."
    if DECIMAL_COMMA.fullmatch(text):
        return f"is {quoted(value)}: decimal commas are not read. Write points, such as 1.5 for 1,5."
    try:
        return f"is {quoted(value)}, which is not read as a number. Write it in plain digits, e.g. {float(text):.15g}."
    except ValueError:
        return f"is {quoted(value)}, not a number. {advice}"
