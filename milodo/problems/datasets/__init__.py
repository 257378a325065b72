"""Real data, as their publishers give them out."""

from milodo.problems.datasets.adult import census
from milodo.problems.datasets.bsds import bsds500
from milodo.problems.datasets.bundled import breast_cancer, digits
from milodo.problems.datasets.cifar import cifar10
from milodo.problems.datasets.idx import mnist
from milodo.problems.datasets.store import data_folder, watching

__all__ = ["breast_cancer", "bsds500", "census", "cifar10", "data_folder", "digits", "mnist", "watching"]
