"""Any torch network as a decentralised problem: its parameters, as one flat vector, are the x that nodes must agree on."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, vmap

from milodo.errors import InvalidInput, quoted, shortened, whole
from milodo.network import Observer
from milodo.problems.base import Problem, check_finite, stream
from milodo.problems.regularizers import Regularizer, Zero
from milodo.problems.stacked_network import Unstacked, stacked_layers, stacked_outputs
from milodo.types import NodeScalar, NodeTensor, Point

EVALUATED = 500
"""Samples of a node that are evaluated together: for BatchNorm in batch mode, which knows no other statistics, this is part of
what the loss on all data means."""
AT_ONCE = 1 << 24
"""Numbers of inputs gathered at once while evaluating."""
REMEMBERED = 64
"""Iterations whose gradients are kept while an optimizer is trained."""
ORDER = 1 << 35
"""Stands in a stream's key for: the order of a node's samples in an epoch."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) of some samples -> their mean loss, as torch.nn.functional.cross_entropy."""
Pair = tuple[Tensor, Tensor]
"""Inputs [N, ...] and targets [N, ...]."""


@dataclass(frozen=True)
class Dealt:
    """One pool of samples, and which of its rows belong to which node of which instance."""

    inputs: Tensor
    targets: Tensor
    rows: list[list[Tensor]]
    """[instances][nodes held here]: row numbers."""
    nodes: tuple[int, ...]
    """Ids of the nodes held here, of `total`."""
    total: int


