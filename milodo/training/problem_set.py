"""What an optimizer is trained and validated on: seeds, from which a batch of instances is built when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from milodo.config import Experiment, TrainingTable
from milodo.config.tables import ProblemTable
from milodo.errors import InvalidInput, quoted
from milodo.files import FORMAT, read_versioned_json, write_json
from milodo.problems import Family, Problem, instance_seeds, optimum
from milodo.problems.base import stream
from milodo.types import Point

ORDER = 1 << 33
"""Stands in a stream's key for: the order of an epoch's instances."""
TOGETHER = 32
"""Instances whose optimum is certified at a time."""
VALIDATED_SHAPES = 4
"""Of a meta set, at most so many shapes are validated on, from the smallest to the largest; of worlds all."""

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Batch:
    """Instances of one shape."""

    family: int
    seeds: tuple[int, ...]


class ProblemSet:
    """Instances of one family, or of one for each number of samples (the paper's meta set)."""

    def __init__(
        self, families: list[Family], purpose: str, instances: int, seed: int, dtype: torch.dtype, graphs: list[str | None]
    ) -> None:
        self.families, self.seed, self.dtype, self.graphs = families, seed, dtype, graphs
        numbers = instance_seeds(purpose, instances * len(families), seed)
        self.seeds = [numbers[start : start + instances] for start in range(0, len(numbers), instances)]
        self.optima: dict[int, float] = {}
        """Of certified instances, by seed."""

    def epoch(self, key: tuple[int, ...], size: int) -> list[Batch]:
        """Every instance once, in an order that depends on the key alone."""
        order = stream(self.seed, ORDER, *key)
        batches = []
        for index, seeds in enumerate(self.seeds):
            shuffled = [seeds[k] for k in order.permutation(len(seeds))]
            batches += [Batch(index, tuple(shuffled[a : a + size])) for a in range(0, len(seeds), size)]
        return [batches[k] for k in order.permutation(len(batches))]

    def problem(self, batch: Batch) -> Problem:
        return self.families[batch.family].sample(batch.seeds, dtype=self.dtype)

    def optimum(self, batch: Batch) -> Point | None:
        """None of problems that know none."""
        if not self.optima:
            return None
        return torch.tensor([self.optima[seed] for seed in batch.seeds], dtype=torch.float64)

    def certify(self, progress: Progress, file: Path | None = None) -> None:
        """Finds the optimum of every instance, group by group, going on where an earlier start of this training stopped.

        Of problems that do not know what it takes to look for one, as those of networks, none is found.
        """
        places = [(index, slice(a, a + TOGETHER)) for index, own in enumerate(self.seeds) for a in range(0, len(own), TOGETHER)]
        groups = [Batch(index, tuple(self.seeds[index][some])) for index, some in places]
        known = _read_optima(file) if file is not None else {}
        for done, group in enumerate(groups):
            if all(seed in known for seed in group.seeds):
                self.optima.update({seed: known[seed] for seed in group.seeds})
                progress((done + 1) / len(groups), "from the last start")
                continue
            family = self.families[group.family]
            problem = family.sample(group.seeds, dtype=family.judged_in)
            if not problem.knows_lipschitz:
                return
            found = optimum(problem)
            if not bool(found.certified.all()):
                raise InvalidInput(
                    f"no optimum could be certified for an instance of {self.families[group.family].name}: its gap is unknown. "
                    "Train with loss = 'objective', or change the problem: it may have no minimum."
                )
            self.optima.update(zip(group.seeds, found.value.tolist(), strict=True))
            if file is not None:
                write_json(file, {"format": FORMAT, "optima": {str(seed): value for seed, value in self.optima.items()}})
            progress((done + 1) / len(groups), f"{found.kind} <= {float(found.certificate.max()):.0e}")


def _read_optima(file: Path) -> dict[int, float]:
    """By seed; nothing if there is no such file. What is not a number is not taken."""
    if not file.is_file():
        return {}
    values = read_versioned_json(file).get("optima")
    pairs = values.items() if isinstance(values, dict) else []
    return {int(seed): value for seed, value in pairs if seed.isdecimal() and isinstance(value, float)}


def _table(experiment: Experiment) -> TrainingTable:
    assert experiment.training is not None
    return experiment.training


def training_families(experiment: Experiment) -> list[Family]:
    """Of the problems that an optimizer is trained on: one, one a shape, or one a world."""
    table, problem = _table(experiment), experiment.problem
    if table.worlds is not None:
        own = problem.model_dump(exclude_none=True)
        return [_world(own, {k: v for k, v in world.items() if k != "topology"}).build() for world in table.worlds]
    return [problem.model_copy(update={"d": table.d or problem.d, "N": N}).build() for N in table.N or [problem.N]]


def training_graphs(experiment: Experiment) -> list[str | None]:
    """The graph of each of them; None for the experiment's."""
    table = _table(experiment)
    return [None] * len(table.N or [None]) if table.worlds is None else [world.get("topology") for world in table.worlds]


def _world(own: dict[str, Any], world: dict[str, Any]) -> ProblemTable:
    """[problem] with what is different."""
    if "regularizer" in world:
        own = {key: value for key, value in own.items() if key != "lam"}
    try:
        return ProblemTable.model_validate({**own, **world})
    except ValidationError as error:
        said = error.errors(include_input=False)[0]
        where = ".".join(map(str, said["loc"])) or "its keys"
        raise InvalidInput(
            f"[[training.worlds]] {quoted(world)}: {where}: {said['msg'].removeprefix('Value error, ')}."
        ) from error


def training_set(experiment: Experiment, dtype: torch.dtype) -> ProblemSet:
    families, graphs = training_families(experiment), training_graphs(experiment)
    return ProblemSet(families, "training", _table(experiment).instances, experiment.seed, dtype, graphs)


def validation_set(experiment: Experiment, dtype: torch.dtype) -> ProblemSet:
    table, families, graphs = _table(experiment), training_families(experiment), training_graphs(experiment)
    count = len(families) if table.worlds is not None else min(VALIDATED_SHAPES, len(families))
    chosen = [round(k * (len(families) - 1) / max(count - 1, 1)) for k in range(count)]
    each = max(1, table.validation_instances // count)
    return ProblemSet([families[k] for k in chosen], "validation", each, experiment.seed, dtype, [graphs[k] for k in chosen])
