"""[reproduction.expect]: a claim of the paper in numbers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from milodo.config.tables import Positive, Table


class ExpectTable(Table):
    """[reproduction.expect]: the claim in numbers, of which the verdict is made. Every key but the first four is a check."""

    method: str = "milodo"
    over: str = "prox-ed"
    """A handcrafted method that races tuned, and published or safe."""
    gap: Positive | None = None
    """To be reached; without it, the loss at which `over` ended."""
    axis: Literal["k", "seconds"] = "k"
    """What is counted."""
    speedup: Positive | None = None
    """`method` needs so many times less than `over`, at least."""
    consensus: Positive | None = None
    """So many times fewer iterations to the smallest consensus error that both reach."""
    overhead: Positive | None = None
    """An iteration of `method` takes at most so much more time than one of `over`: 0.2 is 20 %."""
    converge: list[str] = Field(default_factory=list)
    """Methods that end at the gap, or below, on every instance."""
    fail: list[str] = Field(default_factory=list)
    """Methods that do so on less than half of them."""
    optimal: Positive | None = None
    """Published step sizes need at most so many times the iterations of tuned ones, method by method."""
    alike: Positive | None = None
    """The first panel needs at most so many times the iterations of any other; for the whole figure, not for a panel."""

    @model_validator(mode="after")
    def _complete(self) -> ExpectTable:
        if self.gap is None and (self.converge or self.fail or self.optimal or self.alike):
            raise ValueError("[reproduction.expect] needs 'gap': what is to be reached.")
        return self
