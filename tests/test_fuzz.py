"""Files that nobody wrote on purpose: thousands of damaged ones, each read or refused in one sentence, and nothing else.

What is damaged, and how, depends on fixed seeds alone (tests/mutations.py). A damaged file may still be valid.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mutations import mutated_bytes, mutated_text, mutated_tree
from rich.console import Console

from milodo.bench.benchmark import Benchmark
from milodo.bench.merge import merge_runs
from milodo.bench.records import read_json
from milodo.cli.tables import race_tables, tuning_table
from milodo.config import load_experiment, parse_experiment
from milodo.errors import InvalidInput
from milodo.learned import BaseRules, LPGExtra, MiLoDo
from milodo.learned.checkpoint import load_optimizer, save_optimizer
from milodo.problems.sites import classes_here, indicator, numeric_target, read_site, two_classes
from milodo.report import html, write_report
from milodo.report.run import Run

LONGEST = 600
"""Characters of a message: longer ones are not read."""
EXPERIMENTS = sorted((Path(__file__).parent.parent / "experiments").glob("*.toml"))
WIDE = 120
"""Columns of a terminal."""


def refusals(cases: Iterator[tuple[Any, Callable[[], object]]]) -> int:
    """How many of the cases were refused; each is done, or ends in one short sentence."""
    count = 0
    for seen, do in cases:
        try:
            do()
        except InvalidInput as error:
            count += 1
            said = str(error)
            assert len(said) <= LONGEST and "\n" not in said, f"{seen}: {len(said)} characters: {said[:2000]}"
        except Exception as error:
            error.add_note(f"case: {seen!r:.3000}")
            raise
    return count
