"""Many plain perceptrons side by side, as batched matrix products: less work than vmap makes of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

Layers = list[tuple[str, nn.Module]]
PLAIN = (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid)
"""Layers that treat every number alike."""


class Unstacked(Exception):
    """The inputs have a shape that these layers were not meant for."""


def stacked_layers(module: nn.Module) -> Layers | None:
    """The layers of a Sequential of linear and plain ones; None of anything else."""
    if type(module) is not nn.Sequential:
        return None
    layers = list(module.named_children())
    flat = all(
        type(layer) in (*PLAIN, nn.Linear) or (type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1))
        for _, layer in layers
    )
    return layers if flat else None


def stacked_outputs(layers: Layers, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Outputs [models, samples, ...] for parameters with the models as their first axis."""
    h = inputs
    for name, layer in layers:
        if isinstance(layer, nn.Flatten):
            h = h.flatten(2)
        elif isinstance(layer, nn.Linear):
            weight, bias = parameters.get(f"{name}.weight"), parameters.get(f"{name}.bias")
            if h.ndim != 3 or weight is None or (bias is None and layer.bias is not None):
                raise Unstacked
            h = h @ weight.mT if bias is None else torch.baddbmm(bias.unsqueeze(-2), h, weight.mT)
        else:
            h = layer(h)
    return h
