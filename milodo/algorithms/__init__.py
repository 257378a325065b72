"""Handcrafted methods, one file each. METHODS is the table that tuning, benchmarks, the command line and the laws run over."""

from milodo.algorithms.accelerated_ed import AcceleratedED
from milodo.algorithms.admm import ADMM
from milodo.algorithms.ahead import Ahead
from milodo.algorithms.apapc import APAPC
from milodo.algorithms.base import Algorithm
from milodo.algorithms.d_psgd import DPSGD
from milodo.algorithms.dapg import DAPG
from milodo.algorithms.decentlam import DecentLaM
from milodo.algorithms.dsgdm import DSGDm
from milodo.algorithms.flood_apg import FloodAPG
from milodo.algorithms.gradient_tracking import GradientTracking
from milodo.algorithms.lepdo import LEPDO
from milodo.algorithms.odapg import ODAPG
from milodo.algorithms.parameters import Choice, Continuous, Factor, Fraction, Given, Parameter, Share, StepSize
from milodo.algorithms.pg_extra import PGExtra
from milodo.algorithms.primal_dual import PrimalDual
from milodo.algorithms.prox_atc import ProxATC
from milodo.algorithms.prox_dgd import ProxDGD
from milodo.algorithms.prox_ed import ProxED
from milodo.algorithms.qg_dsgdm import QGDSGDm
from milodo.algorithms.tree_apg import TreeAPG
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
    "tree-apg": TreeAPG,
    "tree-newton": TreeNewton,
    "flood-apg": FloodAPG,
    "apapc": APAPC,
    "admm": ADMM,
    "d-psgd": DPSGD,
    "dsgdm": DSGDm,
    "qg-dsgdm": QGDSGDm,
    "decentlam": DecentLaM,
    "gradient-tracking": GradientTracking,
}

__all__ = [
    "ADMM", "APAPC", "DAPG", "DPSGD", "LEPDO", "METHODS", "ODAPG", "AcceleratedED", "Ahead", "Algorithm", "Choice", "Continuous",
    "DSGDm", "DecentLaM", "Factor", "FloodAPG", "Fraction", "Given", "GradientTracking", "PGExtra",
    "Parameter", "PrimalDual", "ProxATC", "ProxDGD", "ProxED", "QGDSGDm", "Share", "StepSize",
    "TreeAPG", "TreeNewton",
]  # fmt: skip
