"""Starting points, short runs and comparisons that the laws share."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from milodo.algorithms import Algorithm
from milodo.loop import iterate
from milodo.network import Network
from milodo.problems import Problem
from milodo.tree import leaves

ROUNDING = 1e-12
"""Some ten steps on numbers of size one, the same arithmetic in another order."""


def require(true: bool, sentence: str) -> None:
    """What a law says, in a sentence, where it does not hold."""
    if not true:
        raise AssertionError(sentence)


def start(problem: Problem, *extra: int, seed: int = 0) -> Tensor:
    """A point of each node, drawn at random: [*extra, *batch, n, d]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*extra, *problem.batch, problem.n, problem.d, dtype=torch.float64, generator=generator).to(problem.dtype)


@torch.no_grad()
def run(method: Algorithm, problem: Problem, net: Network, steps: int, x0: Tensor | None = None) -> Any:
    """The state after so many steps."""
    return next(itertools.islice(iterate(method, problem, net, x0=x0), steps, None))


def tensors(state: Any) -> list[Tensor]:
    """Of a state, which may nest."""
    return [leaf for leaf in leaves(state).values() if isinstance(leaf, Tensor)]


def close(a: Any, b: Any, tolerance: float = ROUNDING) -> None:
    """Two states agree, leaf by leaf."""
    require(leaves(a).keys() == leaves(b).keys(), "two states have other fields")
    for (field, one), other in zip(leaves(a).items(), leaves(b).values(), strict=True):
        if isinstance(one, Tensor):
            near(one, other, tolerance, field)
        else:
            require(one == other, f"{field} is {one!r} in one state and {other!r} in the other")


def near(a: Tensor, b: Tensor, tolerance: float = ROUNDING, what: str = "") -> None:
    """Two tensors agree up to rounding."""
    said = (lambda text: f"{what}: {text}") if what else None
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=said)


def equal(a: Iterable[Tensor], b: Iterable[Tensor], sentence: str) -> None:
    """Two lists of tensors agree to the bit."""
    require(all(torch.equal(one, other) for one, other in zip(a, b, strict=True)), sentence)
