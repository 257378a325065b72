"""Moments: where f is quadratic and small, everything there is to say is said once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from milodo.algorithms.base import Algorithm
from milodo.algorithms.parameters import Space
from milodo.algorithms.tree_apg import APART, dot
from milodo.errors import InvalidInput
from milodo.network import Network
from milodo.problems import Problem
from milodo.types import NodeTensor


class State(NamedTuple):
    x: NodeTensor
    H: Tensor
    """H̄ [*batch, n, d, d]."""
    c: NodeTensor
    """c̄."""
    L: Tensor
    """[*batch, n, 1]."""
    known: int
    """Whether all these are."""


@dataclass(frozen=True, kw_only=True)
class Moments(Algorithm):
    """For f_i with ∇f_i(x) = H_i x - c_i. In the first iteration, over the tree (Network.total),

        H̄, c̄ = (1/n) Σ_j H_j, c_j

    and in each one, from t = 1 and e = x, `inner` times without a message (FISTA with restarts), L = λmax(H̄):

        x⁺ = prox_{r/L}(e - (H̄e - c̄)/L)
        e⁺ = x⁺ + (t - 1)/t⁺ (x⁺ - x),   t⁺ = (1 + √(1 + 4t²))/2;   t = 1 where ⟨e - x⁺, x⁺ - x⟩ > 0

    A message has d(d + 3)/2 numbers: dear where bytes count, and the fewest rounds there can be. All nodes hold the
    same x, up to roundings.
    """

    inner: int
    """Steps of one iteration, all of them local."""

    label: ClassVar[str] = "Moments"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {}
    needs: ClassVar[str] = "links that hold (a lost message breaks a sum), a spanning tree, and a quadratic f"
    rounds: ClassVar[int | None] = None
    State = State

    def rounds_on(self, net: Network) -> int:
        return 2 * net.topology.tree.height

    def floats_on(self, net: Network, d: int) -> int:
        return 2 * (net.topology.n - 1) * numbers(d)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        zero = torch.zeros_like(x0)
        return State(x0, zero.unsqueeze(-1).expand(*x0.shape, x0.shape[-1]), zero, zero[..., :1], 0)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        H, c, L = (state.H, state.c, state.L) if state.known else summed(problem, net)
        x, e, t, calm = state.x, state.x, torch.ones_like(L), torch.zeros_like(L)
        for _ in range(self.inner):
            last, x = x, problem.prox(e - ((H @ e.unsqueeze(-1)).squeeze(-1) - c) / L, 1 / L)
            uphill = (dot(e - x, x - last) > 0) & (calm >= APART)
            t, calm = torch.where(uphill, 1.0, t), torch.where(uphill, 0.0, calm + 1)
            t_next = (1 + (1 + 4 * t * t).sqrt()) / 2
            e, t = x + (t - 1) / t_next * (x - last), t_next
        return State(x, H, c, L, 1)


def numbers(d: int) -> int:
    """In a message: the upper half of H, and c."""
    return d * (d + 3) // 2


def summed(problem: Problem, net: Network) -> tuple[Tensor, NodeTensor, Tensor]:
    """H̄, c̄ and λmax(H̄), the same at every node."""
    known = problem.moments()
    if known is None:
        raise InvalidInput(f"{Moments.label} needs a quadratic f, and this one is not. Use tree-apg, which needs gradients only.")
    own, slope = known
    rows, columns = torch.triu_indices(problem.d, problem.d, device=slope.device)
    message = torch.cat((own[..., rows, columns], slope), dim=-1)
    mean = net.total(message, exact=message.shape[-1]) / net.topology.n
    upper, c = mean.split((len(rows), problem.d), dim=-1)
    H = torch.empty_like(own)
    H[..., rows, columns] = upper
    H[..., columns, rows] = upper
    return H, c, torch.linalg.eigvalsh(H)[..., -1:].clamp(min=torch.finfo(H.dtype).tiny)
