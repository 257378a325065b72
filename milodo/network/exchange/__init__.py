"""How nodes are brought together: values that methods have, each with a state that travels in the method's state."""

from milodo.network.exchange.all_gather import AllGather
from milodo.network.exchange.all_reduce import TreeAllReduce
from milodo.network.exchange.exchanges import Cost, Exchange
from milodo.network.exchange.gossip import Gossip
from milodo.network.exchange.polynomial import Polynomial
from milodo.network.exchange.registry import EXCHANGES, named

__all__ = ["EXCHANGES", "AllGather", "Cost", "Exchange", "Gossip", "Polynomial", "TreeAllReduce", "named"]
