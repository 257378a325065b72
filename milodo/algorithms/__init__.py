"""Handcrafted methods, one file each. METHODS is the table that tuning, benchmarks, the command line and the laws run over."""

from milodo.algorithms.accelerated_ed import AcceleratedED
from milodo.algorithms.admm import ADMM
from milodo.algorithms.apapc import APAPC
from milodo.algorithms.base import Algorithm
from milodo.algorithms.dapg import DAPG
from milodo.algorithms.guard import Guarded
from milodo.algorithms.guarded_ed import GuardedED
from milodo.algorithms.lepdo import LEPDO
from milodo.algorithms.odapg import ODAPG
from milodo.algorithms.parameters import Choice, Continuous, Factor, Fraction, Given, Parameter, StepSize
from milodo.algorithms.pg_extra import PGExtra
from milodo.algorithms.primal_dual import PrimalDual
from milodo.algorithms.prox_atc import ProxATC
from milodo.algorithms.prox_dgd import ProxDGD
from milodo.algorithms.prox_ed import ProxED
from milodo.algorithms.prox_lead import ProxLEAD
from milodo.algorithms.remembering import Remembering
from milodo.algorithms.tree_apg import FloodAPG, TreeAPG
from milodo.algorithms.tree_newton import TreeNewton

METHODS: dict[str, type[Algorithm]] = {
    "prox-dgd": ProxDGD,
    "prox-atc": ProxATC,
    "pg-extra": PGExtra,
    "prox-ed": ProxED,
    "dapg": DAPG,
    "odapg": ODAPG,
    "primal-dual": PrimalDual,
    "lepdo": LEPDO,
    "accelerated-ed": AcceleratedED,
    "guarded-ed": GuardedED,
    "tree-apg": TreeAPG,
    "tree-newton": TreeNewton,
    "flood-apg": FloodAPG,
    "apapc": APAPC,
    "admm": ADMM,
    "prox-lead": ProxLEAD,
}

__all__ = [
    "ADMM", "APAPC", "DAPG", "LEPDO", "METHODS", "ODAPG", "AcceleratedED", "Algorithm", "Choice", "Continuous", "Factor",
    "FloodAPG", "Fraction", "Given", "Guarded", "GuardedED", "PGExtra", "Parameter", "PrimalDual", "ProxATC", "ProxDGD",
    "ProxED", "ProxLEAD", "Remembering", "StepSize", "TreeAPG", "TreeNewton",
]  # fmt: skip
