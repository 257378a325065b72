"""What auto chooses for fewest bytes or fewest rounds."""

from benchmark_utils.stepping import MethodSolver

import milodo


class Solver(MethodSolver):
    name = "auto"
    parameters = {"pay": ["bytes", "rounds"]}  # noqa: RUF012

    def chosen(self, problem, net):
        return milodo.choose(self.pay, milodo.learn(problem, net), net, problem.d).algorithm
