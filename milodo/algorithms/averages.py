"""Methods that bring the nodes together by an averaging operator: which one is theirs to choose."""

from __future__ import annotations

from dataclasses import replace

from milodo.algorithms.base import Algorithm
from milodo.network.exchange import Polynomial


class Averages(Algorithm):
    """With an operator A, that of its exchange, applied so many times in an iteration."""

    K: int
    """Rounds of each application, where the exchange is a polynomial: its degree."""

    def __post_init__(self) -> None:
        if isinstance(self.exchange, Polynomial):
            object.__setattr__(self, "exchange", replace(self.exchange, K=self.K))
        super().__post_init__()
