"""The two kinds of tensor a decentralised method touches, and the letters of their shapes.

n   nodes held by this process (all of them in simulation, one of them in the real runtime)
m   directed edges (i -> j) that leave a node held here, sorted by (i, j)
d   coordinates of x
N   samples of data at one node
*batch   any leading axes: instances of a problem, candidates of a tuning grid
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from torch import Tensor

NodeTensor = Annotated[Tensor, "*batch n d"]
EdgeTensor = Annotated[Tensor, "*batch m d"]
NodeScalar = Annotated[Tensor, "*batch n"]
Point = Annotated[Tensor, "*batch d"]
Step = float | Tensor
"""A step size: a number, or a tensor whose axes broadcast against [*batch, n, d]."""


class Evaluation(NamedTuple):
    """A point that all nodes share, and what every one of them knows exactly of the mean of all f_i there."""

    x: Point
    value: Tensor
    """f(x) + r(x) [*batch]."""
    gradient: Point
    """∇f(x)."""
    curvature: Tensor | None = None
    """The columns of ∇²f that belong to intercepts [*batch, d, intercepts], where they are the same everywhere."""
