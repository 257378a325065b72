"""Networks that look at their inputs: special initialisation makes final layers that do not."""

from __future__ import annotations

import torch

from milodo.learned import MiLoDo, Plus, Shared, special_initialisation
from milodo.network import StackedNetwork


@torch.no_grad()
def disturbed(optimizer: MiLoDo, gamma: float, size: float = 0.05, **constants: float) -> MiLoDo:
    """Specially initialised, and then its final layers disturbed."""
    special_initialisation(optimizer, StackedNetwork(optimizer.topology), gamma, **constants)
    for network in (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u):
        network.w_2.add_(size * torch.randn_like(network.w_2))
    return optimizer


@torch.no_grad()
def awake(optimizer: Plus, size: float = 1.0) -> Plus:
    """With a final layer as nobody has trained it: p and β anywhere within their bounds."""
    optimizer.phi.w_2.normal_(0.0, size)
    optimizer.phi.b_2.normal_(0.0, size)
    return optimizer


@torch.no_grad()
def awakened(optimizer: Shared, size: float = 1.0) -> Shared:
    """With an output layer as nobody has trained it, the same in every call."""
    draws = torch.Generator().manual_seed(5)
    optimizer.w_2.copy_(size * torch.randn(optimizer.w_2.shape, generator=draws))
    optimizer.b_2.copy_(size * torch.randn(optimizer.b_2.shape, generator=draws))
    return optimizer
