"""Experiments in TOML: what they may say, and one sentence for every mistake."""

from milodo.config.experiment import Experiment, load_experiment, parse_experiment
from milodo.config.tables import MethodTable
from milodo.config.training import PAPER_STAGES, StageTable, TrainingTable

__all__ = [
    "PAPER_STAGES", "Experiment", "MethodTable", "StageTable", "TrainingTable", "load_experiment", "parse_experiment",
]  # fmt: skip
