"""One model from data at several sites, each with arrays of its own: what is to be predicted, and from what."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch

from milodo.errors import InvalidInput, quoted, shortened
from milodo.fit.cells import CLASSES, is_number, names, numbers
from milodo.fit.model import fit_model
from milodo.fit.path import Choice, PenaltyPath, fit_path
from milodo.fit.request import Listeners, Request, Samples
from milodo.fit.task import Fit, SiteFacts, Task
from milodo.network import StackedNetwork, StackedObserver

SHORT = 150
"""Characters of a list of names that is not all a message says."""


@dataclass(frozen=True)
class Site:
    """Features [N, d] with the names of their columns, and the target [N]: numbers, or words as they were written."""

    name: str
    """How messages to people call it: its file, as a rule."""
    columns: tuple[str, ...]
    features: np.ndarray
    target: np.ndarray

    def __len__(self) -> int:
        return len(self.features)


def fit_here(sites: Sequence[Site], task: Task, listeners: Listeners | None = None) -> Fit:
    """All sites in this process: a simulation that moves no bytes, and counts those it would move."""
    request, facts = _met(sites, task, listeners or Listeners())
    return replace(fit_model(request), sites=facts)


def choose_here(
    sites: Sequence[Site], task: Task, choice: Choice, listeners: Listeners | None = None
) -> tuple[Fit, PenaltyPath]:  # fmt: skip
    """The same with a penalty that is chosen."""
    request, facts = _met(sites, task, listeners or Listeners())
    fit, path = fit_path(request, choice)
    return replace(fit, sites=facts), path


def _met(sites: Sequence[Site], task: Task, listeners: Listeners) -> tuple[Request, tuple[SiteFacts, ...]]:
    sites = [in_order(site, sites[0].name, sites[0].columns) for site in sites]
    facts = tuple(facts_of(site, task) for site in sites)
    if listeners.listing:
        listeners.listing(facts)
    for (one, first), (two, other) in combinations(zip(facts, sites, strict=True), 2):
        alike = may_be_the_same(one, two) and np.array_equal(first.features[:1], other.features[:1])
        if alike and content_digest(first) == content_digest(other):
            raise twice(first.name, other.name)
    net = StackedNetwork(task.topology(len(sites)), task.weights)
    classes = two_classes([fact.classes or () for fact in facts], task.target) if task.loss == "logistic" else None
    return Request(samples_of(sites, task, classes, facts), task, net, StackedObserver(net), listeners), facts


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


def samples_of(
    sites: Sequence[Site], task: Task, classes: tuple[str, str] | None, everybody: Sequence[SiteFacts] = ()
) -> Samples:  # fmt: skip
    """Of the sites held here, beside everybody's facts."""
    targets = [indicator(site, classes) if classes else numeric_target(site, task.target) for site in sites]
    return Samples(
        features=[torch.from_numpy(site.features) for site in sites], targets=[torch.from_numpy(each) for each in targets],
        columns=sites[0].columns, classes=classes, sites=[facts.name for facts in everybody],
    )  # fmt: skip


def in_order(site: Site, first: str, columns: Sequence[str]) -> Site:
    """The site with its columns in the order of another one, by their names."""
    same_columns(first, columns, site.name, site.columns)
    if list(columns) == list(site.columns):
        return site
    places = {name: k for k, name in enumerate(site.columns)}
    return replace(site, columns=tuple(columns), features=np.take(site.features, [places[name] for name in columns], axis=1))


def same_columns(first: str, ours: Sequence[str], other: str, theirs: Sequence[str]) -> None:
    """Refuses another site that has not the columns of the first one, in whichever order."""
    missing, extra = ({*ours} - {*theirs}, {*theirs} - {*ours})
    said = []
    if missing:
        said.append(f"no column{'s' * (len(missing) > 1)} {names((n for n in ours if n in missing), SHORT)}, which {first} has")
    if extra:
        word = "columns" if len(extra) > 1 else "a column"
        said.append(f"{word} {names((n for n in theirs if n in extra), SHORT)}, which {first} has not")
    if said:
        advice = "All sites need the same columns, in any order. Ignore those that only some of them have."
        raise InvalidInput(f"{other} has {', and '.join(said)}. {advice}", "ignore")


def numeric_target(site: Site, name: str) -> np.ndarray:
    """For the squared loss."""
    return numbers(site.name, name, site.target, CLASSES)


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
    first, second = sorted(found, key=float if all(map(is_number, found)) else str)
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
    if not is_number(text):
        return text
    number = float(text)
    return str(int(number)) if number.is_integer() else str(number)
