"""What an optimizer trains, as one flat vector: one message a neighbour, whatever the model is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from milodo.errors import InvalidInput
from milodo.types import NodeTensor, Step


class Flat:
    """The parameters of an optimizer that are not frozen, in its order, as the row of the node held here [1, d].

    Buffers and frozen parameters are no part of it: they stay each node's own.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        listed = [(parameter, group) for group, each in enumerate(optimizer.param_groups) for parameter in each["params"]]
        strangers = [parameter for parameter, _ in listed if id(parameter) not in names]
        if strangers:
            raise InvalidInput(
                f"the optimizer trains a parameter of shape {tuple(strangers[0].shape)} that is none of "
                f"{type(model).__name__}'s. Give the model that it was made for."
            )
        trained = [(parameter, group) for parameter, group in listed if parameter.requires_grad]
        if not trained:
            raise InvalidInput(
                f"all parameters that the optimizer has of {type(model).__name__} are frozen, so there is nothing to agree on. "
                "Unfreeze some before gossip begins."
            )
        self.names, self.parameters = names, [parameter for parameter, _ in trained]
        if any(isinstance(parameter, nn.UninitializedParameter) for parameter in self.parameters):
            raise InvalidInput(f"{type(model).__name__} has lazy parameters. Run it once on a sample before gossip begins.")
        if any(not parameter.is_floating_point() for parameter in self.parameters):
            raise InvalidInput(f"{type(model).__name__} has parameters that are no real numbers, which have no average here.")
        if len(devices := {parameter.device for parameter in self.parameters}) > 1:
            raise InvalidInput(f"the parameters are on {len(devices)} devices. Put the model on one, one process a device.")
        self.device, self.listed, self.of = self.parameters[0].device, len(listed), [group for _, group in trained]
        self.frozen = [parameter for parameter, _ in listed if not parameter.requires_grad]
        wide = any(parameter.dtype == torch.float64 for parameter in self.parameters)
        self.dtype = torch.float64 if wide else torch.float32
        """What is sent and mixed; shorter parameters are rounded when they are written."""
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.d = sum(self.sizes)
        self._spread: dict[tuple[float, ...], Tensor] = {}

    def check(self, optimizer: Optimizer) -> None:
        """That the optimizer still trains what it did when gossip began."""
        if sum(len(group["params"]) for group in optimizer.param_groups) != self.listed:
            raise InvalidInput("the optimizer was given other parameters after gossip began. Leave the block and enter it anew.")
        for parameter in self.frozen:
            if parameter.requires_grad:
                raise InvalidInput(
                    f"{self.names[id(parameter)]} was frozen when gossip began and is not any more. Leave the block and enter it "
                    "anew."
                )

    @torch.no_grad()
    def read(self) -> NodeTensor:
        return torch.cat([parameter.detach().reshape(-1).to(self.dtype) for parameter in self.parameters]).unsqueeze(0)

    @torch.no_grad()
    def write(self, x: NodeTensor) -> None:
        for parameter, part in zip(self.parameters, x[0].split(self.sizes), strict=True):
            parameter.copy_(part.view_as(parameter))

    @torch.no_grad()
    def gradient(self, x: NodeTensor, decay: Sequence[float]) -> NodeTensor:
        """What was accumulated, 0 where nothing was, with weight decay of each group, as SGD adds it."""
        parts = []
        for parameter, size in zip(self.parameters, self.sizes, strict=True):
            g = parameter.grad
            dense = g.to_dense() if g is not None and g.is_sparse else g
            parts.append(x.new_zeros(size) if dense is None else dense.detach().reshape(-1).to(self.dtype))
        g = torch.cat(parts).unsqueeze(0)
        return g + self.each(decay) * x if any(decay) else g

    def each(self, values: Sequence[float]) -> Step:
        """A number a group as one for all, or as a vector [d] where groups differ."""
        used = tuple(values[group] for group in self.of)
        if len(set(used)) == 1:
            return used[0]
        if used not in self._spread:
            self._spread = {
                used: torch.tensor(used, dtype=self.dtype).repeat_interleave(torch.tensor(self.sizes)).to(self.device)
            }
        return self._spread[used]

    def hidden(self) -> list[Tensor | None]:
        """The gradients, taken away: an optimizer leaves alone what has none."""
        grads = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return grads

    def shown(self, grads: Sequence[Tensor | None]) -> None:
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad

    @torch.no_grad()
    def unscale(self, scale: Tensor) -> None:
        """What a GradScaler would do before a step that it does not skip."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.div_(scale.to(parameter.grad.device))


class Floats:
    """Tensors that hold real numbers, running statistics for one, as one flat vector [1, numbers]; others are left alone."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = [tensor for tensor in tensors if tensor.is_floating_point()]

    @torch.no_grad()
    def read(self) -> Tensor:
        parts = [tensor.detach().reshape(-1).double() for tensor in self.tensors]
        return torch.cat(parts).unsqueeze(0) if parts else torch.zeros(1, 0, dtype=torch.float64)

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        for tensor, part in zip(self.tensors, values[0].split([tensor.numel() for tensor in self.tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))
