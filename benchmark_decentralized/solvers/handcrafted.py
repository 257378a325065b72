"""Handcrafted methods with parameters that need no tuning."""

from benchmark_utils.stepping import MethodSolver

import milodo


class Solver(MethodSolver):
    name = "milodo"
    parameters = {"method": ["prox-ed", "prox-atc", "pg-extra", "accelerated-ed", "tree-apg"]}  # noqa: RUF012

    def chosen(self, problem, net):
        return milodo.METHODS[self.method].safe(float(problem.lipschitz().max()), net)
