"""Adam at every node, and mixing: what rivals MiLoDo on networks and has no place in the library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from milodo.algorithms import Algorithm
from milodo.algorithms.parameters import Space, StepSize
from milodo.network import Network
from milodo.problems import Problem
from milodo.types import NodeTensor, Step

FIRST, SECOND, TINY = 0.9, 0.999, 1e-8
"""β₁, β₂ and ε (Kingma and Ba 2015)."""


class State(NamedTuple):
    x: NodeTensor
    m: NodeTensor
    v: NodeTensor
    k: int


@dataclass(frozen=True, kw_only=True)
class DAdam(Algorithm):
    """Nazari, Tarzanagh and Michailidis 2019 (arXiv 1901.09109), its step before the mixing, where there is no r:

        m⁺ = β₁m + (1 - β₁)∇f(x),    v⁺ = β₂v + (1 - β₂)∇f(x)²
        x⁺ = W(x - γ m̂⁺/(√v̂⁺ + ε)),    m̂⁺ = m⁺/(1 - β₁ᵏ⁺¹),    v̂⁺ = v⁺/(1 - β₂ᵏ⁺¹)

    Not exact: x stops where each node's own steps and the mixing balance.
    """

    gamma: Step
    """Step size γ."""

    label: ClassVar[str] = "D-Adam"
    exact: ClassVar[bool] = False
    space: ClassVar[Space] = {"gamma": StepSize(1 / 4096, 1)}
    State = State

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        return State(x0, torch.zeros_like(x0), torch.zeros_like(x0), 0)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        g, k = problem.grad(state.x), state.k + 1
        m = FIRST * state.m + (1 - FIRST) * g
        v = SECOND * state.v + (1 - SECOND) * g.square()
        move = m / (1 - FIRST**k) / ((v / (1 - SECOND**k)).sqrt() + TINY)
        return State(net.mix(state.x - self.gamma * move), m, v, k)
