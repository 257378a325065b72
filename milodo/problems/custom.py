"""Your own objective: a torch function of x and one node's data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor
from torch.func import grad, hessian, vmap

from milodo.errors import LARGEST, InvalidInput, as_float, quoted, whole
from milodo.problems.base import Problem, check_finite
from milodo.problems.regularizers import Regularizer
from milodo.solvers.triangles import pack
from milodo.tree import leaves, tree_map
from milodo.types import NodeScalar, NodeTensor

Objective = Callable[[Tensor, dict[str, Tensor]], Tensor]


class CustomProblem(Problem):
    """f_i(x) = f(x, data_i), vmapped over nodes and instances, differentiated by autograd.

    f takes x [d] and a dict of tensors (one node's data) and returns a scalar. The tensors in `data` have leading axes
    [*batch, n]; `instances` says how many of them come before n (0 for one problem).

    `lipschitz` is a bound of the Lipschitz constant of every ∇f_i. Without it everything works that does not need one.
    """

    def __init__(
        self, f: Objective, data: dict[str, Tensor], d: int, reg: Regularizer,
        *, instances: int = 0, lipschitz: float | None = None,
    ) -> None:  # fmt: skip
        whole("d", d, least=1, most=LARGEST)
        whole("instances", instances)
        if not callable(f) or not isinstance(data, dict) or not isinstance(reg, Regularizer):
            raise InvalidInput(
                f"CustomProblem needs a function of x and one node's data, a dict of tensors and a regularizer such as L1(0.1), "
                f"but got {quoted(f)}, {quoted(data)} and {quoted(reg)}."
            )
        parts = leaves(data)
        for leaf in parts.values():
            if not isinstance(leaf, Tensor):
                raise InvalidInput(f"data holds {quoted(leaf)}. Give tensors only, e.g. torch.tensor(...).")
        if not parts or any(leaf.ndim <= instances for leaf in parts.values()):
            raise InvalidInput(f"every tensor in data needs {instances + 1} leading axes: instances, then nodes.")
        lead = {tuple(leaf.shape[: instances + 1]) for leaf in parts.values()}
        if len(lead) > 1:
            raise InvalidInput(f"tensors in data disagree about instances and nodes: {sorted(lead)}.")
        if lipschitz is not None and not 0 < (as_float(lipschitz) or 0) < float("inf"):
            raise InvalidInput(f"lipschitz is {quoted(lipschitz)}, but it must be a finite number > 0.")
        for name, leaf in parts.items():
            if leaf.is_floating_point():
                check_finite(f"data[{name!r}]", leaf)
        self.f, self.data, self.d, self.reg, self.bound = f, data, d, reg, lipschitz
        *batch, self.n = lead.pop()
        self.batch = tuple(batch)
        floating = next((leaf for leaf in parts.values() if leaf.is_floating_point()), next(iter(parts.values())))
        self.dtype = floating.dtype if floating.is_floating_point() else torch.get_default_dtype()
        self.device = floating.device

    def _over_nodes(self, f: Callable[..., Tensor], x: NodeTensor) -> Tensor:
        for _ in range(len(self.batch) + 1):
            f = vmap(f)
        for _ in range(x.ndim - len(self.batch) - 2):  # candidates of a tuning grid share the data
            f = vmap(f, in_dims=(0, None))
        return f(x, self.data)

    def value(self, x: NodeTensor) -> NodeScalar:
        return self._over_nodes(self.f, x)

    def grad(self, x: NodeTensor) -> NodeTensor:
        return self._over_nodes(grad(self.f), x)

    @property
    def knows_hessian(self) -> bool:
        return True

    def hessian_from(self, u: Tensor) -> Tensor:
        return pack(self._over_nodes(hessian(self.f), u))

    @property
    def knows_lipschitz(self) -> bool:
        return self.bound is not None

    def lipschitz(self) -> NodeScalar:
        if self.bound is None:
            raise InvalidInput(
                "this objective came without a Lipschitz constant, and step sizes are chosen relative to it. "
                "Pass lipschitz=... to CustomProblem, or give the step size yourself."
            )
        return torch.full((*self.batch, self.n), float(self.bound), dtype=self.dtype, device=self.device)

    def at(self, nodes: Sequence[int]) -> Self:
        rows = torch.as_tensor(nodes, device=self.device)
        data = tree_map(lambda leaf: leaf.index_select(len(self.batch), rows), self.data)
        return type(self)(self.f, data, self.d, self.reg, instances=len(self.batch), lipschitz=self.bound)
