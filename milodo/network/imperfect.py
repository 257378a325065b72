"""Networks that are not perfect, as an experiment or a fit asks for them."""

from __future__ import annotations

from collections.abc import Sequence

from milodo.network.base import Network
from milodo.network.channels import Channel, Outage
from milodo.network.formats import message_format
from milodo.topology import schedule as made_schedule


def degraded(
    net: Network, *, outage: float = 0.0, messages: str = "full", schedule: str | Sequence[str] | None = None, seed: int = 0
) -> Network:
    """The network with links that fail, short messages and a graph that changes, as far as asked for."""
    form = message_format(messages)
    channels: list[Channel] = [*([Outage(outage, seed)] if outage else []), *([form] if form else [])]
    if schedule is not None:
        channels.append(made_schedule(schedule, net.topology, seed))
    return net.through(*channels) if channels else net
