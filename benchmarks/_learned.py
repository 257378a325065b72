"""Shared by the benchmarks: networks that look at their inputs, which special initialisation does not make."""

from __future__ import annotations

import torch

from milodo.learned import MiLoDo, special_initialisation
from milodo.network import Network


@torch.no_grad()
def disturbed(optimizer: MiLoDo, net: Network, gamma: float) -> MiLoDo:
    """Specially initialised, and then its final layers disturbed."""
    special_initialisation(optimizer, net, gamma)
    for bank in (optimizer.phi_m, optimizer.phi_s, optimizer.phi_u):
        bank.w_2.add_(0.05 * torch.randn_like(bank.w_2))
    return optimizer
