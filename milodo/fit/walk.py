"""Ways to walk down a path of penalties, for all samples and for those outside of each fold at once.

Each goes on from where it is, and uses again what sites have told each other: moments once for all penalties, curvatures as long
as they help, the state of a method with what its messages remember. What belongs to different folds travels in the same messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from milodo.algorithms import Algorithm
from milodo.errors import InvalidInput
from milodo.fit.newton import LENGTHS, minimise
from milodo.fit.pooled import Total
from milodo.loop import Stop, solve
from milodo.metrics import Units, mean_point, off_by
from milodo.network import Network, Observer
from milodo.problems import Regularizer
from milodo.problems.sampled import Sampled
from milodo.status import Status
from milodo.types import NodeTensor

STEPS = 40
"""Newton steps for one penalty, at most."""
SLOW = 0.3
"""What a step with old curvature may leave of how far off it was, before new curvature is asked for."""


class Walk(ABC):
    """Somewhere on the path: x [instances, n, d], of the nodes held here; instance 0 is the model of all samples."""

    x: NodeTensor
    exact: bool = False
    """Whether every penalty is solved to rounding, whatever the tolerance."""
    coarse: float = 1e-2
    """The loosest tolerance that is worth its saving."""

    @abstractmethod
    def to(self, reg: Regularizer, tolerance: float) -> None:
        """Goes to the minimum under this penalty, to this tolerance (`off_by`)."""

    @abstractmethod
    def back(self, x: Tensor) -> None:
        """To points [instances, d] where it has been before."""

    @property
    @abstractmethod
    def points(self) -> Tensor:
        """Where the sites are together [instances, d]."""

    @property
    def curvature(self) -> Tensor | None:
        """H̄ of all samples, where it is known and the same everywhere."""
        return None


class Moments(Walk):
    """For the squared loss: XᵀX and Xᵀy of every fold, summed once over all sites. Those outside of a fold are all but the
    fold's, and every penalty is a small problem that each site solves by itself."""

    exact = True

    def __init__(self, problem: Sampled, inside: Tensor | None, share: Tensor | None, x: Tensor, total: Total, n: int) -> None:
        """`inside` are the weights of the samples in each fold [folds, n, N], if there are folds; x [d] is where all begin."""
        d = problem.d
        folds = problem if inside is None else problem.reweighed(inside)
        u = problem.look(problem.everywhere(x))
        own = torch.cat((folds.hessian_from(u), folds.value_and_grad_from(u)[1]), dim=-1)  # [folds or none, n, numbers]
        own = own if inside is None else own.movedim(0, -2).flatten(-2)
        sums = (total(own)[0] / n).unflatten(-1, (-1, d * (d + 3) // 2))
        everything = sums.sum(0, keepdim=True)
        if share is not None:
            sums = torch.cat((everything, (everything - sums) / (1 - share).unsqueeze(-1)))
        halves, self.g = sums.split((d * (d + 1) // 2, d), dim=-1)
        rows, columns = torch.triu_indices(d, d)
        self.H = halves.new_zeros(len(halves), d, d)
        self.H[:, rows, columns] = self.H[:, columns, rows] = halves
        self.problem, self.first, self.at = problem, x, x.expand(len(halves), d).clone()

    def to(self, reg: Regularizer, tolerance: float) -> None:
        for b, (H, g, x) in enumerate(zip(self.H, self.g, self.at, strict=True)):
            self.at[b] = minimise(H, g + H @ (x - self.first), x, reg)

    def back(self, x: Tensor) -> None:
        self.at = x.clone()

    @property
    def x(self) -> NodeTensor:  # type: ignore[override]
        return self.problem.everywhere(self.at)

    @property
    def points(self) -> Tensor:
        return self.at.clone()

    @property
    def curvature(self) -> Tensor:
        return self.H[0]


class Newton(Walk):
    """Where curvature changes slowly along the path: Newton's method with curvature that is asked for again only where a step
    left more than SLOW of how far off it was. Folds borrow that of all samples first."""

    coarse = 1e-3

    def __init__(self, problem: Sampled, x: Tensor, total: Total, observer: Observer, n: int) -> None:
        """The problem has an instance for all samples and one for those outside of each fold; x [d] is where all begin."""
        self.problem, self.total, self.observer, self.n = problem, total, observer, n
        self.units = Units.of(problem, observer)
        (instances,) = problem.batch
        self.at = x.expand(instances, problem.d).clone()
        assert problem.weights is not None
        weight = observer.mean(problem.by_node(problem.weights), dim=-1)
        self.share = weight / weight[0]
        """Of the curvature of all samples that an instance may expect to have."""
        self.H: list[Tensor | None] = [None] * instances

    @property
    def x(self) -> NodeTensor:  # type: ignore[override]
        return self.problem.everywhere(self.at)

    @property
    def points(self) -> Tensor:
        return self.at.clone()

    def back(self, x: Tensor) -> None:
        self.at = x.clone()

    def to(self, reg: Regularizer, tolerance: float) -> None:
        problem = self.problem.under(reg)
        before, short = [torch.inf] * len(self.H), set[int]()
        ask, new = {0} if self.H[0] is None else set[int](), False  # whether curvature was asked for under this penalty
        for _ in range(STEPS):
            off = self.observer.agreed(off_by(problem, self.x, self.observer, self.units).worst).tolist()
            left = [b for b, far in enumerate(off) if far > tolerance]
            if not left:
                return
            slow = {b for b in left if off[b] > SLOW * before[b]}
            # Who is slow takes over new curvature of all samples; who is slow with that asks for its own.
            ask |= {b if new else 0 for b in slow | (short & set(left))}
            g = self._told(problem, left, sorted(ask))
            new, ask, before = new or bool(ask), set(), off
            aims = [minimise(H, g[b], self.at[b], reg) for b in left if (H := self.H[b]) is not None]
            short = self._towards(problem, left, torch.stack(aims))

    def _told(self, problem: Sampled, left: list[int], ask: list[int]) -> dict[int, Tensor]:
        """Gradients of the instances that are left, and new curvatures: one sum."""
        d = problem.d
        seen = problem.look(self.x)
        own = self._only(left).value_and_grad_from(seen[left])[1].movedim(0, -2).flatten(-2)
        if ask:
            own = torch.cat((own, self._only(ask).hessian_from(seen[ask]).movedim(0, -2).flatten(-2)), dim=-1)
        mean = self.total(own)[0] / self.n
        gradients, halves = mean[: len(left) * d].view(-1, d), mean[len(left) * d :].view(-1, d * (d + 1) // 2)
        rows, columns = torch.triu_indices(d, d)
        for b, half in zip(ask, halves, strict=True):
            H = half.new_zeros(d, d)
            H[rows, columns] = H[columns, rows] = half
            self.H[b] = H
            if b == 0:
                self.H = [H if k == 0 else H * share for k, share in enumerate(self.share)]
        return dict(zip(left, gradients, strict=True))

    def _only(self, instances: list[int]) -> Sampled:
        assert self.problem.weights is not None
        return self.problem.reweighed(self.problem.weights[instances])

    def _towards(self, problem: Sampled, left: list[int], aims: Tensor) -> set[int]:
        """The best point on the way to each aim, by one sum of values; who could not go all the way needs new curvature."""
        here = self.at[left]
        lengths = torch.tensor((0.0, *LENGTHS), dtype=here.dtype)
        points = here + lengths[:, None, None] * (aims - here)  # [lengths, left, d]
        # Points differ between sites by roundings, and so does r there: it is averaged, too, so that all decide alike.
        values = self._only(left).value(problem.everywhere(points)) + problem.reg.value(points).unsqueeze(
            -1
        )  # [lengths, left, n]
        loss = (self.total(values.movedim(-1, 0).flatten(1))[0] / self.n).view(len(lengths), -1)
        rounding = 10 * torch.finfo(loss.dtype).eps * loss[0].abs()
        best = loss.argmin(0)
        whole = (loss[1] <= loss[0] + rounding) & (loss[1] <= loss.min(0).values + rounding)
        best = torch.where(whole, 1, best)
        self.at[left] = points[best, torch.arange(len(left))]
        return {b for b, k in zip(left, best.tolist(), strict=True) if k != 1}


@dataclass
class _GoesOn:
    """A keeper that hands the last state of one penalty to the next."""

    state: Any = None

    def last(self, first: Any) -> tuple[int, Any] | None:
        return None if self.state is None else (0, self.state)

    def keep(self, k: int, state: Any) -> None:
        self.state = state


class Iterated(Walk):
    """Any method, going on from its last state under the next penalty: steps, duals and what messages remember stay."""

    def __init__(
        self, problem: Sampled, method: Algorithm, x: Tensor, net: Network, observer: Observer, *, steps: int, every: int
    ) -> None:
        """The problem has an instance for all samples and one for those outside of each fold; x [d] is where all begin."""
        self.problem, self.method, self.net, self.observer = problem, method, net, observer
        self.steps, self.every = steps, every
        self.x = problem.everywhere(x.expand(*problem.batch, problem.d)).clone()
        self.goes_on = _GoesOn()

    def back(self, x: Tensor) -> None:
        self.x = self.problem.everywhere(x).clone()
        self.goes_on = _GoesOn()

    def to(self, reg: Regularizer, tolerance: float) -> None:
        stop = Stop(steps=self.steps, tolerance=tolerance, every=self.every)
        since = self.net.traffic.snapshot()
        result = solve(
            self.method, self.problem.under(reg), self.net, stop, x0=self.x, observer=self.observer, keeper=self.goes_on
        )
        self.net.traffic.widen(since, len(self.x))
        if result.status is Status.DIVERGED:
            raise InvalidInput(
                f"{self.method.label} diverged on the path of penalties. Take a smaller step, or let the method be chosen.",
                "method", "set",
            )  # fmt: skip
        self.x = result.x

    @property
    def points(self) -> Tensor:
        return mean_point(self.x, self.observer)
