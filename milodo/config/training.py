"""[training]: what `milodo train` makes, and how."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, model_validator

from milodo.config.tables import Count, Instances, NetworkTable, NonNegativeNumber, Positive, Table
from milodo.errors import unknown
from milodo.learned import LEARNED
from milodo.learned.base import Recipe


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


class EvolutionTable(Table):
    """[training.evolution]: the meta-gradient from 2 `pairs` whole runs, with weights moved by ± sigma times N(0, 1)."""

    pairs: Count = 4
    sigma: Positive = 0.1
    looks: Count = 10
    """At the loss in a run of K iterations."""


PAPER_STAGES = [
    StageTable(K_T=5, K=10, epochs=20, lr=5e-4),
    StageTable(K_T=10, K=20, epochs=10, lr=1e-4),
    StageTable(K_T=20, K=40, epochs=10, lr=5e-5),
    StageTable(K_T=40, K=80, epochs=10, lr=1e-5),
    StageTable(K_T=20, K=100, epochs=5, lr=1e-5),
]
"""Section 5, Experimental setup."""


class TrainingTable(Table):
    """[training]: what `milodo train` makes."""

    optimizer: SerializeAsAny[Recipe] = LEARNED["milodo"].Recipe(kind="milodo")
    """[training.optimizer]: its kind, and what that kind's own table says (`recipe`)."""
    good_for: str = ""
    """One sentence for `milodo optimizers`."""
    loss: Literal["objective", "log-objective", "log-gap"] = "objective"
    """'objective' is the paper's f(x) + r(x) at the average, 'log-objective' its logarithm; 'log-gap' that of its distance
    from the certified optimum."""
    consensus: NonNegativeNumber = 0.0
    """Weight of the consensus error in the loss; the paper's loss sees only the average."""
    instances: Instances = 512
    """Of each shape."""
    d: Count | None = None
    """Of the training problems; [problem]'s unless given."""
    N: Annotated[list[Count], Field(min_length=1)] | None = None
    """Shapes of a meta training set, one for each number of samples a node; [problem]'s unless given."""
    network: NetworkTable | None = None
    """[training.network]: the links it is trained on; [network] unless given."""
    worlds: list[dict[str, Any]] | None = None
    """[[training.worlds]]: problems of several kinds, each what of [problem] is different, and may have its `topology`;
    [problem] itself unless given."""
    evolution: EvolutionTable | None = None
    """Evolution strategies in place of truncated backpropagation, if given; stages then have K_T = K."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the meta-gradient; inf leaves it as it is, as the paper does."""
    recompute: bool = False
    """Forget what a step computed and compute it again for the gradient: a third more time, far less memory."""
    validation_instances: Instances = 8
    validation_iterations: Count = 500
    validation_gaps: Annotated[list[Positive], Field(min_length=1)] | None = None
    """What is chosen by: fewest iterations to these gaps, in fp64; unless given, the lowest gap after validation_iterations."""
    validate_every: Count = 3000
    """Unrolled iterations between two validations; every stage ends with one."""
    stages: Annotated[list[StageTable], Field(min_length=1)] = PAPER_STAGES

    @model_validator(mode="after")
    def _known(self) -> TrainingTable:
        if self.worlds is not None and (self.N is not None or self.d is not None or not self.worlds):
            raise ValueError("[[training.worlds]] say all of their shapes: give at least one, and neither N nor d beside them.")
        if self.evolution is not None and any(stage.K_T != stage.K for stage in self.stages):
            raise ValueError("[training.evolution] looks at whole runs: give its stages K_T = K.")
        longest, most = max(stage.K for stage in self.stages), self.optimizer.longest
        if most is not None and longest > most:
            raise ValueError(f"a stage unrolls {longest} iterations, but {self.optimizer.kind} can do {most}. Shorten K.")
        if self.optimizer.from_scratch and self.validation_gaps is not None:
            raise ValueError("[training] validation_gaps need first weights that converge; random ones need not. Leave it out.")
        if self.optimizer.from_scratch and longest > self.validation_iterations:
            raise ValueError(
                f"[training] validation_iterations = {self.validation_iterations}, but a stage ends only when the loss falls "
                f"over its K = {longest} iterations (random first weights). Validate at least as long."
            )
        return self


def recipe(said: Any) -> type[Recipe]:
    """The table that [training.optimizer] must be: that of the kind it names."""
    kind = said.get("kind", "milodo") if isinstance(said, dict) else said
    if not isinstance(kind, str) or kind not in LEARNED:
        raise unknown("kind of optimizer", kind, LEARNED)
    return LEARNED[kind].Recipe
