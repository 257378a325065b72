"""Shipped learned optimizers, on the graphs they were trained for."""

from benchmark_utils.stepping import MethodSolver

import milodo
from milodo.topology import topology


class Solver(MethodSolver):
    name = "learned"
    parameters = {"optimizer": ["milodo-lasso-ring10", "milodo-meta-ring10"]}  # noqa: RUF012

    def skip(self, problem, graph):
        learned, _ = milodo.load_optimizer(self.optimizer)
        why = learned.fits(topology(graph))
        return (why is not None, why)

    def chosen(self, problem, net):
        return milodo.load_optimizer(self.optimizer)[0]
