"""Newton's method on sums: where features are few, summing curvatures beats summing gradients again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from milodo.algorithms import Algorithm
from milodo.algorithms.parameters import Space
from milodo.network import Network
from milodo.network.exchange import TreeAllReduce
from milodo.network.requirement import Requirement
from milodo.problems import Problem
from milodo.solvers.line_search import FIRST, WHOLE, best_length, lengths_like
from milodo.solvers.prox_newton import model_minimum
from milodo.solvers.triangles import pack, packed_size, unpack
from milodo.types import Evaluation, NodeTensor, Point

WORTH = {"squared": 100, "logistic": 50, "softmax": 50}
"""Sums of gradients that one sum of curvatures may cost. Iterating takes some hundred of the former (docs/results.md), Newton
one of the latter for the squared loss, and about ten for logistic regression."""
SUMS = 3
"""Of one iteration, as a rule: curvature; values on the way; value and gradient where that led."""


def numbers(d: int) -> int:
    """In a message for d unknowns: the upper triangle of H, and g."""
    return packed_size(d) + d


def is_cheaper(loss: str, d: int) -> bool:
    """Than iterating with gradients."""
    return numbers(d) <= WORTH[loss] * (d + 3)


class State(NamedTuple):
    x: NodeTensor
    g: NodeTensor
    """∇f there, from the first step on."""
    value: Tensor
    """f + r there [n, 1]."""
    H: Tensor
    """H̄, its upper triangle [n, d (d + 1)/2]; of a quadratic f from the first step on, else nothing [n, 0]."""
    intercepts: Tensor
    """The columns of H̄ that belong to intercepts, flat [n, d · intercepts], where f is quadratic; else nothing [n, 0]."""
    k: int
    """Iterations so far."""


@dataclass(frozen=True, kw_only=True)
class NewtonOnSums(Algorithm):
    """In every iteration the sites add up A_iᵀ D A_i (D = diag ℓ'') and ∇f_i over the spanning tree; then each solves

    x̂ = argmin_z ⟨ḡ, z - x⟩ + ½ (z - x)ᵀ H̄ (z - x) + r(z),        x⁺ = x + α (x̂ - x),

    α the best of a few, by one more sum of values or two. For the squared loss H̄ and ḡ are the moments of the data: one sum, and
    x̂ is the answer; H̄ is summed once. What rounding leaves is mended by sums of gradients alone. The gradient at x⁺, which the
    next iteration needs, is summed last, with f: by it the stopping rule knows whether there is a next iteration, and no
    curvature is asked for in vain.

    r must be Σ w_l |z_l| + m_l/2 z_l², with intercepts left free, and all nodes begin at the same point.
    """

    hessian: Tensor | None = None
    """H̄ [d, d], where it is known already and the same everywhere."""

    label: ClassVar[str] = "Newton on sums"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {}
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.HESSIAN})
    alike: ClassVar[tuple[str, ...]] = ("x", "g", "value", "H", "intercepts")
    evaluates: ClassVar[bool] = True
    steady: ClassVar[bool] = False
    exchange: TreeAllReduce = TreeAllReduce()
    State = State

    def sends(self, d: int) -> tuple[tuple[int, int], ...]:
        """Curvature with a gradient, a line search, and an evaluation; none of it is ever shortened."""
        return tuple((each, each) for each in (numbers(d), d + FIRST, d + 1))

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        d, nothing = problem.d, torch.zeros_like(x0)
        known, free = (packed_size(d), d * problem.reg.unpenalized) if problem.quadratic else (0, 0)
        return State(x0, nothing, nothing[:, :1], x0.new_zeros(len(x0), known), x0.new_zeros(len(x0), free), 0)

    def evaluated(self, state: State) -> Evaluation | None:
        if not state.k:
            return None
        x, columns = state.x[0], state.intercepts[0]
        return Evaluation(x, state.value[0, 0], state.g[0], columns.view(len(x), -1) if len(columns) else None)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        x = state.x[0]
        H, g = self._model(state, problem, net)
        x = self._towards(x, model_minimum(H, g, x, problem.reg), problem, net)
        value, g = self._evaluation(x, problem, net)
        free = problem.reg.unpenalized if problem.quadratic else 0
        held = pack(H) if problem.quadratic else H.new_zeros(0)
        parts = (x, g, value, held, H[:, len(x) - free :].flatten())
        x, g, value, held, columns = (part.expand(net.n, -1) for part in parts)
        return State(x, g, value, held, columns, state.k + 1)

    def _model(self, state: State, problem: Problem, net: Network) -> tuple[Tensor, Point]:
        """H̄ and ḡ at x, as far as they are not known by one sum."""
        x, d, first = state.x[0], problem.d, state.k == 0
        H = self.hessian if first else unpack(state.H[0], d) if problem.quadratic else None
        if H is not None:
            return H, self._evaluation(x, problem, net)[1] if first else state.g[0]
        u = problem.look(problem.everywhere(x))
        own = [problem.hessian_from(u), *([problem.value_and_grad_from(u)[1]] if first else [])]
        triangle, g = _mean(torch.cat(own, dim=-1), net).tensor_split((packed_size(d),))
        return unpack(triangle, d), g if first else state.g[0]

    def _evaluation(self, x: Point, problem: Problem, net: Network) -> tuple[Tensor, Point]:
        """f + r [1] and ∇f at x, by one sum."""
        value, own = problem.value_and_grad_from(problem.look(problem.everywhere(x)))
        g, value = _mean(torch.cat((own, (value + problem.reg.value(x)).unsqueeze(-1)), dim=-1), net).tensor_split((-1,))
        return value, g

    def _towards(self, x: Point, aim: Point, problem: Problem, net: Network) -> Point:
        """The best point on the way; x itself if none is better. The same at every site: node 0's aim travels with the values."""
        own = _of_first(aim, problem, net)
        if problem.quadratic:
            return net.total(own)[0]
        lengths = lengths_like(x)
        told = net.total(torch.cat((_values(x, aim, lengths[:FIRST], problem), own), dim=-1))[0]
        loss, aim = told[:FIRST] / net.topology.n, told[FIRST:]
        if int(best_length(loss)) == WHOLE:
            return aim
        best = int(best_length(torch.cat((loss, _mean(_values(x, aim, lengths[FIRST:], problem), net)))))
        return x + lengths[best] * (aim - x) if best else x


def _mean(own: NodeTensor, net: Network) -> Tensor:
    """(1/n) Σ_i of all nodes, the same everywhere."""
    return net.total(own)[0] / net.topology.n


def _of_first(own: Point, problem: Problem, net: Network) -> NodeTensor:
    """What node 0 has, and 0 for all others: its sum is the same everywhere, to the bit. Small problems that are solved on
    different machines differ by roundings."""
    first = torch.tensor([node == 0 for node in net.nodes]).unsqueeze(-1)
    return torch.where(first, problem.everywhere(own), 0.0)


def _values(x: Point, aim: Point, lengths: Tensor, problem: Problem) -> NodeTensor:
    """f_i + r on the way from x to the aim [n, points]. Sums of r round differently at different sites: it is averaged, too,
    so that all decide alike."""
    points = x + lengths.unsqueeze(-1) * (aim - x)
    return (problem.between(x, aim, lengths) + problem.reg.value(points).unsqueeze(-1)).mT
