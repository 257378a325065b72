"""Methods that bring the nodes together by an operator: which one is theirs to choose."""

from __future__ import annotations

from typing import ClassVar

from milodo.algorithms.base import Algorithm
from milodo.errors import unknown
from milodo.network import Network
from milodo.network.averaging import AVERAGES, Averaging, TreeSum, averaging


class OverAverage(Algorithm):
    """With an operator A (milodo/network/averaging.py), applied so many times in an iteration."""

    over: str
    """Which A, one of AVERAGES."""
    K: int
    """Its rounds, where it has a choice."""
    averages: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.over not in AVERAGES:
            raise unknown(f"way to average ({self.label}: over)", self.over, AVERAGES)

    def A(self, net: Network) -> Averaging:
        return averaging(self.over, net, self.K)

    @property
    def rounds(self) -> int | None:
        if AVERAGES[self.over] is TreeSum:
            return None
        return self.averages * (self.K if "K" in AVERAGES[self.over].__dataclass_fields__ else 1)  # type: ignore[attr-defined]

    def rounds_on(self, net: Network) -> int:
        return self.averages * self.A(net).rounds

    def floats_on(self, net: Network, d: int) -> int:
        return self.averages * self.A(net).messages * d

    @property
    def asks(self) -> str:
        return "" if AVERAGES[self.over].survives_loss else "links that hold (a lost message breaks a sum) and a spanning tree"
