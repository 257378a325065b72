"""One model from data at several sites: scaling, moments, the choice of a method, and what is known about the answer."""

from milodo.fit.model import Plan, fit_model
from milodo.fit.path import Choice, PenaltyPath, fit_path
from milodo.fit.pooled import LOSSES, Scaling, pooled_problem, scaling
from milodo.fit.sites import Site, choose_here, choose_sites, fit_here, fit_sites
from milodo.fit.task import Fit, Task

__all__ = [
    "LOSSES", "Choice", "Fit", "PenaltyPath", "Plan", "Scaling", "Site", "Task", "choose_here", "choose_sites", "fit_here",
    "fit_model", "fit_path", "fit_sites", "pooled_problem", "scaling",
]  # fmt: skip
