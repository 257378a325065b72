"""Networks that look at their inputs: special initialisation makes final layers that do not."""

from __future__ import annotations

import torch

from milodo.learned import MiLoDo, special_initialisation
from milodo.network import StackedNetwork


@torch.no_grad()
def disturbed(optimizer: MiLoDo, gamma: float, size: float = 0.05) -> MiLoDo:
    """Specially initialised, and then its final layers disturbed."""
    special_initialisation(optimizer, StackedNetwork(optimizer.topology), gamma)
    for bank in (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u):
        bank.w_2.add_(size * torch.randn_like(bank.w_2))
    return optimizer
