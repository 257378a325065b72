"""Σ_j x_j over all nodes, by messages between neighbours only: along a spanning tree, or by telling everybody."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network.channels import Format, Outage
from milodo.network.memory import Memory, Slot, beside, decoded, encoded, lengths, plus, varies
from milodo.network.routes import Route, Routes
from milodo.topology import Schedule, Topology
from milodo.types import NodeTensor


class Sums(ABC):
    """What a network adds up on links that hold; it brings the links, the counters and the one way to send."""

    topology: Topology
    nodes: tuple[int, ...]
    routes: Routes
    format: Format | None
    outage: Outage | None
    schedule: Schedule | None
    memory: Memory | None

    @property
    @abstractmethod
    def n(self) -> int:
        """Nodes held here."""

    @abstractmethod
    def _carry(self, message: Tensor, route: Route, up: Tensor | None = None, *, varies: bool = False) -> Tensor:
        """The transport."""

    @abstractmethod
    def _say(self, x: Tensor, route: Route, form: Format | None, exact: int, up: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What we say as the other ends understand it, and what we hear."""

    @abstractmethod
    def _count(self, route: Route, x: Tensor, form: Format | None, exact: int = 0, up: Tensor | None = None) -> None:
        """One round."""

    @abstractmethod
    def _weigh(self, sizes: Tensor, route: Route, up: Tensor | None = None) -> None:
        """The bytes of messages that vary in length."""

    @abstractmethod
    def working(self) -> Tensor | None:
        """Which undirected edges work in the next round [edges]; None for all of them."""

    def as_it_is(self, message: Tensor, route: Route, up: Tensor | None = None) -> Tensor:
        """What arrives of a message that nothing shortens or remembers, over the edges that are up. One round."""
        self._count(route, message, None, 0, up)
        return self._carry(message, route, up)

    def _passed_on(self, message: Tensor, hop: Route, form: Format | None) -> Tensor:
        """What arrives of messages that go on as they came."""
        if varies(form):
            self._weigh(lengths(message), hop)
        return self._carry(message, hop, varies=varies(form))

    def total(self, x: NodeTensor, exact: int = 0) -> NodeTensor:
        """Σ_j x_j over all nodes, the very same numbers at every node.

        Partial sums go up the spanning tree and the total comes down: one message up and one down each edge of the tree, in as
        many rounds as the tree is high, twice. The last `exact` columns are added up as they are, whatever the format.
        """
        form, memory = self._begin_sum("a sum over a spanning tree", (*self.routes.up, *self.routes.down), x, exact)
        if memory is not None:
            return self._remembered_total(x, exact, memory)
        return x if self._rehearsing else _Total.apply(x, lambda x: self._scatter(self._gather(x, form, exact), form, exact))

    @property
    def _rehearsing(self) -> bool:
        return self.memory is not None and self.memory.rehearsing

    def _begin_sum(self, what: str, hops: Sequence[Route], x: NodeTensor, exact: int) -> tuple[Format | None, Memory | None]:
        """Refuses links that cannot carry it, counts its rounds, and says how its messages travel and what remembers them."""
        if self.outage is not None:
            raise InvalidInput(
                f"{what} breaks if one message is lost, and links are down {self.outage.p:.0%} of the time "
                "here. Use a method that gossips, e.g. accelerated-ed."
            )
        if self.schedule is not None:
            raise InvalidInput(
                f"{what} needs links that are always there, and the graph changes with the iteration ({self.schedule}). "
                "Use a method that gossips, e.g. accelerated-ed."
            )
        if self.memory is None and self.format is not None and self.format.sparse:
            raise InvalidInput(
                f"{what} needs every coordinate, and these messages leave most of them out. "
                "Use messages = 'float32' or shorter, or a method that gossips, e.g. accelerated-ed."
            )
        memory = self.memory if x.shape[-1] > exact else None  # nothing is remembered of what is always told in full
        form = memory.form if memory is not None else self.format if x.shape[-1] > exact else None
        if not self._rehearsing:
            for hop in hops:
                self._count(hop, x, form, exact)
        return form, memory

    def total_by_all(self, x: NodeTensor, exact: int = 0) -> NodeTensor:
        """Σ_j x_j over all nodes like `total`, where everybody tells everybody: half the rounds on graphs without a middle, such
        as rings, and n/2 times as many messages. What a node says is passed on as it is, and added up in one order by all."""
        form, memory = self._begin_sum("a sum of what everybody says", self.routes.flood, x, exact)
        if memory is None:
            return x if self._rehearsing else _Total.apply(x, lambda x: _summed(self._told(x, form, exact), x))
        d = x.shape[-1] - exact
        slot = memory.recall(x, x.shape[-2], self.topology.n, d, "flood")
        assert slot.heard is not None
        if memory.rehearsing:
            memory.keep(slot)
            return torch.zeros_like(x)
        told = plus(slot.heard, self._told(beside(x[..., :d] - slot.said, x, d), form, exact), d)
        memory.keep(slot._replace(said=told[..., self.nodes, :d], heard=told[..., :d]))
        return _summed(told, x)

    def _told(self, x: NodeTensor, form: Format | None, exact: int) -> Tensor:
        """What every node says, as all understand it [*batch, nodes of the whole network, d]."""
        message = x if form is None else encoded(form, x, exact)
        n, own = self.topology.n, torch.tensor([row * self.topology.n + node for row, node in enumerate(self.nodes)])
        known = message.new_zeros(*message.shape[:-2], self.n * n, message.shape[-1]).index_copy(-2, own, message)
        for hop in self.routes.flood:
            known = known.index_copy(-2, hop.receivers, self._passed_on(known, hop, form))
        known = known[..., :n, :]  # all nodes held here have heard the same
        return known if form is None else decoded(form, known, x.shape[-1], exact, x)

    def _remembered_total(self, x: NodeTensor, exact: int, memory: Memory) -> NodeTensor:
        """A replica for each edge of the tree on the way up, and one for all of the total."""
        d = x.shape[-1] - exact
        for number, hop in enumerate(self.routes.up):
            part = x.index_select(-2, hop.senders)
            slot = memory.recall(x, part.shape[-2], hop.arrivals, d, f"up{number}")
            assert slot.heard is not None
            if not memory.rehearsing:
                said, heard = self._say(beside(part[..., :d] - slot.said, part, d), hop, memory.form, exact)
                said, heard = plus(slot.said, said, d), plus(slot.heard, heard, d)
                x = x.index_add(-2, hop.receivers, heard)
                slot = Slot(said[..., :d], heard[..., :d], slot.route)
            memory.keep(slot)
        if not self.routes.up:  # alone
            return x
        slot = memory.recall(x, x.shape[-2], None, d, "total")
        if not memory.rehearsing:
            x = plus(slot.said, self._scatter(beside(x[..., :d] - slot.said, x, d), memory.form, exact), d)
            slot = slot._replace(said=x[..., :d])
        memory.keep(slot)
        return x

    def _gather(self, x: NodeTensor, form: Format | None, exact: int) -> NodeTensor:
        """Partial sums, up to the root."""
        for hop in self.routes.up:
            x = x.index_add(-2, hop.receivers, self._say(x.index_select(-2, hop.senders), hop, form, exact)[1])
        return x

    def _scatter(self, x: NodeTensor, form: Format | None, exact: int) -> NodeTensor:
        """What the root has, down to all. A message goes on as it came, and the root, too, goes on with what it says: everybody
        has the very same numbers."""
        message = x if form is None or not self.routes.down else encoded(form, x, exact)
        for hop in self.routes.down:
            part = message.index_select(-2, hop.senders)
            message = message.index_copy(-2, hop.receivers, self._passed_on(part, hop, form))
        return message if form is None or not self.routes.down else decoded(form, message, x.shape[-1], exact, x)


def in_order(x: Tensor) -> Tensor:
    """Σ over the last axis, [*, 1], by additions in an order that depends on its length alone: rounded alike on every machine,
    where torch adds up in an order that depends on the processor and on the number of threads."""
    while (d := x.shape[-1]) > 1:
        pairs = x[..., : d // 2] + x[..., d // 2 : d // 2 * 2]
        x = pairs if d % 2 == 0 else torch.cat((pairs, x[..., -1:]), dim=-1)
    return x


def _summed(told: Tensor, like: NodeTensor) -> NodeTensor:
    """Row after row, so that every process rounds alike; at each of its nodes."""
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
