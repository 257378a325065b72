"""[training]: what `milodo train` makes, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from milodo.config.tables import Count, Instances, NonNegativeNumber, Positive, Table
from milodo.errors import unknown
from milodo.learned import BOUNDED, LEARNED, Bounded
from milodo.learned.activations import Activation
from milodo.learned.base import Hidden


class StageTable(Table):
    """[[training.stages]]: `epochs` times over the training set, K iterations in segments of K_T, one Adam step a segment."""

    K_T: Count
    K: Count
    epochs: Count
    lr: Positive
    batch: Count = 32

    @model_validator(mode="after")
    def _divides(self) -> StageTable:
        if self.K % self.K_T:
            raise ValueError(f"[[training.stages]]: K = {self.K} is not a multiple of K_T = {self.K_T}. Change one of them.")
        return self


PAPER_STAGES = [
    StageTable(K_T=5, K=10, epochs=20, lr=5e-4),
    StageTable(K_T=10, K=20, epochs=10, lr=1e-4),
    StageTable(K_T=20, K=40, epochs=10, lr=5e-5),
    StageTable(K_T=40, K=80, epochs=10, lr=1e-5),
    StageTable(K_T=20, K=100, epochs=5, lr=1e-5),
]
"""Section 5, Experimental setup."""
Range = Annotated[list[Positive], Field(min_length=2, max_length=2)]


def _range(activation: Activation) -> list[float]:
    assert isinstance(activation, Bounded)
    return [activation.low, activation.high]


class BoundsTable(Table):
    """[training.bounds]: between which p_i (m), p~_ij,1 (s) and p_ij,2 (u) stay; Theorem 2 needs such bounds."""

    m: Range = _range(BOUNDED.m)
    s: Range = _range(BOUNDED.s)
    u: Range = _range(BOUNDED.u)


class TrainingTable(Table):
    """[training]: what `milodo train` makes."""

    optimizer: str = "milodo"
    good_for: str = ""
    """One sentence for `milodo optimizers`."""
    initial: Literal["special", "random"] = "special"
    gamma: Positive = 0.03
    """Step size of the method that special initialisation mimics."""
    hidden: Hidden | None = None
    every: Count = 1
    """MiLoDo's networks run in the first 20 iterations and in each `every`-th after them; its weights are kept in between."""
    layers: Annotated[int, Field(ge=1, le=100)] = 100
    """Of LPG-EXTRA."""
    activations: Literal["bounded", "plain"] = "bounded"
    bounds: BoundsTable = BoundsTable()
    loss: Literal["objective", "log-gap"] = "objective"
    """'objective' is the paper's f(x) + r(x) at the average; 'log-gap' its logarithmic distance from the certified optimum."""
    consensus: NonNegativeNumber = 0.0
    """Weight of the consensus error in the loss; the paper's loss sees only the average."""
    instances: Instances = 512
    """Of each shape."""
    d: Count | None = None
    """Of the training problems; [problem]'s unless given."""
    N: Annotated[list[Count], Field(min_length=1)] | None = None
    """Shapes of a meta training set, one for each number of samples a node; [problem]'s unless given."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the meta-gradient; inf leaves it as it is, as the paper does."""
    recompute: bool = False
    """Forget what a step computed and compute it again for the gradient: a third more time, far less memory."""
    validation_instances: Instances = 8
    validation_iterations: Count = 500
    validate_every: Count = 3000
    """Unrolled iterations between two validations; every stage ends with one."""
    stages: Annotated[list[StageTable], Field(min_length=1)] = PAPER_STAGES

    @model_validator(mode="after")
    def _known(self) -> TrainingTable:
        if self.optimizer not in LEARNED:
            raise ValueError(str(unknown("optimizer", self.optimizer, LEARNED)))
        for name, (low, high) in self.bounds.model_dump().items():
            if low >= high:
                raise ValueError(f"[training.bounds] {name} = [{low}, {high}]: the first must be smaller.")
        for key in sorted(self.model_fields_set & OTHERS[self.optimizer]):
            raise ValueError(f"[training] {key} means nothing for {self.optimizer!r}. Remove the key.")
        if self.activations == "plain" and "bounds" in self.model_fields_set:
            raise ValueError("[training] has both activations = 'plain' and bounds. Remove one of them.")
        if self.optimizer == "base-rules" and self.initial == "special":
            raise ValueError("[training]: the base rules have no special initialisation. Write initial = 'random'.")
        longest = max(stage.K for stage in self.stages)
        if self.optimizer == "lpg-extra" and longest > self.layers:
            raise ValueError(f"a stage unrolls {longest} iterations, but LPG-EXTRA has {self.layers} layers. Shorten K.")
        if self.initial == "random" and longest > self.validation_iterations:
            raise ValueError(
                f"[training] validation_iterations = {self.validation_iterations}, but a stage ends only when the loss falls "
                f"over its K = {longest} iterations (initial = 'random'). Validate at least as long."
            )
        return self


OTHERS = {
    "milodo": {"layers"},
    "lpg-extra": {"hidden", "every", "activations", "bounds", "initial"},
    "base-rules": {"layers", "every", "activations", "bounds", "gamma"},
}
"""Keys of [training] that another kind of optimizer reads."""
