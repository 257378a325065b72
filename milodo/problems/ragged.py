"""Problems whose nodes have numbers of samples of their own: what a node of few samples costs does not depend on the others.

A pass over the rows is what large data cost. At a point that all nodes share one pass finds predictions, losses and gradients,
and they are remembered: a line search, a stopping rule and the next step ask for the same.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Self

import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network import Observer
from milodo.problems.in_blocks import InBlocks, Origin
from milodo.problems.regularizers import Regularizer
from milodo.problems.rows import Block, Rows
from milodo.problems.sampled import Sampled
from milodo.solvers.triangles import last_column
from milodo.types import NodeScalar, NodeTensor, Point

__all__ = ["Origin", "Ragged", "Rows", "ragged"]
ULPS = 4 * torch.finfo(torch.float64).eps
"""Of the largest coordinate: what points that should be the same may differ by. Predictions are rounded by more."""
SHORT = 1e-9
"""Steps of an intercept so short that their square is rounding: the gradient changes by the step times its slope."""
KEPT = 2
"""Points of which what was found is remembered: where a method is, and where it might go."""


@dataclass
class Seen:
    """A point that all nodes share, and what is known of it."""

    x: Point
    u: Tensor
    value: NodeScalar | None = None
    grad: NodeTensor | None = None
    bent: NodeTensor | None = None
    """(1/N) Σ_j s_ij ℓ''_ij a_ij: how the gradient changes with the intercept."""


class Ragged(InBlocks):
    """A problem whose nodes have numbers of samples of their own: `ragged(LeastSquares)(rows, b, reg, weights)`."""

    def __init__(
        self, rows: Rows, b: Tensor, reg: Regularizer, weights: Tensor, origins: dict[int, Origin] | None = None
    ) -> None:
        super().__init__(rows, b, reg, weights, origins)
        self._seen: list[Seen] = []
        self._spared = (b.shape[-1] if self.outputs else 1) * rows.intercept

    def reweighed(self, weights: Tensor) -> Self:
        other = super().reweighed(weights)
        vars(other).pop("_cross", None)
        other._seen = []
        return other

    def _common(self, x: NodeTensor) -> bool:
        """Whether x is one point that all nodes share, and no gradient flows through it."""
        return x.ndim == 2 and not torch.is_grad_enabled() and (x.stride(0) == 0 or bool((x == x[:1]).all()))

    @property
    def _simple(self) -> bool:
        """Whether there is one output, and one weight for each sample."""
        return not self.outputs and self.weights is not None and self.weights.ndim == 2

    @property
    def _bends(self) -> bool:
        """Whether there is an intercept that a certificate asks about."""
        return self.rows.intercept and self._simple

    def _see(self, x: Point) -> Seen:
        """What is known of a point that all nodes share: a pass over the rows, unless only intercepts make it another than one
        that is known."""
        found = next((seen for seen in self._seen if same(seen.x, x)), None)
        if found is None:
            found = self._beside(x) or self._passed(x)
            self._seen = [found, *self._seen[: KEPT - 1]]
        return found

    def _beside(self, x: Point) -> Seen | None:
        features, shift = x.tensor_split([self.d - self._spared])
        if not bool(features.any()):
            flat = torch.zeros_like(self.b)
            found = Seen(x.clone(), flat + shift if self._spared else flat)
            if self._simple and self._known and self.canonical and (self._spared or self.quadratic):  # type: ignore[attr-defined]
                self._from_origins(found)
            return found
        for seen in self._seen if self._spared else ():
            if torch.equal(seen.x[: -self._spared], features):
                step = shift - seen.x[-self._spared :]
                found = Seen(x.clone(), seen.u + step)
                if self._simple and (self.quadratic or float(step.abs()) <= SHORT):
                    found.bent = self._bent(seen)
                    found.grad = self._grad(seen) + step * found.bent
                return found
        return None

    def _passed(self, x: Point) -> Seen:
        z, after = self.everywhere(x) * self.inverse, -1 - self.outputs
        bends = self._bends and not self.quadratic

        def part(block: Any, at: Block) -> tuple[Tensor, Tensor]:
            u = block.predict(z[at.group.nodes])
            value, v = block.by_node(block.weigh(block.loss(u))), block.loss_slope(u)
            pulled = block.pull_back(torch.stack((v, block.loss_curvature(u)))).unbind(0) if bends else [block.pull_back(v)]
            return u.flatten(after - 1, after), torch.cat((value.unsqueeze(-1), *pulled), dim=-1)

        parts = list(self._over(part))
        numbers = self._added((group, own) for group, (_, own) in parts)
        value, grad, *bent = numbers.split((1, self.d, self.d) if bends else (1, self.d), dim=-1)
        u = torch.cat([own for _, (own, _) in parts], dim=after).unsqueeze(after - 1)
        return Seen(x.clone(), u, value.squeeze(-1), grad * self.inverse, *(own * self.inverse for own in bent))

    def _value(self, seen: Seen) -> NodeScalar:
        if seen.value is None:
            own = self._of_losses(lambda block, u: block.by_node(block.weigh(block.loss(u))).unsqueeze(-1), seen.u)
            seen.value = own.squeeze(-1)
        return seen.value

    def _grad(self, seen: Seen) -> NodeTensor:
        if seen.grad is None:
            if self.quadratic or not self._bends:
                seen.grad = self.pull_back(self.loss_slope(seen.u))
            else:
                both = torch.stack((self.loss_slope(seen.u), self.loss_curvature(seen.u)))  # type: ignore[attr-defined]
                seen.grad, seen.bent = self.pull_back(both).unbind(0)
        return seen.grad

    def _bent(self, seen: Seen) -> NodeTensor:
        if seen.bent is None and self.quadratic:
            seen.bent = last_column(self._gram, self.d)
        elif seen.bent is None:
            seen.bent = self.pull_back(self.loss_curvature(seen.u))  # type: ignore[attr-defined]
        return seen.bent

    @property
    def _known(self) -> bool:
        """Whether sums told all there is to know of the large nodes."""
        return all(group.nodes[0] in self.origins for group in self.rows.groups if group.large)

    def _from_origins(self, seen: Any) -> None:
        """The gradient where no feature is used: ∇ℓ(u, b) = h(u) - b, and u is the same for all samples."""
        if not self._spared:  # u = 0, and h(0) = 0 for the squared loss
            seen.grad = -self._cross
            return
        first: Any = copy(self)
        first.b, u = self.b[:, :1], seen.u[:, :1]
        ones = last_column(self._gram, self.d)  # (1/N) Σ_j s_ij a_ij
        seen.grad = (first.loss_slope(u) + first.b) * ones - self._cross
        seen.bent = first.loss_curvature(u) * ones

    @cached_property
    def _cross(self) -> NodeTensor:
        """(1/N) Σ_j s_ij b_ij a_ij, which is known of large nodes."""
        small = [group for group in self.rows.groups if not group.large]
        found = torch.zeros(self.n, self.d, dtype=self.dtype)
        if small:
            found += self._added(self._over(lambda block, _: block.pull_back(block.b), small))
        for i, origin in self.origins.items():
            found[i] = origin.cross
        return found

    def predict(self, x: NodeTensor) -> Tensor:
        return self._see(x[0]).u if self._common(x) else super().predict(x)

    def value(self, x: NodeTensor) -> NodeScalar:
        return self._value(self._see(x[0])) if self._common(x) else super().value(x)

    def value_and_grad_from(self, u: Tensor) -> tuple[NodeScalar, NodeTensor]:
        if not self._common(u):
            return super().value_and_grad_from(u)
        seen = self._see(u[0])
        return self._value(seen), self._grad(seen)

    def hessian_from(self, u: Tensor) -> Tensor:
        unused = self._simple and not self.quadratic and self._known and self._common(u)
        if unused and not bool(u[0, : self.d - self._spared].any()):
            bend = self.loss_curvature(self.predict(u))  # type: ignore[attr-defined]
            if bool((bend == bend[..., :1]).all()):
                return bend[0, 0] * self._gram
        return super().hessian_from(u)

    def between(self, x: Point, other: Point, lengths: Tensor) -> Tensor:
        if not self._simple or torch.is_grad_enabled():
            return super().between(x, other, lengths)
        one, two = self._see(x), self._see(other)
        ends, inside = (lengths == 0) | (lengths == 1), lengths[(lengths != 0) & (lengths != 1)].view(-1, 1, 1)
        found = torch.stack([self._value(two if t == 1 else one) for t in lengths.tolist()])
        if len(inside):  # what is predicted there lies between what is predicted at the ends

            def part(block: Sampled, u: Tensor, v: Tensor) -> Tensor:
                return block.by_node(block.weigh(block.loss(u + inside * (v - u)))).mT

            found[~ends] = self._of_losses(part, one.u, two.u).mT
        return found

    def rounds_like(self, u: Tensor, observer: Observer) -> Tensor:
        if not self._simple or u.ndim > 2:
            return super().rounds_like(u, observer)

        def part(block: Any, own: Tensor) -> Tensor:
            return block.by_node(block.weigh(block.loss_slope(own).abs() + own.abs())).unsqueeze(-1)

        return observer.mean(self._of_losses(part, u).squeeze(-1), dim=-1)

    def settling(self, u: Tensor, observer: Observer) -> Tensor:
        if not self._simple or u.ndim > 2:
            return super().settling(u, observer)

        def part(block: Any, own: Tensor) -> Tensor:
            return torch.stack(
                [block.by_node(block.weigh(v)) for v in (block.loss_slope(own), block.loss_curvature(own))], dim=-1
            )

        slope, bend = observer.mean(self._of_losses(part, u), dim=-2)
        return (slope / bend).unsqueeze(-1)


def same(x: Point, y: Point) -> bool:
    """Up to rounding. x + 1 · (y - x) is not y, and neither is the mean of many y."""
    return torch.equal(x, y) or bool(((x - y).abs() <= ULPS * y.abs().max()).all())


@cache
def ragged(loss: type[Sampled]) -> type[Ragged]:
    """The loss for nodes of any sizes."""
    if not issubclass(loss, Sampled) or issubclass(loss, InBlocks):
        raise InvalidInput(f"{loss.__name__} is not a loss for nodes of one size, such as LeastSquares.")
    return type(f"Ragged{loss.__name__}", (Ragged, loss), {"plain": loss, "__doc__": Ragged.__doc__})
