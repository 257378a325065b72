"""Handcrafted methods, one file each. METHODS is the table that tuning, benchmarks, the command line and the laws run over."""

from milodo.algorithms.base import Algorithm, Choice, Fraction, StepSize, check_parameter
from milodo.algorithms.dapg import DAPG
from milodo.algorithms.fastmix import fastmix
from milodo.algorithms.odapg import ODAPG
from milodo.algorithms.pg_extra import PGExtra
from milodo.algorithms.primal_dual import PrimalDual
from milodo.algorithms.prox_atc import ProxATC
from milodo.algorithms.prox_dgd import ProxDGD
from milodo.algorithms.prox_ed import ProxED

METHODS: dict[str, type[Algorithm]] = {
    "prox-dgd": ProxDGD,
    "prox-atc": ProxATC,
    "pg-extra": PGExtra,
    "prox-ed": ProxED,
    "dapg": DAPG,
    "odapg": ODAPG,
    "primal-dual": PrimalDual,
}

__all__ = [
    "DAPG", "METHODS", "ODAPG", "Algorithm", "Choice", "Fraction", "PGExtra", "PrimalDual", "ProxATC", "ProxDGD", "ProxED",
    "StepSize", "check_parameter", "fastmix",
]  # fmt: skip
