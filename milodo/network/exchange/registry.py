"""Exchanges by the names that experiments give them."""

from __future__ import annotations

from milodo.errors import unknown
from milodo.network.exchange.all_gather import AllGather
from milodo.network.exchange.all_reduce import TreeAllReduce
from milodo.network.exchange.exchanges import Exchange
from milodo.network.exchange.gossip import Gossip
from milodo.network.exchange.polynomial import Polynomial
from milodo.topology.filters import FILTERS

EXCHANGES: dict[str, Exchange] = {
    "gossip": Gossip(), **{kind: Polynomial(kind) for kind in FILTERS}, "tree": TreeAllReduce(), "all-gather": AllGather(),
}  # fmt: skip


def named(name: str) -> Exchange:
    """One of EXCHANGES."""
    if name not in EXCHANGES:
        raise unknown("exchange", name, EXCHANGES)
    return EXCHANGES[name]
