"""Gradient tracking: neighbours agree on the mean gradient while they compute the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch

from milodo.algorithms.ahead import Ahead
from milodo.algorithms.parameters import Space, StepSize
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.types import NodeTensor, Step


class State(NamedTuple):
    x: NodeTensor
    y: NodeTensor
    """Tracks the mean gradient: Σy = Σg after every step."""
    g: NodeTensor
    """The last gradient."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


@dataclass(frozen=True, kw_only=True)
class GradientTracking(Ahead):
    """Di Lorenzo and Scutari 2016, Nedić, Olshevsky and Shi 2017 (arXiv 1607.03218), with a prox that is ours, from y⁰ = g⁰ = 0:

        g⁺ = ∇f(x)
        y⁺ = W y + g⁺ - g
        x⁺ = prox_{γr}(W x - γy⁺)

    x and γy travel in one message, before the gradient is known: with Prox-ATC, which is the same with mixing after the step, it
    must wait. Σy = Σg, whatever the links of an iteration are, so it is made for graphs that change. At a fixed point
    y = W y is the mean gradient at every node, and x_i - (W x)_i is the same for all nodes where r has no kink, so 0 there.
    """

    gamma: Step
    """Step size γ."""
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "Gradient-Tracking"
    exact: ClassVar[bool] = True
    space: ClassVar[Space] = {"gamma": StepSize(1 / 256, 1)}
    State = State

    def sends(self, d: int) -> tuple[tuple[int, int], ...]:
        return ((2 * d, 0),)

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """γ = (1 + λ_min(W))²/4L, half of what is stable where all f_i are one quadratic (tested on many others)."""
        return cls(gamma=(2 - net.mixing.high) ** 2 / (4 * L))

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        zero = torch.zeros_like(x0)
        return State(x0, zero, zero, self.exchange.init(torch.cat((x0, zero), dim=-1), net))

    def hear(self, state: State, net: Network) -> tuple[NodeTensor, NodeTensor, Any]:
        """x - W x, y - W y and the link after it; γy travels, so that a compressor with one scale a message suits both."""
        lap, link = self.exchange.lap(torch.cat((state.x, self.gamma * state.y), dim=-1), state.link, net)
        x, y = lap.chunk(2, dim=-1)
        return x, y / self.gamma, link

    def move(self, state: State, heard: tuple[NodeTensor, NodeTensor, Any], problem: Problem) -> State:
        (lap_x, lap_y, link), g = heard, problem.grad(state.x)
        y = state.y - lap_y + g - state.g
        return State(problem.prox(state.x - lap_x - self.gamma * y, self.gamma), y, g, link)
