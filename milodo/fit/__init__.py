"""One model from data at several sites: request, scaled problem, plan, solution, report; and paths of penalties."""

from milodo.fit.model import WarmStart, fit_model
from milodo.fit.path import Choice, PenaltyPath, fit_path
from milodo.fit.planning import Plan
from milodo.fit.pooled import LOSSES, Scaling, pooled_problem, scaling
from milodo.fit.request import Listeners, Request, Samples
from milodo.fit.sites import Site, choose_here, fit_here, samples_of
from milodo.fit.task import Fit, Task

__all__ = [
    "LOSSES", "Choice", "Fit", "Listeners", "PenaltyPath", "Plan", "Request", "Samples", "Scaling", "Site", "Task", "WarmStart",
    "choose_here", "fit_here", "fit_model", "fit_path", "pooled_problem", "samples_of", "scaling",
]  # fmt: skip
