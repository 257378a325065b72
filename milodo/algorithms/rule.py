"""The paper's update rule, apart from where its weights come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch

from milodo.algorithms.base import Algorithm
from milodo.errors import InvalidInput
from milodo.network import Network
from milodo.network.exchange import Gossip
from milodo.problems import Problem
from milodo.solvers.fista import accelerated
from milodo.types import EdgeTensor, NodeTensor, Step

WARM_UP = 20
"""Iterations in which learned weights are always computed: hidden states start at random and settle first."""


class Here(NamedTuple):
    """Where an iteration is before p_i is chosen."""

    x: NodeTensor
    last: NodeTensor
    """The iterate before."""
    u: NodeTensor
    """The point at which the gradient was taken."""
    g: NodeTensor
    y: NodeTensor


class Ratio(NamedTuple):
    """p_ij,2 = D_i p_ij,1: one sum over the neighbours serves both."""

    D: NodeTensor


class WeightProvider(ABC):
    """Where the weights of a rule come from. What it remembers between two iterations travels in the rule's state."""

    @abstractmethod
    def start(self, x0: NodeTensor, problem: Problem, net: Network, exchange: Gossip) -> Any:
        """Its memory before the first iteration: None, a tensor or a NamedTuple."""

    def beta(self, memory: Any) -> Step | None:
        """β; None, as in the paper, for no extrapolation."""
        return None

    @abstractmethod
    def primal(self, memory: Any, here: Here, problem: Problem) -> tuple[Step, Any]:
        """p_i, from the gradient, the dual and the last move; and what it remembers now."""

    @abstractmethod
    def edges(self, memory: Any, dz: EdgeTensor, net: Network, exchange: Gossip) -> tuple[Any, Any, Any]:
        """p_ij,1, the same at both ends, and p_ij,2 or its Ratio, from z_i - z_j; and what it remembers now. Neighbours agree by
        the exchange."""


class State(NamedTuple):
    x: NodeTensor
    last: NodeTensor
    """The iterate before."""
    y: NodeTensor
    """Dual variable; sums to zero over the nodes."""
    z: NodeTensor
    """Where local steps go on from; without any, x."""
    memory: Any
    """Of the weights."""
    link: Any
    """What both ends of every link remember, where messages are compressed differences."""


class Rule(Algorithm):
    """Section 4 of the paper, with an extrapolation (β = 0 is the paper's), from y⁰ = 0:

    e_i  = x_i + β ⊙ (x_i - x_i₋)
    z_i  = prox_{r, Diag(p_i)}(e_i - p_i ⊙ (∇f_i(u_i) + y_i))         (eq. LEPDO-1)
    y_i⁺ = y_i + Σ_j p_ij,1 ⊙ (z_i - z_j)                             (eq. LEPDO-2)
    x_i⁺ = z_i - Σ_j p_ij,2 ⊙ (z_i - z_j)                             (eq. LEPDO-3)

    with the gradient at u_i = x_i + h β ⊙ (x_i - x_i₋). Where f is quadratic and all f_i are the same, this is stable for
    p L < 2(1 + β)/(1 + 2hβ): 2 for h = 1/2 with any β; with β near 1 4/3 for Nesterov's (h = 1), 4 for the heavy ball (h = 0).

    The extrapolation vanishes at a fixed point, so Theorem 1 speaks of it, too: any weights with 0 < p_i and p_ij,1 = p_ji,1 have
    the optimum as their only fixed point.

    With S > 1 local steps z_i is nearer to the minimum of h_i = f_i + r + ⟨y_i, ·⟩ + ‖· - e_i‖²/2p_i than one proximal step gets:
    S steps of accelerated proximal gradient from the last z_i (Nesterov 2004, constant momentum; all of it coordinate by
    coordinate), starting with v = z,

        z⁺ = prox_{r, Diag(ρ)}(v - ρ(∇f_i(v) + y_i + (v - e_i)/p_i)),   ρ = 1/(L_i + 1/p_i)
        v⁺ = z⁺ + (√κ - 1)/(√κ + 1) (z⁺ - z),                            κ = 1 + L_i p_i

    so an iteration costs one vector an edge and S gradients. They end where they began only at the minimum of h_i, because
    h_i(z⁺) + ‖z⁺ - z‖²/2ρ falls: the fixed points are the same. p_i is chosen from the gradient at the last z_i then.
    """

    exact: ClassVar[bool] = True
    State = State
    exchange: Gossip = Gossip()
    local_steps: int = 1
    """S."""
    lookahead: float = 0.5
    """h. Local steps take the gradient where they are."""

    @property
    def gradients(self) -> int:
        return self.local_steps

    @property
    @abstractmethod
    def weights(self) -> WeightProvider:
        """Of β, p_i, p_ij,1 and p_ij,2."""

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        if self.local_steps > 1 and not problem.knows_lipschitz:
            raise InvalidInput(
                f"{self.local_steps} local steps are as long as curvature allows, which this problem does not know. Take one "
                "local step, or give the problem its Lipschitz constant."
            )
        memory = self.weights.start(x0, problem, net, self.exchange)
        return State(x0, x0, torch.zeros_like(x0), x0, memory, self.exchange.init(x0, net))

    def step(self, state: State, problem: Problem, net: Network) -> State:
        weights = self.weights
        beta = weights.beta(state.memory)
        move = None if beta is None else beta * (state.x - state.last)
        e = state.x if move is None else state.x + move
        if self.local_steps == 1:
            u = e if move is None or self.lookahead == 1 else state.x + self.lookahead * move
            g = problem.grad(u)
            p, memory = weights.primal(state.memory, Here(state.x, state.last, u, g, state.y), problem)
            z = problem.prox(e - p * (g + state.y), p)
        else:
            g = problem.grad(state.z)
            p, memory = weights.primal(state.memory, Here(state.x, state.last, state.z, g, state.y), problem)
            z = self._nearer(state.z, e, g, state.y, p, problem)
        dz, link = self.exchange.diff(z, state.link, net)  # z_i - z_j [*batch, m, d]
        p1, p2, memory = weights.edges(memory, dz, net, self.exchange)
        s = net.sum(p1 * dz)
        y = state.y + s
        x = z - p2.D * s if isinstance(p2, Ratio) else z - net.sum(p2 * dz)
        return State(x, state.x, y, x if self.local_steps == 1 else z, memory, link)

    def _nearer(self, z: NodeTensor, e: NodeTensor, g: NodeTensor, y: NodeTensor, p: Step, problem: Problem) -> NodeTensor:
        """S steps from z, where the gradient is g."""
        L = problem.lipschitz().unsqueeze(-1)

        def gradient(v: NodeTensor) -> NodeTensor:
            return (g if v is z else problem.grad(v)) + y + (v - e) / p

        return accelerated(z, gradient, problem.prox, 1 / (L + 1 / p), 1 + L * p, self.local_steps)
