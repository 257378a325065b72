"""Accelerated proximal gradient steps: FISTA with restarts, and with a constant momentum where strong convexity is known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from milodo.types import Step

Prox = Callable[[Tensor, Step], Tensor]
"""prox(v, step) = argmin_z r(z) + ‖z - v‖²/(2 step)."""


def momentum(t: Tensor) -> tuple[Tensor, Tensor]:
    """FISTA's β = (t - 1)/t⁺ and t⁺ = (1 + √(1 + 4t²))/2 (Beck and Teboulle 2009)."""
    t_next = (1 + (1 + 4 * t * t).sqrt()) / 2
    return (t - 1) / t_next, t_next


def inner_product(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ over the last axis [*, 1]."""
    return (a * b).sum(-1, keepdim=True)


def fista(
    x: Tensor, gradient: Callable[[Tensor], Tensor], prox: Prox, step: Tensor, iterations: int,
    *, apart: int = 0, inner: Callable[[Tensor, Tensor], Tensor] = inner_product,
) -> Tensor:  # fmt: skip
    """x⁺ = prox_{step r}(e - step ∇f(e)), e⁺ = x⁺ + β (x⁺ - x), from x; each row by itself, and each restarts (t = 1) where its
    momentum points uphill, ⟨e - x⁺, x⁺ - x⟩ > 0 (O'Donoghue and Candès 2015).

    Two restarts lie `apart` iterations apart at least; then it also ends early once no coordinate moves. `step` is [*, 1], and
    `inner` the inner product that decides about restarts: processes that must decide alike give one that rounds alike.
    """
    e = last = x
    t = calm = torch.ones_like(step)
    for k in range(iterations):
        if apart and k % apart == 1 and bool(((x - last).abs() <= torch.finfo(x.dtype).eps * x.abs()).all()):
            break
        last, x = x, prox(e - step * gradient(e), step)
        uphill = (inner(e - x, x - last) > 0) & (calm >= apart)
        t, calm = torch.where(uphill, 1.0, t), torch.where(uphill, 0.0, calm + 1)
        beta, t = momentum(t)
        e = x + beta * (x - last)
    return x


def accelerated(
    x: Tensor, gradient: Callable[[Tensor], Tensor], prox: Prox, step: Step, condition: Step, iterations: int
) -> Tensor:  # fmt: skip
    """The same steps with β = (√κ - 1)/(√κ + 1) for a strongly convex f of condition number κ = 1/(step μ) (Nesterov 2004)."""
    root = condition**0.5
    beta = (root - 1) / (root + 1)
    e = x
    for _ in range(iterations):
        last, x = x, prox(e - step * gradient(e), step)
        e = x + beta * (x - last)
    return x
