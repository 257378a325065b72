"""min_x (1/n) Σ_i f_i(x) + r(x): what a problem and a family of problems must offer (eq. objective-composite)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from milodo.errors import InvalidInput, quoted, unknown, whole
from milodo.network import Observer
from milodo.problems.regularizers import Regularizer
from milodo.solvers.objective import Objective
from milodo.types import NodeScalar, NodeTensor, Point, Step


class Problem(Objective):
    """The f_i of the nodes held here, and the shared r. Leading axes of the data are instances."""

    reg: Regularizer
    n: int
    """Nodes held here."""
    d: int
    batch: tuple[int, ...]
    """Shape of the axis (or axes) of instances; () for one problem."""
    dtype: torch.dtype
    device: torch.device
    tensors: tuple[int, ...] | None = None
    """Numbers of coordinates, in order, of the parts of x that belong together, as the tensors of a network's parameters; None
    where x is one part."""
    column: float | None = None
    """A bound of the root mean square over all samples of any column of data, where every process knows the same one. Then a
    certificate for unpenalised intercepts needs no sum of vectors."""

    @abstractmethod
    def value(self, x: NodeTensor) -> NodeScalar:
        """f_i(x_i) at every node."""

    @abstractmethod
    def grad(self, x: NodeTensor) -> NodeTensor:
        """∇f_i(x_i) at every node."""

    def look(self, x: NodeTensor) -> Tensor:
        """What f_i sees of x_i [*batch, n, *]: a linear map of it, all of it unless a problem sees less.

        An affine combination of looks is the look of the combination, so who has two looks need not take a third, and looking is
        the better half of the work where there is much data. A problem whose data change with the iteration sees x itself.
        """
        return x

    def value_from(self, u: Tensor) -> NodeScalar:
        """f_i where f_i sees u."""
        return self.value(u)

    def value_and_grad_from(self, u: Tensor) -> tuple[NodeScalar, NodeTensor]:
        """f_i and ∇f_i where f_i sees u."""
        return self.value(u), self.grad(u)

    def between(self, x: Point, other: Point, lengths: Tensor) -> Tensor:
        """f_i at x + t (other - x) for every t of the lengths [lengths, n], x and other being points that all nodes share."""
        return self.value(self.everywhere(x + lengths.unsqueeze(-1) * (other - x)))

    @abstractmethod
    def lipschitz(self) -> NodeScalar:
        """L_i >= the Lipschitz constant of ∇f_i [*batch, n]."""

    @property
    def knows_lipschitz(self) -> bool:
        """Whether lipschitz() can answer."""
        return True

    def half(self) -> tuple[NodeScalar, NodeScalar, NodeScalar] | None:
        """How many samples a node has, the Lipschitz constant of half of them, and the largest trace that the Hessian of all can
        have; None where f_i is no mean over samples."""
        return None

    def hessian_from(self, u: Tensor) -> Tensor:
        """∇²f_i where f_i sees u, its upper half row by row [*batch, n, d (d + 1) / 2]."""
        raise InvalidInput(
            f"{type(self).__name__} does not know its Hessian, and Newton's method is made of it. Use tree-apg instead."
        )

    @property
    def knows_hessian(self) -> bool:
        """Whether hessian_from() can answer."""
        return False

    @property
    def quadratic(self) -> bool:
        """Whether every f_i is, so that one Hessian is all there is."""
        return False

    @abstractmethod
    def at(self, nodes: Sequence[int]) -> Self:
        """The same problem, holding only these rows."""

    def at_step(self, k: int) -> Problem:
        """What methods see of it in iteration k: itself, unless each iteration has a minibatch of its own."""
        return self

    def prox(self, v: NodeTensor, step: Step) -> NodeTensor:
        return self.reg.prox(v, step)

    def zeros(self) -> NodeTensor:
        return torch.zeros(*self.batch, self.n, self.d, dtype=self.dtype, device=self.device)

    def start(self) -> NodeTensor:
        """Where methods begin unless told otherwise: the point of r's domain nearest to 0, which is 0 unless r has walls."""
        return self.prox(self.zeros(), 1.0)

    def everywhere(self, x: Point) -> NodeTensor:
        """One point, put at every node held here."""
        return x.unsqueeze(-2).expand(*x.shape[:-1], self.n, x.shape[-1])

    def objective(self, x: Point, observer: Observer) -> Tensor:
        """f(x) + r(x) at one common point, with f = (1/n) Σ f_i over all nodes of the network."""
        return observer.mean(self.value(self.everywhere(x)), dim=-1) + self.reg.value(x)

    def empty(self, observer: Observer) -> Point:
        """The model that uses no feature; what its objective is, is the natural unit of gaps."""
        return self.start()[..., 0, :]

    def certificate(
        self, x: Point, observer: Observer, gradient: Point | None = None, curvature: Tensor | None = None
    ) -> Tensor | None:
        """A proven bound of objective(x) - minimum, one number an instance, the same in every process; None where the problem
        knows none. What is known already need not be summed again: ∇f(x), and the columns of ∇²f(x) that belong to intercepts
        [*batch, d, intercepts]."""
        return None

    @property
    def certifies(self) -> bool:
        """Whether certificate() can be anything but None."""
        return False

    def settled(self, x: Point, observer: Observer) -> Point:
        """x with the intercepts, if there are any, that are best beside the other coefficients."""
        return x

    def metrics(self, x: NodeTensor, observer: Observer) -> dict[str, Tensor]:
        """What else is worth recording of an iterate, by name, one number an instance: an accuracy, for one."""
        return {}


