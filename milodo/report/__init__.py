"""Figures and a self-contained HTML report of a run, made from its records alone: figures, html, training."""
