"""min (1/n) Σ f_i(x) + λ‖x‖₁ over the nodes of a graph: the gap to the certified optimum, and what it cost."""

import torch
from benchopt import BaseObjective

import milodo
from milodo.topology import topology


class Objective(BaseObjective):
    name = "Decentralised composite optimization"
    min_benchopt_version = "1.9"
    sampling_strategy = "callback"
    requirements = ["pip::milodo"]  # noqa: RUF012  # benchopt reads it from the class

    parameters = {"graph": ["ring(10)"]}  # noqa: RUF012

    test_dataset_name = "synthetic"

    def set_data(self, problem):
        self.problem = problem
        self.best = milodo.optimum(problem)

    def skip(self, problem):
        nodes = topology(self.graph).n
        return (nodes != problem.n, f"{self.graph} has {nodes} nodes, and the data set is dealt to {problem.n}")

    def get_objective(self):
        return {"problem": self.problem, "graph": self.graph}

    def evaluate_result(self, x, rounds, bytes):
        """x [1, n, d]: what each node holds."""
        mean = x.mean(-2, keepdim=True)
        everywhere = mean.expand_as(x)
        value = self.problem.value(everywhere).mean(-1) + self.problem.reg.value(mean[..., 0, :])
        consensus = (x - everywhere).norm(dim=-1).mean(-1)
        gap = value - self.best.value
        return {"value": float(gap), "objective": float(value), "consensus": float(consensus), "rounds": rounds, "bytes": bytes}

    def get_one_result(self):
        return {"x": torch.zeros_like(self.problem.start()), "rounds": 0, "bytes": 0}
