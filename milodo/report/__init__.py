"""Figures and a self-contained HTML report of a run, made from its records alone."""

from milodo.report.figures import draw_topology
from milodo.report.html import write_report
from milodo.report.training import draw_training

__all__ = ["draw_topology", "draw_training", "write_report"]
