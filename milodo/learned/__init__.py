"""Learned optimizers: ordinary Algorithms whose weights come from training. LEARNED is their table, as METHODS is the others'."""

from milodo.learned.activations import BOUNDED, PLAIN, Activations, Bounded, Exp, ReLU
from milodo.learned.base import Learned
from milodo.learned.base_rules import BaseRules
from milodo.learned.lpg_extra import LPGExtra
from milodo.learned.milodo import MiLoDo, special_initialisation
from milodo.learned.plus import Plus
from milodo.learned.shared import Shared

LEARNED: dict[str, type[Learned]] = {cls.kind: cls for cls in (MiLoDo, LPGExtra, BaseRules, Plus, Shared)}

__all__ = [
    "BOUNDED", "LEARNED", "PLAIN", "Activations", "BaseRules", "Bounded", "Exp", "LPGExtra", "Learned", "MiLoDo", "Plus",
    "ReLU", "Shared",
    "special_initialisation",
]  # fmt: skip
