"""`milodo ARGUMENTS`, where one process computes wrongly: python broken.py KIND FIRST RANK ARGUMENTS.

From its so many-th gradient on, the gradients of the process RANK are NaN, infinite, or those of another function.
"""

from __future__ import annotations

import itertools
import os
import sys

import torch

from milodo.cli.main import entry
from milodo.problems.linear import LinearModel

WRONG = {
    "nan": lambda g: g * torch.nan,
    "inf": lambda g: g + torch.inf,
    "turned": lambda g: -g,
    "shifted": lambda g: g + 1.0,
}
if __name__ == "__main__":
    kind, first, rank, *sys.argv[1:] = sys.argv[1:]
    if os.environ["RANK"] == rank:
        count, right = itertools.count(1), LinearModel.pull_back
        LinearModel.pull_back = lambda self, v: WRONG[kind](right(self, v)) if next(count) > int(first) else right(self, v)
    entry()
