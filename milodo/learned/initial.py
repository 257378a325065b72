"""Where training starts (Appendix E.1): special initialisation. Random initialisation is how a MiLoDo is made."""

from __future__ import annotations

import torch

from milodo.errors import InvalidInput
from milodo.learned.optimizer import MiLoDo
from milodo.network import Network


@torch.no_grad()
def special_initialisation(optimizer: MiLoDo, net: Network, gamma: float) -> MiLoDo:
    """Final layers that ignore their input and put out p = γ, p̃_1 = w/(2γ), p_2 = w/2: with r = 0 this is Exact Diffusion.

    Slots that are only padding get the weight of the node's first edge, which nobody reads.
    """
    if net.topology != optimizer.topology:
        raise InvalidInput(
            f"{optimizer.label} was made for {optimizer.topology}; its special weights need those of {net.topology}."
        )
    w = optimizer.slots.by_node(net.w64)  # [n, width, 1]
    w = torch.where(w == 0, w[:, :1], w).squeeze(-1)
    for what, bank, activation, value in (
        ("p_i:", optimizer.phi_m, optimizer.activations.m, torch.full((net.n, 1), float(gamma), dtype=torch.float64)),
        ("p_ij,1:", optimizer.phi_s, optimizer.activations.s, w / (2 * gamma)),
        ("p_ij,2:", optimizer.phi_u, optimizer.activations.u, w / 2),
    ):
        bank.w_2.zero_()
        try:
            bank.b_2.copy_(activation.inverse(value))
        except InvalidInput as error:
            raise InvalidInput(f"special initialisation with gamma = {gamma:g}: {what} {error}") from None
    return optimizer
