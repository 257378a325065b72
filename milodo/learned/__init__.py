"""Learned optimizers: ordinary Algorithms whose weights come from networks."""

from milodo.learned.activations import Bounded, Exp, ReLU
from milodo.learned.bank import Bank
from milodo.learned.initial import special_initialisation
from milodo.learned.optimizer import BOUNDED, PLAIN, Activations, MiLoDo

__all__ = ["BOUNDED", "PLAIN", "Activations", "Bank", "Bounded", "Exp", "MiLoDo", "ReLU", "special_initialisation"]
