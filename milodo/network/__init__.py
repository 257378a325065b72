"""Links between nodes: swap and its calculus, the simulation, the observer."""

from milodo.network.base import Network
from milodo.network.observer import Observer, StackedObserver
from milodo.network.stacked import CommonMixingNetwork, StackedNetwork
from milodo.network.traffic import Traffic

__all__ = ["CommonMixingNetwork", "Network", "Observer", "StackedNetwork", "StackedObserver", "Traffic"]
