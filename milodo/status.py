"""How a run can end."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """How a run ended. Divergence is a result, not an exception."""

    RUNNING = "still running"
    CONVERGED = "reached the tolerance asked for"
    STALLED = "came no nearer, check after check"
    STEPS = "used all the iterations it was given"
    TIME = "used all the seconds it was given"
    DIVERGED = "diverged: the loss is no longer finite, or has grown a million times"
    INTERRUPTED = "stopped by the user; what was recorded is kept"

    @property
    def sentence(self) -> str:
        return self.value
