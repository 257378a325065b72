"""Σ_j x_j over all nodes, by messages between neighbours only: along a spanning tree, or by telling everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from milodo.network.channels import Format
from milodo.network.requirement import Requirement
from milodo.network.wire import decoded, encoded
from milodo.types import NodeTensor

if TYPE_CHECKING:
    from milodo.network.base import Network


REQUIRES = frozenset({Requirement.RELIABLE_LINKS, Requirement.EVERY_COORDINATE, Requirement.FIXED_GRAPH})


def over_tree(net: Network, x: NodeTensor, exact: int) -> NodeTensor:
    """`Network.total`."""
    form = net.format if x.shape[-1] > exact else None
    net.begin_sum("a sum over a spanning tree", (*net.routes.up, *net.routes.down), x, form, exact)
    return _Total.apply(x, lambda x: net.scatter(_gathered(net, x, form, exact), form, exact))


def by_all(net: Network, x: NodeTensor, exact: int) -> NodeTensor:
    """`Network.total_by_all`."""
    form = net.format if x.shape[-1] > exact else None
    net.begin_sum("a sum of what everybody says", net.routes.flood, x, form, exact)
    return _Total.apply(x, lambda x: in_one_order(net.told(x, form, exact), x))


def told(net: Network, x: NodeTensor, form: Format | None, exact: int) -> Tensor:
    """`Network.told`."""
    message = x if form is None else encoded(form, x, exact)
    n, own = net.topology.n, torch.tensor([row * net.topology.n + node for row, node in enumerate(net.nodes)])
    known = message.new_zeros(*message.shape[:-2], net.n * n, message.shape[-1]).index_copy(-2, own, message)
    for hop in net.routes.flood:
        known = known.index_copy(-2, hop.receivers, net.pass_on(known, hop, form))
    known = known[..., :n, :]  # all nodes held here have heard the same
    return known if form is None else decoded(form, known, x.shape[-1], exact, x)


def _gathered(net: Network, x: NodeTensor, form: Format | None, exact: int) -> NodeTensor:
    """Partial sums, up to the root."""
    for hop in net.routes.up:
        x = x.index_add(-2, hop.receivers, net.say(x.index_select(-2, hop.senders), hop, form, exact)[1])
    return x


def scattered(net: Network, x: NodeTensor, form: Format | None, exact: int) -> NodeTensor:
    """`Network.scatter`. A message goes on as it came, and the root, too, goes on with what it says: everybody has the very same
    numbers."""
    message = x if form is None or not net.routes.down else encoded(form, x, exact)
    for hop in net.routes.down:
        part = message.index_select(-2, hop.senders)
        message = message.index_copy(-2, hop.receivers, net.pass_on(part, hop, form))
    return message if form is None or not net.routes.down else decoded(form, message, x.shape[-1], exact, x)


def in_order(x: Tensor) -> Tensor:
    """Σ over the last axis, [*, 1], by additions in an order that depends on its length alone: rounded alike on every machine,
    where torch adds up in an order that depends on the processor and on the number of threads."""
    while (d := x.shape[-1]) > 1:
        pairs = x[..., : d // 2] + x[..., d // 2 : d // 2 * 2]
        x = pairs if d % 2 == 0 else torch.cat((pairs, x[..., -1:]), dim=-1)
    return x


def in_one_order(told: Tensor, like: NodeTensor) -> NodeTensor:
    """What all have said, added up row after row, so that every process rounds alike; at each of its nodes."""
    first, *others = told.unbind(-2)
    return sum(others, start=first).unsqueeze(-2).expand_as(like).contiguous()


class _Total(torch.autograd.Function):
    """The sum at every node is 11ᵀ, which is symmetric: its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.total = total
        return total(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Total.apply(grads[0], ctx.total), None
