"""Prox-LEAD: proximal Exact Diffusion that says two bits a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch

from milodo.algorithms.base import Algorithm
from milodo.algorithms.parameters import Fraction, Given, Space, StepSize
from milodo.errors import InvalidInput
from milodo.network import Dithered, Format, Network
from milodo.network.memory import Memory, replicas_of
from milodo.network.replicas import compared
from milodo.problems import Problem
from milodo.types import NodeTensor, Step


class State(NamedTuple):
    x: NodeTensor
    y: NodeTensor
    """Dual variable; sums to zero over the nodes."""
    replicas: Any
    """h, as both ends of every link have it."""
    k: int
    """Iterations so far: by them chance is drawn, and replicas are compared."""
    alarm: int
    """What is known of replicas that differ (`Compared`)."""
    tried: NodeTensor
    """x when they were last compared."""
    good: NodeTensor
    """x when they were last compared and known not to differ."""


@dataclass(frozen=True, kw_only=True)
class ProxLEAD(Algorithm):
    """Li, Liu, Tang, Yan and Yuan 2021 (arXiv 2108.04448), their D being y and their γ being σ, from y⁰ = h⁰ = 0:

        z  = x - η(∇f(x) + y)
        q  = C(z - h)                    is sent: b bits a number, rounded by chance, right on average (network/dithered.py)
        ẑ  = h + q,   h⁺ = h + αq        at both ends
        y⁺ = y + (σ/2η) lap(ẑ)
        x⁺ = prox_{ηr}(z - (σ/2) lap(ẑ))

    Where C loses nothing and σ = 1 this is Prox-ED. Replicas take over the share α of what was said, as rounding is part of it.

    Σy = 0, as lap sums to zero. At a fixed point q = 0, which C makes of nothing but 0, as the largest coordinate is never
    rounded away: so z = h = ẑ; lap(z) = 0, so z is the same at all nodes, and x = prox_{ηr}(z), too; and the mean of
    z = x - η(∇f_i(x) + y_i) over all nodes says that x = prox_{ηr}(x - η∇f(x)).

    The paper keeps Σ_j w_ij h_j instead of every h_j, which is less to store. Here each link has its replica, and one whose
    message was lost changes at neither end: links may fail.
    """

    eta: Step
    """Step size η."""
    alpha: Step
    """Damping α of the replicas."""
    sigma: Step
    """Dual step σ."""
    bits: int
    """b."""

    label: ClassVar[str] = "Prox-LEAD"
    exact: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    space: ClassVar[Space] = {
        "eta": StepSize(1 / 64, 4), "alpha": Fraction(0.2, 1), "sigma": Fraction(0.25, 1), "bits": Given((2,)),
    }  # fmt: skip
    rounds: ClassVar[int] = 1
    State = State

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.bits <= 10:
            raise InvalidInput(f"{self.label}: bits is {self.bits}, but between 2 and 10 are packed.")

    @classmethod
    def safe(cls, L: float, net: Network, mean: float | None = None) -> Self:
        """η = 1/L as Prox-ED; α = ½ and σ = 1 as in the paper's experiments; b = 2."""
        return cls(eta=1 / L, alpha=0.5, sigma=1.0, bits=2)

    def init(self, x0: NodeTensor, problem: Problem, net: Network) -> State:
        memory = Memory(self.codec(x0, net, 0), None)
        net.remembering(memory).lap(x0.detach())  # sends nothing: only to know where there are replicas
        return State(x0, torch.zeros_like(x0), memory.replicas, 0, 0, x0, x0)

    def step(self, state: State, problem: Problem, net: Network) -> State:
        z = state.x - self.eta * (problem.grad(state.x) + state.y)
        memory = Memory(self.codec(z, net, state.k), state.replicas, self.alpha)
        v = net.remembering(memory).lap(z)
        y = state.y + self.sigma / (2 * self.eta) * v
        x = problem.prox(z - self.sigma / 2 * v, self.eta)
        return state._replace(x=x, y=y, replicas=memory.replicas, k=state.k + 1)

    @torch.no_grad()
    def in_step(self, state: State, problem: Problem, net: Network) -> State:
        now = compared(net, state.replicas, (), k=state.k, alarm=state.alarm)
        x, y = (state.good, torch.zeros_like(state.y)) if now.anew else (state.x, state.y)
        tried = x if now.begun else state.tried
        return State(x, y, replicas_of(now.slots), state.k, now.alarm, tried, tried if now.agreed else state.good)

    def codec(self, z: NodeTensor, net: Network, k: int) -> Format:
        """C of iteration k."""
        u = net.dither(z.shape[-1], k)
        return Dithered(self.bits, u if net.holds else net.spread(u))  # where links fail each has a message of its own
