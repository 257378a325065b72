"""One model from data at several sites: scaling, moments, the choice of a method, and what is known about the answer."""

from milodo.fit.model import Fitted, fit_model
from milodo.fit.pooled import LOSSES, Scaling, pooled_problem, scaling
from milodo.fit.task import Fit, Task

__all__ = ["LOSSES", "Fit", "Fitted", "Scaling", "Task", "fit_model", "pooled_problem", "scaling"]