def dealt(data: Any) -> Dealt:
    """What a person has: a list of (inputs, targets), one a node, or both stacked, [n, N, ...]."""
    stacked = isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) and part.ndim >= 2 for part in data)
    pairs = list(zip(*data, strict=True)) if stacked and len(data[0]) == len(data[1]) else data
    if not isinstance(pairs, list | tuple) or not pairs or not all(
        isinstance(p, list | tuple) and len(p) == 2 and all(isinstance(t, Tensor) and t.ndim for t in p) for p in pairs
    ):  # fmt: skip
        raise InvalidInput(
            f"data is {quoted(data)}, but it must be a list of (inputs, targets), one pair of tensors a node, or two tensors "
            "[n, N, ...]."
        )
    for i, (inputs, targets) in enumerate(pairs):
        if len(inputs) != len(targets) or not len(inputs):
            raise InvalidInput(
                f"node {i} has {len(inputs)} inputs and {len(targets)} targets, but each sample needs one of both."
            )
    sizes = [len(inputs) for inputs, _ in pairs]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    rows = [torch.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    try:
        pool = torch.cat([inputs for inputs, _ in pairs]), torch.cat([targets for _, targets in pairs])
    except RuntimeError as error:
        raise InvalidInput(f"the nodes' samples differ in shape or kind ({shortened(error)}). Make them alike.") from error
    return Dealt(*pool, [rows], tuple(range(len(pairs))), len(pairs))


class Neural(Problem):
    """f_i(x) = the mean loss of `module` with parameters x over the samples of node i.

        problem = milodo.Neural(module, torch.nn.functional.cross_entropy, [(inputs, targets), ...], minibatch=100)

    `data` is one pair of tensors a node, or two tensors [n, N, ...]; nodes may hold different numbers of samples. In iteration k
    (`at_step(k)`) f_i is the loss on a minibatch: each epoch deals the node's samples anew, keyed by seed, node and epoch, so
    every method, in every runtime, sees the same minibatches. Without `minibatch`, and wherever runs are judged, it is the loss
    on all samples, or on the first `evaluate` of each node if that is given.

    `start` is PyTorch's default initialisation, drawn from the seed and the same at every node; with fresh = False the
    parameters that the module came with. `test`, a pair that all share, adds accuracies to the records. Buffers are constants,
    dropout is off, and BatchNorm takes its statistics from the samples at hand, always: there are no running ones.

    Gradients are constants to whoever differentiates a method's trajectory (`detached`), as the paper has it for networks.
    Nodes are computed side by side, or one after the other where the module has convolutions, which are faster so; `vectorised`
    decides otherwise.
    """

    def __init__(
        self, module: nn.Module, loss: Loss, data: Dealt | list[Pair] | Pair, *, reg: Regularizer | None = None,
        minibatch: int | None = None, seed: int | Sequence[int] = 0, test: Pair | Callable[[], Pair] | None = None,
        evaluate: int | None = None, fresh: bool = True, detached: bool = True, vectorised: bool | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self.reg = Zero() if reg is None else reg
        if not isinstance(module, nn.Module) or not callable(loss) or not isinstance(self.reg, Regularizer):
            raise InvalidInput(
                f"Neural needs a torch module, a loss of (outputs, targets) and perhaps a regularizer such as L1(0.1), but got "
                f"{quoted(module)}, {quoted(loss)} and {quoted(self.reg)}."
            )
        for name, count in (("minibatch", minibatch), ("evaluate", evaluate)):
            if count is not None:
                whole(name, count, least=1)
        held = data if isinstance(data, Dealt) else dealt(data)
        self.seeds = (whole("seed", seed),) if isinstance(seed, int) else tuple(seed)
        self.batch = () if isinstance(seed, int) else (len(self.seeds),)
        self.n, self.nodes, self.total = len(held.nodes), held.nodes, held.total
        self.rows = [row for rows in held.rows for row in rows]  # of (instance, node), nodes running fastest
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        if not trained or any(isinstance(value, nn.UninitializedParameter) for value in trained.values()):
            raise InvalidInput(
                f"{type(module).__name__} has no parameters to train, or lazy ones. Run it once on a sample first."
            )
        self.shapes = {name: value.shape for name, value in trained.items()}
        self.sizes = [value.numel() for value in trained.values()]
        self.d, self.tensors = sum(self.sizes), tuple(self.sizes)
        self.dtype = dtype or next(iter(trained.values())).dtype
        self.device = held.inputs.device
        self.module = _prepared(module).to(self.device, self.dtype)
        self.inputs, self.targets = self._cast(held.inputs), self._cast(held.targets)
        self.loss, self.minibatch, self.evaluate, self.fresh, self.detached = loss, minibatch, evaluate, fresh, detached
        self.vectorised = not _has_convolutions(module) if vectorised is None else vectorised
        self.layers = stacked_layers(self.module) if self.vectorised else None
        self._test = test
        self._together: int | None = EVALUATED
        self._orders: dict[int, tuple[int, Tensor]] = {}
        self._steps: dict[int, Self] = {}
        self._gathered: Pair | None = None
        self._k: int | None = None
        self._kept: dict[int | None, tuple[Callable[[], Any], int, Tensor]] = {}
        if not isinstance(data, Dealt):
            self._try()

    def _try(self) -> None:
        """Before the first iteration: the module takes the data, and the loss takes what it says of them."""
        for what, values in (("the inputs", self.inputs), ("the targets", self.targets)):
            if values.is_floating_point():
                check_finite(what, values)
        rows = self.rows[0][:2]
        try:
            with torch.no_grad():
                said = self.loss(self.module(self.inputs[rows]), self.targets[rows])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InvalidInput(f"the module or the loss cannot take the data: {shortened(error, 200)}") from error
        if not isinstance(said, Tensor) or said.ndim:
            raise InvalidInput(f"the loss of two samples is {quoted(said)}, but it must be one number: their mean loss.")

    def _cast(self, values: Tensor) -> Tensor:
        return values.to(self.dtype) if values.is_floating_point() else values

    # What methods see

    def value(self, x: NodeTensor) -> NodeScalar:
        if x.ndim > len(self.batch) + 2:  # candidates of a tuning grid share the data
            return torch.stack([self.value(candidate) for candidate in x])
        limit = None if self._together is None else self.evaluate
        wanted = x.requires_grad and torch.is_grad_enabled()
        if wanted and self.detached:
            return cast("Tensor", _Value.apply(x, self, limit))
        flat, sums = x.reshape(-1, self.d), {}
        for models, rows, share in self._pieces(limit):
            losses = self._losses(flat[models], *self._samples(rows)) * share
            sums[models.start] = sums[models.start] + losses if models.start in sums else losses
        return torch.cat(list(sums.values())).reshape(x.shape[:-1])

    def grad(self, x: NodeTensor) -> NodeTensor:
        if x.ndim > len(self.batch) + 2:
            return torch.stack([self.grad(candidate) for candidate in x])
        through = not self.detached and x.requires_grad and torch.is_grad_enabled()
        if not through and self._k is not None and x.requires_grad:
            return self._remembered(x)
        return self.value_and_grad(x, None, through=through)[1]

    def value_and_grad(self, x: NodeTensor, limit: int | None, *, through: bool = False) -> tuple[NodeScalar, NodeTensor]:
        """f_i(x_i) and ∇f_i(x_i) on the first `limit` samples of each node; `through`, the gradient knows where it comes from."""
        flat, sums = (x if through else x.detach()).reshape(-1, self.d), {}
        # Who recomputes steps (torch.utils.checkpoint) watches what is kept for them, and need not see what is kept for this.
        unseen = contextlib.nullcontext() if through else torch.autograd.graph.saved_tensors_hooks(_same, _same)
        with torch.enable_grad(), unseen:
            for models, rows, share in self._pieces(limit):
                v = flat[models] if through else flat[models].requires_grad_()
                losses = self._losses(v, *self._samples(rows)) * share
                (g,) = torch.autograd.grad(losses.sum(), v, create_graph=through)
                value, slope = sums.get(models.start, (0, 0))
                sums[models.start] = value + losses.detach(), g if isinstance(slope, int) else slope + g
        values, slopes = zip(*sums.values(), strict=True)
        return torch.cat(values).reshape(x.shape[:-1]), (slopes[0] if len(slopes) == 1 else torch.cat(slopes)).reshape(x.shape)

    def _remembered(self, x: NodeTensor) -> NodeTensor:
        """While an optimizer is trained a step may be computed twice, the second time to be differentiated, from the very same x:
        its gradient, which is a constant then, need not be."""
        at, version, g = self._kept.get(self._k, (lambda: None, 0, x))
        if at() is not x or version != x._version:
            g = self.value_and_grad(x, None)[1]
            self._kept[self._k] = weakref.ref(x), x._version, g
            for old in list(self._kept)[:-REMEMBERED]:
                del self._kept[old]
        return g

    @property
    def knows_lipschitz(self) -> bool:
        return False

    def lipschitz(self) -> NodeScalar:
        raise InvalidInput(
            "the loss of a neural network has no known Lipschitz constant, and this asks for one. Give the parameters "
            "(use = 'given'), tune them (use = 'tuned'), or take published ones."
        )

    def at_step(self, k: int) -> Neural:
        if self.minibatch is None:
            return self
        if k not in self._steps:
            view = copy.copy(self)
            view.rows = [self._minibatch(m, k) for m in range(len(self.rows))]
            view.minibatch, view._together, view._gathered, view._steps, view._k = None, None, None, {}, k
            self._steps = {**dict(list(self._steps.items())[-1:]), k: view}  # the last two are asked for again
        return self._steps[k]

    def _minibatch(self, m: int, k: int) -> Tensor:
        """Rows of one node of one instance; all of them where there are too few."""
        rows, size = self.rows[m], cast("int", self.minibatch)
        if len(rows) <= size:
            return rows
        epoch, at = divmod(k, len(rows) // size)
        if self._orders.get(m, (-1,))[0] != epoch:
            key = (self.seeds[m // self.n], ORDER, self.nodes[m % self.n], epoch)
            self._orders[m] = epoch, torch.from_numpy(stream(*key).permutation(len(rows)))
        return rows[self._orders[m][1][at * size : (at + 1) * size]]

    def at(self, nodes: Sequence[int]) -> Self:
        view = copy.copy(self)
        view.rows = [self.rows[b * self.n + i] for b in range(len(self.seeds)) for i in nodes]
        view.n, view.nodes = len(nodes), tuple(self.nodes[i] for i in nodes)
        view._orders, view._steps, view._gathered, view._kept = {}, {}, None, {}
        return view

    def start(self) -> NodeTensor:
        first = torch.stack([self._first(seed) for seed in self.seeds]).reshape(*self.batch, 1, self.d)
        return self.reg.project(first).repeat_interleave(self.n, dim=-2)

    def _first(self, seed: int) -> Point:
        module = copy.deepcopy(self.module) if self.fresh else self.module
        if self.fresh:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                for part in module.modules():
                    if callable(reset := getattr(part, "reset_parameters", None)):
                        reset()
        named = dict(module.named_parameters())
        return torch.cat([named[name].detach().flatten() for name in self.shapes])

    # What is measured

    @torch.no_grad()
    def metrics(self, x: NodeTensor, observer: Observer) -> dict[str, Tensor]:
        """Accuracy on the shared test samples: of the average model, and of the worst node's."""
        if self._test is None:
            return {}
        inputs, targets = self._test() if callable(self._test) else self._test
        if targets.is_floating_point():
            return {}
        inputs = self._cast(inputs.to(self.device))
        average = torch.stack([self._accuracy(x_b, inputs, targets) for x_b in observer.mean(x, dim=-2).reshape(-1, self.d)])
        # A process knows only the accuracies of its own nodes: each puts them into its places, and the sum has them all.
        own = torch.zeros(len(self.seeds), self.total, dtype=x.dtype, device=self.device)
        each = [self._accuracy(x_i, inputs, targets) for x_i in x.reshape(-1, self.d)]
        own[:, list(self.nodes)] = torch.stack(each).reshape(len(self.seeds), self.n).to(own.dtype)
        worst = observer.total(own).amin(-1)
        return {"test_accuracy": average.to(x.dtype).reshape(self.batch), "worst_accuracy": worst.reshape(self.batch)}

    def _accuracy(self, x: Point, inputs: Tensor, targets: Tensor) -> Tensor:
        said = torch.cat([self._outputs(x, part).argmax(-1) for part in inputs.split(EVALUATED)])
        return (said == targets.to(self.device)).double().mean()

    # How it is computed

    def _parameters(self, x: Tensor) -> dict[str, Tensor]:
        """Views of flat vectors [..., d]; split, because the gradient of one split is one concatenation."""
        parts = zip(self.shapes.items(), x.split(self.sizes, dim=-1), strict=True)
        return {name: part.reshape((*x.shape[:-1], *shape)) for (name, shape), part in parts}

    def _pieces(self, limit: int | None) -> Iterator[tuple[slice, Tensor, float]]:
        """Which models look at which rows together [models, samples], and what fraction of a model's samples these are."""
        sizes = {min(len(row), limit or len(row)) for row in self.rows}
        together = 1
        if len(sizes) == 1 and self.vectorised:
            numbers = (self._together or max(sizes)) * max(1, self.inputs[0].numel())
            together = len(self.rows) if self._together is None else max(1, AT_ONCE // numbers)
        for first in range(0, len(self.rows), together):
            models = slice(first, min(first + together, len(self.rows)))
            rows = torch.stack([row[:limit] for row in self.rows[models]])
            for part in rows.split(self._together or rows.shape[1], dim=1):
                yield models, part, part.shape[1] / rows.shape[1]

    def _samples(self, rows: Tensor) -> Pair:
        """Inputs and targets [models, samples, ...]; those of a minibatch are gathered once."""
        if self._together is None and rows.numel() == sum(map(len, self.rows)):
            self._gathered = self._gathered or (self.inputs[rows], self.targets[rows])
            return self._gathered
        return self.inputs[rows], self.targets[rows]

    def _outputs(self, x: Point, inputs: Tensor) -> Tensor:
        """Of one model."""
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)  # convolutions are a third faster on it
        return functional_call(self.module, self._parameters(x), (inputs,))

    def _losses(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """One number a model, of flat parameters [models, d]."""
        if len(x) == 1 or not self.vectorised:
            each = zip(x.unbind(), inputs, targets, strict=True)
            return torch.stack([self.loss(self._outputs(v, some), wanted) for v, some, wanted in each])
        parameters = self._parameters(x)
        if self.layers is not None:
            try:
                return vmap(self.loss)(stacked_outputs(self.layers, parameters, inputs), targets)
            except Unstacked:
                self.layers = None

        def one(parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            return self.loss(functional_call(self.module, parameters, (inputs,)), targets)

        return vmap(one)(parameters, inputs, targets)


class _Value(torch.autograd.Function):
    """f_i(x_i), its gradient computed at once: a meta-loss then keeps one vector a node, and nothing of the network."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, problem: Neural, limit: int | None) -> Tensor:
        value, g = problem.value_and_grad(x, limit)
        ctx.save_for_backward(g)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].unsqueeze(-1) * ctx.saved_tensors[0], None, None


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _prepared(module: nn.Module) -> nn.Module:
    """A copy whose outputs depend on its parameters and inputs alone: no dropout, no running statistics."""
    module = copy.deepcopy(module).eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
    return module.requires_grad_(False)


def _has_convolutions(module: nn.Module) -> bool:
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())