class Family(ABC):
    """A distribution of problems; an instance is named by its seed."""

    n: int
    d: int
    judged_in: ClassVar[torch.dtype] = torch.float64
    """The precision in which runs are judged, whatever precision they run in."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def sample(
        self, seeds: Sequence[int], nodes: Sequence[int] | None = None,
        *, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu",
    ) -> Problem:  # fmt: skip
        """The instances with these seeds, [len(seeds), n, ...]. Only the slices of `nodes` are built."""

    def memory(self, instances: int = 1, nodes: int | None = None, dtype: torch.dtype = torch.float64) -> int:
        """Bytes of data of so many instances, at so many nodes (all unless given); 0 where a family cannot say."""
        return 0


def stream(*key: int) -> np.random.Generator:
    """Random numbers named by a key, the same in every process."""
    return np.random.default_rng(list(key))


PURPOSES = {"test": 0, "tuning": 1, "training": 2, "validation": 3}
MOST_INSTANCES = 10**6 - 1
"""For one purpose."""


def instance_seeds(purpose: str, count: int, seed: int = 0) -> list[int]:
    """Seeds of instances for one purpose; those of two purposes never meet."""
    if purpose not in PURPOSES:
        raise unknown("purpose", purpose, PURPOSES)
    if whole("the number of instances", count) > MOST_INSTANCES:
        raise InvalidInput(f"{count} instances for {purpose}: at most {MOST_INSTANCES:,} have seeds of their own.")
    first = (whole("seed", seed) * len(PURPOSES) + PURPOSES[purpose]) * (MOST_INSTANCES + 1)
    return [first + k for k in range(count)]


def purpose_of(seed: int) -> str:
    """What an instance with this seed is for: data sets with a part for tests draw test instances from there, and others not."""
    return list(PURPOSES)[seed // (MOST_INSTANCES + 1) % len(PURPOSES)]


def checked_seeds(seeds: Sequence[int], family: str) -> list[int]:
    """Seeds of instances, at least one; each names a stream of numbers, so it must be whole and not negative."""
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise InvalidInput(f"{family}: seeds is {quoted(seeds)}, but it must be a list of whole numbers, one for each instance.")
    checked = [whole(f"{family}: a seed", seed) for seed in seeds]
    if not checked:
        raise InvalidInput(f"{family}: asked for no instances. Give at least one seed.")
    return checked


def check_finite(what: str, x: Tensor) -> None:
    # A sum carries NaN and Inf through and, unlike isfinite, needs no second copy of the data; large numbers may overflow it.
    if math.isfinite(x.sum().item()):
        return
    if not all(math.isfinite(v) for v in (x.amin().item(), x.amax().item())):
        raise InvalidInput(f"{what} contains NaN or Inf. Clean the data first: one such value spreads to every node.")
