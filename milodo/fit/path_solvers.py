"""Ways to solve a path of penalties, for all samples and for those outside of each fold at once.

Each goes on from where it is, and uses again what sites have told each other: moments once for all penalties, curvatures as long
as they help, the state of a method with what its messages remember. What belongs to different folds travels in the same messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from milodo.algorithms import Algorithm
from milodo.checks import Checks
from milodo.errors import InvalidInput
from milodo.fit.costs import of_a_look
from milodo.fit.pooled import Total
from milodo.loop import Stop, solve
from milodo.metrics import Units
from milodo.network import Network, Observer
from milodo.problems import Regularizer
from milodo.problems.sampled import Sampled
from milodo.solvers.line_search import WHOLE, best_length, lengths_like
from milodo.solvers.prox_newton import model_minimum
from milodo.solvers.triangles import packed_size, unpack
from milodo.status import Status
from milodo.types import NodeTensor

STEPS = 40
"""Newton steps for one penalty, at most."""
SLOW = 0.3
"""What a step with old curvature may leave of how far off it was, before new curvature is asked for."""


class PathSolver(ABC):
    """Somewhere on the path: x [instances, n, d], of the nodes held here; instance 0 is the model of all samples."""

    x: NodeTensor
    exact: bool = False
    """Whether every penalty is solved to rounding, whatever the tolerance."""
    coarse: float = 1e-2
    """The loosest tolerance that is worth its saving."""

    @abstractmethod
    def solve(self, reg: Regularizer, tolerance: float) -> None:
        """Goes to the minimum under this penalty, to this tolerance (`optimality_error`)."""

    @abstractmethod
    def restore(self, x: Tensor) -> None:
        """To points [instances, d] where it has been before."""

    @property
    @abstractmethod
    def points(self) -> Tensor:
        """Where the sites are together [instances, d]."""

    @property
    def hessian(self) -> Tensor | None:
        """H̄ of all samples, where it is known and the same everywhere."""
        return None


class MomentsPath(PathSolver):
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
        sums = (total(own)[0] / n).unflatten(-1, (-1, packed_size(d) + d))
        everything = sums.sum(0, keepdim=True)
        if share is not None:
            sums = torch.cat((everything, (everything - sums) / (1 - share).unsqueeze(-1)))
        triangles, self.g = sums.split((packed_size(d), d), dim=-1)
        self.H = unpack(triangles, d)
        self.problem, self.first, self.at = problem, x, x.expand(len(sums), d).clone()

    def solve(self, reg: Regularizer, tolerance: float) -> None:
        for b, (H, g, x) in enumerate(zip(self.H, self.g, self.at, strict=True)):
            self.at[b] = model_minimum(H, g + H @ (x - self.first), x, reg)

    def restore(self, x: Tensor) -> None:
        self.at = x.clone()

    @property
    def x(self) -> NodeTensor:  # type: ignore[override]
        return self.problem.everywhere(self.at)

    @property
    def points(self) -> Tensor:
        return self.at.clone()

    @property
    def hessian(self) -> Tensor:
        return self.H[0]


class NewtonPath(PathSolver):
    """Where curvature changes slowly along the path: Newton's method with curvature that is asked for again only where a step
    left more than SLOW of how far off it was. Folds borrow that of all samples first."""

    coarse = 1e-3

    def __init__(self, problem: Sampled, x: Tensor, total: Total, observer: Observer, n: int, units: Units | None = None) -> None:
        """The problem has an instance for all samples and one for those outside of each fold; x [d] is where all begin."""
        self.problem, self.total, self.observer, self.n = problem, total, observer, n
        self.units = units or Units.of(problem, observer)
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

    def restore(self, x: Tensor) -> None:
        self.at = x.clone()

    def solve(self, reg: Regularizer, tolerance: float) -> None:
        left = list(range(len(self.H)))
        before, short = [torch.inf] * len(self.H), set[int]()
        ask, new = {0} if self.H[0] is None else set[int](), False  # whether curvature was asked for under this penalty
        for _ in range(STEPS):
            g = self._gradients(left)
            off = self._off(reg, left, g, tolerance)
            left = [b for b in left if off[b] > tolerance]
            if not left:
                return
            slow = {b for b in left if off[b] > SLOW * before[b]}
            # Who is slow takes over new curvature of all samples; who is slow with that asks for its own.
            ask |= {b if new else 0 for b in slow | (short & set(left))}
            if ask:
                self._curve(sorted(ask))
            new, ask = new or bool(ask), set()
            before = [off.get(b, far) for b, far in enumerate(before)]
            aims = [model_minimum(H, g[b], self.at[b], reg) for b in left if (H := self.H[b]) is not None]
            short = self._towards(reg, left, torch.stack(aims))

    def _gradients(self, left: list[int]) -> dict[int, Tensor]:
        """Of these instances, where they are: one sum, by which they step and by which all know how far off they are."""
        some = self._only(left)
        own = some.value_and_grad_from(some.look(some.everywhere(self.at[left])))[1]
        mean = self.total(own.movedim(0, -2).flatten(-2))[0] / self.n
        return dict(zip(left, mean.view(len(left), -1), strict=True))

    def _off(self, reg: Regularizer, left: list[int], g: dict[int, Tensor], tolerance: float) -> dict[int, float]:
        """How far off each of these is; with a certificate, where the step that is left is within the tolerance."""

        def of(some: list[int]) -> tuple[Checks, Tensor, Tensor]:
            units = Units(self.units.value[some], self.units.gradient[some], self.units.L[some])
            checks = Checks(self._only(some).under(reg), self.observer, units, alike=True)
            return checks, self.at[some], torch.stack([g[b] for b in some])

        checks, x, gradient = of(left)
        off = dict(zip(left, checks.step(x, gradient).tolist(), strict=True))
        near = [b for b in left if off[b] <= tolerance]
        if near:
            checks, x, gradient = of(near)
            off |= zip(near, checks.off(x, gradient, torch.zeros_like(x[:, 0])).worst.tolist(), strict=True)
        return off

    def _curve(self, ask: list[int]) -> None:
        """New curvature of these instances, by one sum."""
        some = self._only(ask)
        own = some.hessian_from(some.look(some.everywhere(self.at[ask]))).movedim(0, -2).flatten(-2)
        for b, H in zip(ask, unpack((self.total(own)[0] / self.n).view(len(ask), -1), self.problem.d), strict=True):
            self.H[b] = H
            if b == 0:
                self.H = [H if k == 0 else H * share for k, share in enumerate(self.share)]

    def _only(self, instances: list[int]) -> Sampled:
        assert self.problem.weights is not None
        return self.problem.reweighed(self.problem.weights[instances])

    def _towards(self, reg: Regularizer, left: list[int], aims: Tensor) -> set[int]:
        """The best point on the way to each aim, by one sum of values and aims, so that all sites are at the same; who could not
        go all the way needs new curvature."""
        here = self.at[left]
        lengths = lengths_like(here)[:, None, None]
        points = here + lengths * (aims - here)  # [lengths, left, d]
        # Aims differ between sites by roundings, and so does r at points on the way: it is averaged, too.
        values = self._only(left).value(self.problem.everywhere(points)) + reg.value(points).unsqueeze(-1)  # [lengths, left, n]
        own = torch.cat((values.movedim(-1, 0).flatten(1), aims.flatten().expand(values.shape[-1], -1)), dim=-1)
        losses, aims = (self.total(own)[0] / self.n).tensor_split((len(lengths) * len(left),))
        loss, points = losses.view(len(lengths), -1), here + lengths * (aims.view_as(here) - here)
        best = best_length(loss)
        self.at[left] = points[best, torch.arange(len(left))]
        return {b for b, k in zip(left, best.tolist(), strict=True) if k != WHOLE}


@dataclass
class _Continued:
    """A keeper that hands the last state of one penalty to the next, which looks at it afresh."""

    state: Any = None
    method: str = ""
    notes: Callable[[], dict[str, Any]] = dict
    restored: Callable[[dict[str, Any] | None], object] = bool

    def last(self, first: Any) -> tuple[int, Any] | None:
        return None if self.state is None else (0, self.state)

    def keep(self, k: int, state: Any) -> None:
        self.state = state


class MethodPath(PathSolver):
    """Any method, going on from its last state under the next penalty: steps, duals and what messages remember stay."""

    def __init__(
        self, problem: Sampled, method: Algorithm, x: Tensor, net: Network, observer: Observer, *, steps: int, every: int,
        units: Units | None = None,
    ) -> None:  # fmt: skip
        """The problem has an instance for all samples and one for those outside of each fold; x [d] is where all begin."""
        self.problem, self.method, self.net, self.observer = problem, method, net, observer
        self.steps, self.every = steps, every
        self.units = units or Units.of(problem, observer)
        self.at = x.expand(*problem.batch, problem.d)
        self.x = problem.everywhere(x.expand(*problem.batch, problem.d)).clone()
        self.continued = _Continued()

    def restore(self, x: Tensor) -> None:
        self.at, self.x = x, self.problem.everywhere(x).clone()
        self.continued = _Continued()

    def solve(self, reg: Regularizer, tolerance: float) -> None:
        price = of_a_look(self.method, self.net)
        stop = Stop(steps=self.steps, tolerance=tolerance, every=self.every, price=price, proven=False)
        since = self.net.traffic.snapshot()
        result = solve(
            self.method, self.problem.under(reg), self.net, stop, x0=self.x, observer=self.observer, keeper=self.continued,
            units=self.units,
        )  # fmt: skip
        self.net.traffic.widen(since, len(self.x))
        if result.status is Status.DIVERGED:
            raise InvalidInput(
                f"{self.method.label} diverged on the path of penalties. Take a smaller step, or let the method be chosen.",
                "method", "set",
            )  # fmt: skip
        assert result.look is not None
        self.x, self.at = result.x, result.look.point

    @property
    def points(self) -> Tensor:
        return self.at.clone()
