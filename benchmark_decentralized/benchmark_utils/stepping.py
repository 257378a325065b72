"""A solver that takes a method's steps, one a call of benchopt's callback."""

from abc import abstractmethod

from benchopt import BaseSolver

import milodo


class MethodSolver(BaseSolver):
    """Subclasses say which method runs; its messages are counted from the first one on, those of the choice included."""

    sampling_strategy = "callback"
    requirements = ["pip::milodo"]  # noqa: RUF012

    @abstractmethod
    def chosen(self, problem, net):
        """The milodo.Algorithm that runs."""

    def set_objective(self, problem, graph):
        self.problem, self.graph = problem, graph

    def run(self, callback):
        self.net = milodo.StackedNetwork(self.graph, dtype=self.problem.dtype)
        for state in milodo.iterate(self.chosen(self.problem, self.net), self.problem, self.net):
            self.state = state
            if not callback():
                break

    def get_result(self):
        return {"x": self.state.x, "rounds": self.net.traffic.rounds, "bytes": self.net.traffic.bytes}
