"""Real data, as their publishers give them out."""

from milodo.problems.datasets.cifar import cifar10
from milodo.problems.datasets.idx import mnist
from milodo.problems.datasets.store import data_folder, watching

__all__ = ["cifar10", "data_folder", "mnist", "watching"]
