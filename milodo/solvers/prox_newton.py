"""Proximal Newton on one machine: what minimises a quadratic model of f beside r, and one semismooth Newton step.

A model is m(z) = ⟨g, z - x⟩ + ½ (z - x)ᵀH(z - x). Beside Σ w_l |z_l| + m_l/2 z_l² its minimum is found exactly, by a search over
signs; beside any other r by FISTA.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from milodo.network.sums import in_order
from milodo.solvers.fista import Prox, fista
from milodo.solvers.objective import Objective, Penalty
from milodo.types import Point

BESIDE = 1e-100
"""So near to the kink at 0 that the slope of r is that of its absolute values alone."""
SIGNS = 20
"""Sets of signs that are looked at, at most, for each unknown."""
FALLS, FAR = 1e-10, 1e6
"""From which part of all slopes on one along which nothing bends counts; and how far to look along it for a sign that changes."""
FLAT = 1e-12
"""Of the largest curvature of intercepts: what rounding leaves along their sum, which changes no probability, is less."""
NEWTON_LIMIT = 6000
"""Free coordinates above which a dense Newton system is too large, and first-order steps go on alone."""
INNER = 500
"""Accelerated proximal gradients towards the minimum of a model, at most."""
APART = 20
"""Of these, between two restarts, at least."""
SLIGHT = (4 / INNER) ** 2
"""Of the largest eigenvalue of a model: how far below zero others may lie. Steps grow by 1 + √SLIGHT there, e⁴ in all, and not by
more than r and the next test allow."""


def model_minimum(H: Tensor, g: Tensor, x: Tensor, reg: Penalty) -> Tensor:
    """argmin_z m(z) + r(z) for r = Σ w_l |z_l| + m_l/2 z_l²; intercepts, which r leaves free, are eliminated."""
    if reg.unpenalized:
        d = len(x) - reg.unpenalized
        h, g0 = H[:d, d:], g[d:]
        solved = intercept_inverse(H[d:, d:]) @ torch.column_stack((h.mT, g0))  # [intercepts, d + 1]
        z = model_minimum(H[:d, :d] - h @ solved[:, :d], g[:d] - h @ solved[:, d], x[:d], reg.penalized)
        return torch.cat((z, x[d:] - solved[:, d] - solved[:, :d] @ (z - x[:d])))
    curvature = reg.curvature(x)
    w = (reg.slope(torch.full_like(x, BESIDE)) - BESIDE * curvature).clamp(min=0)
    return sparse_quadratic(H + torch.diag(curvature), H @ x - g, w, x)


def sparse_quadratic(H: Tensor, c: Tensor, w: Tensor, z: Tensor) -> Tensor:
    """argmin_z ½ zᵀHz - cᵀz + Σ w_l |z_l| by a search over signs (Lee et al. 2007), exact however alike columns are.

    With the signs θ of the active coordinates fixed, the minimum solves H_AA z_A = c_A - w_A θ_A. On the way there the objective
    falls until the first coordinate changes its sign, and perhaps further: the best of the points where one does is taken.
    """
    z, theta = z.clone(), torch.where(w > 0, z.sign(), 1.0)  # without a penalty a coordinate is active, whatever its sign
    rounding = 1e-14 * float((H.abs() @ z.abs() + c.abs() + w).max())
    let_in = torch.zeros(len(c), dtype=torch.long)

    def value(point: Tensor) -> float:
        return float(point @ (H @ point) / 2 - c @ point + (w * point.abs()).sum())

    for _ in range(SIGNS * len(c)):
        aim = _aim(H, c - w * theta, z, theta != 0)
        turned = (theta != 0) & (w > 0) & (aim * theta < 0)
        if bool(turned.any()):
            points = [aim] if bool(torch.isfinite(aim).all()) else []
            for j in torch.nonzero(turned).flatten().tolist():
                point = z + z[j] / (z[j] - aim[j]) * (aim - z) if z[j] != 0 else z.clone()
                point[j] = 0.0
                points.append(point)
            z = min(points, key=value)
            theta = torch.where(w > 0, z.sign(), theta)
            continue
        z = aim
        slope = H @ z - c
        excess = torch.where((theta == 0) & (let_in < SIGNS), slope.abs() - w, 0.0)
        worst = int(excess.argmax())
        if float(excess[worst]) <= rounding:
            return z
        theta[worst] = -slope[worst].sign()
        let_in[worst] += 1
    return z


def _aim(H: Tensor, right: Tensor, z: Tensor, active: Tensor) -> Tensor:
    """z with its active coordinates where ½ zᵀHz - rightᵀz is least; far along a direction in which it falls for ever, if any."""
    aim = z.clone()
    if not bool(active.any()):
        return aim
    H, right, here = H[active][:, active], right[active], z[active]
    values, vectors = torch.linalg.eigh(H)
    known = values > len(right) * torch.finfo(H.dtype).eps * values[-1].clamp(min=0)
    lacking = vectors.mT @ (right - H @ here)  # along the eigenvectors
    free = torch.where(known, 0.0, lacking)
    if float(free.abs().max()) > FALLS * float(right.abs().max()):
        downhill = vectors @ free
        aim[active] = here + FAR * (float(here.abs().max()) or 1.0) * downhill / downhill.abs().max()
    else:
        aim[active] = here + vectors @ torch.where(known, lacking / torch.where(known, values, 1.0), 0.0)
    return aim


def damped_model_minimum(H: Tensor, g: Tensor, x: Tensor, prox: Prox, delta: Tensor) -> Tensor:
    """argmin_z m(z) + δ/2 ‖z - x‖² + r(z) for any r and any rows x [*, d] at once, by FISTA from x; δ is [*, 1]."""
    values = torch.linalg.eigvalsh(H.detach())
    # Rounding may have left eigenvalues below zero; what is so little that the steps do not grow along it does no harm.
    delta = delta + (-values[..., :1] - SLIGHT * values[..., -1:]).clamp(min=0)
    step = 1 / (values[..., -1:] + delta).clamp(min=torch.finfo(x.dtype).tiny)

    def gradient(z: Tensor) -> Tensor:
        v = z - x
        return g + (v.unsqueeze(-2) @ H).squeeze(-2) + delta * v

    return fista(x, gradient, prox, step, INNER, apart=APART, inner=lambda a, b: in_order(a * b))


def semismooth_step(problem: Objective, x: Point, L: Tensor) -> Point:
    """One semismooth Newton step on x = prox_{r/L}(x - ∇f(x)/L).

    Coordinates whose prox p sits at a kink of ρ go there. On the free others, with H = ∇²f and that move put in, solve
        (H + ρ'') δ = -(∇f(x) + ρ'(p) + ρ'' (x - p)).
    Each instance on its own, because their free sets differ.
    """
    gradient, _ = problem.exact_gradient(x)
    target = problem.reg.prox(x - gradient / L, 1 / L)
    free, curvature = problem.reg.free(target), problem.reg.curvature(x)
    remainder = gradient + problem.reg.slope(target) + curvature * (x - target)
    step = target - x
    for index in np.ndindex(problem.batch):
        where = free[index]
        if not 0 < int(where.sum()) <= NEWTON_LIMIT:
            continue
        H, H_fixed = problem.hessian_blocks(x, index, where, step[index] * ~where)
        H.diagonal().add_(curvature[index][where])
        right = -(remainder[index][where] + H_fixed)
        step[index][where] = shortest_solution(H, right)  # singular where the data do not determine x
    return x + step


def intercept_inverse(H: Tensor) -> Tensor:
    """The pseudo-inverse of the curvature of intercepts alone, which may be flat along their sum."""
    return torch.linalg.pinv(H, rtol=FLAT, hermitian=True)


def shortest_solution(H: Tensor, right: Tensor) -> Tensor:
    """H⁻¹ right for H ⪰ 0; the shortest solution where H is singular."""
    factor, failed = torch.linalg.cholesky_ex(H)
    if int(failed) == 0:
        return torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
    return torch.linalg.lstsq(H, right.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
