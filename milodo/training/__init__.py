"""Training of learned optimizers: problem sets, the meta-loss, truncated backpropagation through time, exact resume."""

from milodo.training.trainer import Trainer, TrainingFailed

__all__ = ["Trainer", "TrainingFailed"]
