"""What every method and every problem must do, as functions: run them on your own (docs/extending.md).

>>> from milodo.algorithms import ProxED
>>> from milodo.testing import METHOD_LAWS, check_method
>>> few = [law for law in METHOD_LAWS if law.__name__ in ("counts_its_rounds", "keeps_precision_and_shape")]
>>> check_method(ProxED, lambda problem: {"gamma": 0.5 / float(problem.lipschitz().max())}, laws=few)
"""

from milodo.testing.method_laws import METHOD_LAWS, MethodCase, check_method
from milodo.testing.problem_laws import PROBLEM_LAWS, ProblemCase, check_problem

__all__ = ["METHOD_LAWS", "PROBLEM_LAWS", "MethodCase", "ProblemCase", "check_method", "check_problem"]
