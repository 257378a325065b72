"""Truncated backpropagation through time over stages (Section 4.3, Appendix E.1), with validation, a guard and exact resume."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from milodo.config import Experiment, StageTable
from milodo.errors import InvalidInput
from milodo.files import FORMAT, read_versioned_json, write_json
from milodo.folder import RunFolder
from milodo.learned import fused
from milodo.learned.checkpoint import save_optimizer
from milodo.loop import advance, iterate
from milodo.metrics import consensus_error, mean_point
from milodo.network import Network, StackedObserver
from milodo.problems import Problem
from milodo.provenance import provenance
from milodo.stopping import GROWTH, StoppingCriterion
from milodo.training.evolution import estimate, whole_run
from milodo.training.log import Log, Row
from milodo.training.loss import MetaLoss, falling
from milodo.training.problem_set import Batch, training_set, validation_set
from milodo.training.saving import Position, adam_state, load_position, restore_adam, save_position
from milodo.training.validation import log_iterations
from milodo.tree import detached

BETAS = (0.9, 0.999)
"""Of Adam (Section 5)."""
SAVE_EVERY = 30.0
"""Seconds between two saved positions; what a kill may cost."""
PATIENCE = 3
"""Batches rolled back in a row before training returns to its best weights at half the rate."""
SLOWEST = 1 / 64
"""The smallest fraction of the stage's rate that is tried before training gives up."""
OVERTIME = 4
"""Under random initialisation a stage lasts until the loss falls, but at most so many times its epochs."""
ASKED = {"name", "seed", "problem", "network", "training"}
"""What of an experiment makes a training."""
DTYPE = torch.float32
OBSERVER = StackedObserver()

Progress = Callable[[str, float, str], None]
"""Called with a task's name, the fraction of it that is done, and a word on where it is."""


class TrainingFailed(InvalidInput):
    """Training cannot go on; says what to change."""


