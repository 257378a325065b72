"""Methods that know what to say before they have this iteration's gradient: both can be done at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from milodo.algorithms.base import Algorithm
from milodo.network import Network
from milodo.problems import Problem


class Ahead(Algorithm):
    """All rounds of a step come before its gradient and do not need it, so messages may travel while it is computed."""

    @abstractmethod
    def hear(self, state: Any, net: Network) -> Any:
        """All rounds of the step: what they make of the state, what both ends remember included."""

    @abstractmethod
    def move(self, state: Any, heard: Any, problem: Problem) -> Any:
        """The rest of it, which is local."""

    def step(self, state: Any, problem: Problem, net: Network) -> Any:
        return self.move(state, self.hear(state, net), problem)
