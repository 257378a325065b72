"""`milodo ARGUMENTS`, where one process sends bytes at random instead of coded messages: python rubbish.py FIRST RANK ARGUMENTS.

The process RANK does so from its so many-th message on.
"""

from __future__ import annotations

import itertools
import os
import sys

import torch

from milodo.cli.main import entry
from milodo.network import distributed

if __name__ == "__main__":
    first, rank, *sys.argv[1:] = sys.argv[1:]
    if os.environ["RANK"] == rank:
        count, trimmed = itertools.count(1), distributed.trimmed
        distributed.trimmed = lambda message: (
            torch.randint_like(trimmed(message), 1, 255) if next(count) > int(first) else trimmed(message)
        )
    entry()