class Trainer:
    """One experiment's [training] in one folder:

    training.json        what was asked, and by which versions
    training.csv         loss and validation, one row a batch; tensorboard/ the same for TensorBoard
    optima.json          certified optima of the training instances, where the loss needs them
    resume.safetensors   where to go on
    NAME.safetensors     the best weights so far on validation, with their card NAME.json
    """

    def __init__(
        self, experiment: Experiment, folder: Path, progress: Progress | None = None, command: str | None = None
    ) -> None:
        if experiment.training is None:
            raise InvalidInput(f"{experiment.name} has no [training] table, so there is nothing to train. Add one.")
        self.experiment, self.table, self.folder, self.command = experiment, experiment.training, folder, command
        self.progress = progress or (lambda task, fraction, detail: None)
        self.nets: dict[tuple[torch.dtype, str | None], Network] = {}
        self.net = self._network(DTYPE)
        self.loss = MetaLoss(self.table.loss, self.table.consensus)
        judged = DTYPE if self.table.validation_gaps is None else torch.float64
        self.training, self.validation = training_set(experiment, DTYPE), validation_set(experiment, judged)
        self.judged = judged
        with torch.random.fork_rng(devices=[]):  # weights depend on the experiment's seed alone
            torch.manual_seed(experiment.seed)
            self.optimizer = self.table.optimizer.make(self.net, self.training.families[0].d, experiment.seed)
        self.position = Position()
        self.best = self._weights()
        self.adam = self._new_adam()
        self.resume_file, self.facts_file = folder / "resume.safetensors", folder / "training.json"
        self.saved_at = time.perf_counter()
        self.made_with = {**provenance(), **fused.provenance()}

    def run(self, *, resume: bool = False, overwrite: bool = False) -> Path:
        """Trains, or goes on training, to the end; returns the path of the optimizer. Who stops it with Ctrl-C can go on."""
        self._prepare(resume=resume, overwrite=overwrite)
        self.validation.certify(partial(self.progress, "certified optimum, validation instances"))
        if self.loss.needs_optimum:
            progress = partial(self.progress, "certified optimum, training instances")
            self.training.certify(progress, self.folder / "optima.json")
            if not self.training.optima:
                name = self.training.families[0].name
                raise InvalidInput(f"the optimum of {name} cannot be known, and loss = 'log-gap' needs it. Use 'objective'.")
        self.log = Log(self.folder, self.position.rows, self.position.update)
        self.before = (self._weights(), adam_state(self.optimizer, self.adam), replace(self.position))
        self.clock = time.perf_counter() - self.position.seconds
        try:
            if self.position.best is None:
                self._validate()
            while self.position.stage < len(self.table.stages):
                self._epoch(self.table.stages[self.position.stage])
            self._save_position()
        except KeyboardInterrupt:
            self._return_to_last_batch()
            self._save_position()
            raise
        finally:
            self.log.close()
        return self.path

    def _network(self, dtype: torch.dtype, graph: str | None = None) -> Network:
        """The experiment's, or the same on another graph."""
        if (dtype, graph) not in self.nets:
            table = self.table.network or self.experiment.network
            table = table if graph is None else table.model_copy(update={"topology": graph})
            self.nets[dtype, graph] = table.network(seed=self.experiment.seed, dtype=dtype)
        return self.nets[dtype, graph]

    @property
    def path(self) -> Path:
        return self.folder / f"{self.experiment.name}.safetensors"

    def _prepare(self, *, resume: bool, overwrite: bool) -> None:
        if resume and not self.facts_file.exists():
            raise InvalidInput(f"nothing to resume in {str(self.folder)!r}: no training was begun there. Begin one.")
        leaves = ("resume.safetensors", "training.csv", "training.png", "training.svg", "optima.json", "tensorboard/events.*")
        outputs = (self.path.name, self.path.with_suffix(".json").name)
        folder = RunFolder(self.folder, "training", self.facts_file.name, leaves + outputs)
        config = self.experiment.model_dump(mode="json", include=ASKED)
        graph = self.net.topology.fingerprint
        if folder.begin(resume=resume, overwrite=overwrite):
            facts = read_versioned_json(self.facts_file)
            begun = {"configuration": _said(facts.get("config")), "graph": facts.get("topology")}
            folder.check_same(begun, {"configuration": _said(config), "graph": graph})
            self.position, moments, self.best = load_position(self.resume_file, self.optimizer)
            restore_adam(self.optimizer, self.adam, moments)
            return
        self._save_position()
        asked = {"config": config, "topology": graph, "command": self.command}
        write_json(self.facts_file, {"format": FORMAT, **asked, **self.made_with})

    def _epoch(self, stage: StageTable) -> None:
        batches = self.training.epoch((self.position.stage, self.position.epoch), stage.batch)
        while self.position.batch < len(batches):
            done = (self.position.epoch + self.position.batch / len(batches)) / stage.epochs
            row = self._batch(stage, batches[self.position.batch], done, 1 / len(batches) / stage.epochs)
            here = self.position
            here.batch += 1
            self._write(row)
            if here.iterations - here.validated >= self.table.validate_every:
                self._validate()
            if time.perf_counter() - self.saved_at > SAVE_EVERY:
                self._save_position()
        here = self.position
        here.epoch, here.batch = here.epoch + 1, 0
        if here.epoch >= stage.epochs and self._may_end(stage, self._validate()):
            self.progress(self._task(stage), 1.0, f"best validation {here.best:.3f} (log10 {self._falls})")
            here.stage, here.epoch = here.stage + 1, 0
            self.adam = self._new_adam()
        self._save_position()

    def _task(self, stage: StageTable) -> str:
        return f"stage {self.position.stage + 1} of {len(self.table.stages)}, ({stage.K_T}, {stage.K})"

    def _may_end(self, stage: StageTable, losses: list[float]) -> bool:
        """After its epochs; under random initialisation only once the loss falls (Appendix E.1)."""
        epochs = self.position.epoch
        if not self.table.optimizer.from_scratch or falling(losses[: stage.K]):
            return True
        if epochs < OVERTIME * stage.epochs:
            said = f"after {epochs} epochs the loss does not fall yet over {stage.K} iterations: the stage goes on"
            self._write(self._row(remark=said))
            return False
        raise TrainingFailed(
            f"after {epochs} epochs of stage {self.position.stage + 1} the loss still does not fall over {stage.K} iterations. "
            "Start from special weights, or with shorter K or a smaller lr."
        )

    def _batch(self, stage: StageTable, batch: Batch, done: float = 0.0, share: float = 0.0) -> Row:
        """K iterations in segments of K_T, one Adam step a segment; rolled back whole if a number is no longer finite.

        `done` is the fraction of the stage behind this batch, and `share` the batch's own.
        """
        here = self.position
        self.before = (self._weights(), adam_state(self.optimizer, self.adam), replace(here))
        problem = self.training.problem(batch)
        best = self.training.optimum(batch) if self.loss.needs_optimum else None
        best = None if best is None else best.to(DTYPE)
        lr = stage.lr * here.lr_scale
        for group in self.adam.param_groups:
            group["lr"] = lr
        net = self._network(DTYPE, self.training.graphs[batch.family])
        if self.table.evolution is not None:
            return self._evolve(stage, problem, net, best, done, lr)
        losses, norms = [], []
        state = next(iterate(self.optimizer, problem, net))
        # Random first weights need not converge yet: only what is no longer finite is undone.
        growth = math.inf if self.table.optimizer.from_scratch else GROWTH
        judge = StoppingCriterion(problem.at_step(0), OBSERVER, steps=stage.K, growth=growth)  # a minibatch shows a blow-up, too
        for first in range(1, stage.K, stage.K_T):
            state, loss, norm = self._segment(state, problem, best, range(first, first + stage.K_T), net)
            losses.append(loss)
            norms.append(norm)
            here.update += 1
            self._say(stage, loss, min(done + share * len(losses) * stage.K_T / stage.K, 0.999))
            if not (math.isfinite(loss) and math.isfinite(norm) and self._sane(state.x, judge)):
                self._return_to_last_batch()
                return self._roll_back(lr)
        here.iterations += stage.K
        here.failures = 0
        return self._row(loss=sum(losses) / len(losses), norm=max(norms), lr=lr)

    def _say(self, stage: StageTable, loss: float, done: float) -> None:
        best = "-" if self.position.best is None else f"{self.position.best:.3f}"
        self.progress(self._task(stage), done, f"loss {loss:.4g}, best validation {best} (log10 {self._falls})")

    def _evolve(
        self, stage: StageTable, problem: Problem, net: Network, best: torch.Tensor | None, done: float, lr: float
    ) -> Row:
        """One Adam step on what whole runs with moved weights say; runs that blow up count as bad, so nothing is rolled back."""
        here, table = self.position, self.table.evolution
        assert table is not None
        run = partial(whole_run, self.optimizer, problem, net, self.loss, best, stage.K, table.looks, OBSERVER)
        loss = estimate(self.optimizer, run, (self.experiment.seed, here.update), table.pairs, table.sigma)
        norm = float(torch.nn.utils.clip_grad_norm_(self.optimizer.parameters(), self.table.clip))
        self.adam.step()
        here.update += 1
        here.iterations += 2 * table.pairs * stage.K
        self._say(stage, loss, done)
        return self._row(loss=loss, norm=norm, lr=lr)

    def _segment(
        self, state: Any, problem: Problem, best: torch.Tensor | None, ks: range, net: Network | None = None
    ) -> tuple[Any, float, float]:
        """On the experiment's network unless given."""
        net = net or self.net
        self.adam.zero_grad()
        total = torch.zeros((), dtype=DTYPE)
        for k in ks:
            if self.table.recompute:
                state = checkpoint(advance, self.optimizer, state, problem, net, k, use_reentrant=False)
            else:
                state = advance(self.optimizer, state, problem, net, k)
            # Where iterations have minibatches, on the next one: the iterate has not seen it.
            total = total + self.loss(state.x, problem.at_step(k + 1), best, OBSERVER)
        loss = total / len(ks)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.optimizer.parameters(), self.table.clip)
        if math.isfinite(float(norm)):
            self.adam.step()
        return detached(state), float(loss.detach()), float(norm)

    def _sane(self, x: torch.Tensor, judge: StoppingCriterion) -> bool:
        return not bool(judge.diverged(judge.loss(x)).any())

    def _return_to_last_batch(self) -> None:
        """Weights, moments and position as they were before the batch that is under way."""
        weights, moments, position = self.before
        self.position = replace(position)
        self.optimizer.load_state_dict(weights)
        restore_adam(self.optimizer, self.adam, moments)

    def _roll_back(self, lr: float) -> Row:
        here = self.position
        here.rollbacks += 1
        here.failures += 1
        said = "the loss blew up: this batch is left out and its updates are undone"
        if here.failures >= PATIENCE:
            here.failures, here.lr_scale = 0, here.lr_scale / 2
            if here.lr_scale < SLOWEST:
                raise TrainingFailed(
                    f"the loss blows up even at {here.lr_scale * 2:g} of the learning rate (stage {here.stage + 1}). "
                    "Tighten the bounds of its activations, clip more, or train shorter K first."
                )
            self.optimizer.load_state_dict(self.best)
            self.adam = self._new_adam()
            said = f"{PATIENCE} batches in a row blew up: back to the best weights, at {here.lr_scale:g} of the learning rate"
        return self._row(lr=lr, remark=said)

    @torch.no_grad()
    def _validate(self) -> list[float]:
        """Runs on held-out instances; keeps the weights if they are the best so far; returns the mean loss of every iteration,
        where that is asked for."""
        here, iterations = self.position, self.table.validation_iterations
        if self.optimizer.longest is not None:
            iterations = min(iterations, self.optimizer.longest)
        scores, curves = [], []
        for index, seeds in enumerate(self.validation.seeds):
            batch = Batch(index, tuple(seeds))
            problem, best = self.validation.problem(batch), self.validation.optimum(batch)
            graph = self.validation.graphs[index]
            if self.table.validation_gaps is not None and best is not None:
                asked = self.table.validation_gaps
                score = log_iterations(
                    self.optimizer, problem, self._network(self.judged, graph), best, asked, iterations, OBSERVER
                )
                scores.append(float(score.mean()))
                continue
            losses, x, net = [], problem.start(), self._network(DTYPE, graph)
            for k, state in enumerate(islice(iterate(self.optimizer, problem, net), 1, iterations + 1), 2):
                x = state.x
                if self.table.optimizer.from_scratch:  # whose stages end by these
                    losses.append(problem.at_step(k).objective(mean_point(x, OBSERVER), OBSERVER))
            best = torch.zeros(len(seeds), dtype=torch.float64) if best is None else best
            gap = problem.objective(mean_point(x, OBSERVER), OBSERVER).double() - best
            floor = torch.finfo(DTYPE).eps * (1 + best.abs())
            score = torch.where(torch.isfinite(gap), gap.clamp(min=0) + floor, math.inf).log10()
            if self.table.consensus:  # what is trained for is what is chosen by
                score = score + self.table.consensus * (consensus_error(x, OBSERVER).double() + floor).log10()
            scores.append(float(score.mean()))
            curves.append([float(loss.mean()) for loss in losses])
        score, here.validated = sum(scores) / len(scores), here.iterations
        if here.best is None or score < here.best:
            here.best, here.best_update, self.best = score, here.update, self._weights()
        self._write(self._row(validation=score))
        self._save_optimizer()
        return [sum(values) / len(values) for values in zip(*curves, strict=True)]

    def _save_optimizer(self) -> None:
        here, now = self.position, self._weights()
        self.optimizer.load_state_dict(self.best)
        summary = {
            "experiment": self.experiment.model_dump(mode="json", include=ASKED, exclude_none=True),
            "updates": here.best_update,
            "updates_in_all": here.update,
            "rollbacks": here.rollbacks,
            "hours": round(here.seconds / 3600, 3),
            f"validation_log10_{self._falls}": here.best,
        }
        versions = {key: self.made_with[key] for key in ("milodo", "commit", "torch", "python")}
        good_for = self.table.good_for or f"{self.training.families[0].name} on {self.net.topology}"
        save_optimizer(self.optimizer, self.path, good_for=good_for, training=summary, made_with=versions)
        self.optimizer.load_state_dict(now)

    def _save_position(self) -> None:
        save_position(self.resume_file, self.optimizer, self.adam, self.best, self.position)
        self.saved_at = time.perf_counter()

    @property
    def _falls(self) -> str:
        """What validation measures: where no optimum is known, the loss itself."""
        if self.table.validation_gaps is not None and self.validation.optima:
            return "iterations"
        return "gap" if self.validation.optima else "loss"

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.optimizer.state_dict().items()}

    def _new_adam(self) -> torch.optim.Adam:
        return torch.optim.Adam(self.optimizer.parameters(), lr=self.table.stages[0].lr, betas=BETAS)

    def _row(self, **facts: Any) -> Row:
        here = self.position
        here.seconds = time.perf_counter() - self.clock
        return Row(here.update, here.stage + 1, here.epoch + 1, here.seconds, **facts)

    def _write(self, row: Row) -> None:
        self.log.write(row)
        self.position.rows += 1


def _said(config: Any) -> Any:
    """A configuration without the keys that say nothing: a later version may know more of them."""
    return {key: _said(value) for key, value in config.items() if value is not None} if isinstance(config, dict) else config
