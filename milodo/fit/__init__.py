"""One model from data at several sites: scaling, moments, the choice of a method, and what is known about the answer."""

from milodo.fit.model import Plan, fit_model
from milodo.fit.pooled import LOSSES, Scaling, pooled_problem, scaling
from milodo.fit.sites import Site, fit_here, fit_sites
from milodo.fit.task import Fit, Task

__all__ = ["LOSSES", "Fit", "Plan", "Scaling", "Site", "Task", "fit_here", "fit_model", "fit_sites", "pooled_problem", "scaling"]
