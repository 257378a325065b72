"""Links between nodes: swap and its calculus, simulated or real, perfect or not; the observer."""

from milodo.network.base import Network
from milodo.network.channels import Bits, Cast, Channel, Format, Levels, Outage, TopK
from milodo.network.checked import CheckedNetwork
from milodo.network.coded import Coded
from milodo.network.distributed import DistributedNetwork, PeerLost, Peers, place
from milodo.network.formats import FORMATS, message_format
from milodo.network.imperfect import degraded
from milodo.network.observer import Observer, StackedObserver, TreeObserver
from milodo.network.stacked import StackedNetwork
from milodo.network.traffic import Ledger, Spent, Traffic

__all__ = [
    "FORMATS", "Bits", "Cast", "Channel", "CheckedNetwork", "Coded", "DistributedNetwork", "Format", "Ledger",
    "Levels", "Network", "Observer", "Outage", "PeerLost", "Peers", "Spent", "StackedNetwork", "StackedObserver", "TopK",
    "Traffic", "TreeObserver", "degraded", "message_format", "place",
]  # fmt: skip
