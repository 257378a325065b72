"""Links between nodes: swap and its calculus, simulated or real, perfect or not; the observer."""

from milodo.network.base import Network
from milodo.network.compressed import CODECS, CompressedNetwork, codec, degraded
from milodo.network.distributed import DistributedNetwork, PeerLost, Peers, place
from milodo.network.lossy import LossyNetwork
from milodo.network.observer import Observer, StackedObserver, TreeObserver
from milodo.network.stacked import CommonMixingNetwork, StackedNetwork
from milodo.network.traffic import Traffic

__all__ = [
    "CODECS",
    "CommonMixingNetwork",
    "CompressedNetwork",
    "DistributedNetwork",
    "LossyNetwork",
    "Network",
    "Observer",
    "PeerLost",
    "Peers",
    "StackedNetwork",
    "StackedObserver",
    "Traffic",
    "TreeObserver",
    "codec",
    "degraded",
    "place",
]
