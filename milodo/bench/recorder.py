"""Runs one method on a batch of instances and writes down what happened, by an honest clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from milodo.algorithms import Algorithm
from milodo.bench.records import Record
from milodo.config.tables import RunTable
from milodo.loop import Keeper, iterate
from milodo.metrics import consensus_error
from milodo.network import Network, Observer, StackedObserver
from milodo.problems import Problem
from milodo.status import Status
from milodo.stopping import StoppingCriterion
from milodo.types import NodeTensor


def sample_times(iterations: int, per_decade: int) -> list[int]:
    """0, 1, 2, ... then about `per_decade` times a decade, evenly on a logarithmic axis, and the last iteration."""
    count = max(2, round(per_decade * math.log10(max(iterations, 2))) + 1)
    spaced = {round(10 ** (math.log10(max(iterations, 2)) * i / (count - 1))) for i in range(count)}
    return sorted(k for k in {0, iterations} | spaced if k <= iterations)


Limits = RunTable
"""When a run of a method ends, whichever comes first, and how often it is looked at."""


class Stopwatch:
    """Runs only while a method computes."""

    def __init__(self, device: torch.device) -> None:
        self.seconds, self._cuda = 0.0, device.type == "cuda"

    def start(self) -> None:
        self._from = self._now()

    def stop(self) -> None:
        self.seconds += self._now() - self._from

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()  # kernels still queued are part of the method's time
        return time.perf_counter()


class Recorder:
    """Looks at states and keeps the rows; knows of each instance whether and how it has ended."""

    def __init__(
        self, method: str, judge: Problem, net: Network, optimum: torch.Tensor, seeds: Sequence[int], first: int,
        observer: Observer | None = None,
    ) -> None:  # fmt: skip
        self.observer = observer or StackedObserver()
        self.method, self.problem, self.net, self.optimum, self.seeds, self.first = method, judge, net, optimum, seeds, first
        self.rows: list[list[Record]] = [[] for _ in seeds]
        self.ended = [Status.RUNNING] * len(seeds)
        self.sent_before = net.traffic.snapshot()
        """What the network had carried when this run began."""

    def begin(self, limits: Limits) -> None:
        """Says when runs end; what has ended already, in an earlier start, stays so."""
        steps, seconds, gap = limits.iterations, limits.seconds, limits.stop_gap
        self.judge = StoppingCriterion(self.problem, self.observer, steps=steps, seconds=seconds, gap=gap, optimum=self.optimum)
        self.judge.ended = self.ended

    def look(self, k: int, x: NodeTensor, seconds: float) -> None:
        """Loss and gap are computed in the precision of the problem that judges, whatever precision the method runs in."""
        x = x.to(self.problem.dtype)
        observer, here = self.observer, self.net.traffic - self.sent_before
        loss, consensus = self.judge.loss(x), observer.agreed(consensus_error(x, observer)).tolist()
        metrics = {name: observer.agreed(value).tolist() for name, value in self.problem.metrics(x, observer).items()}
        numbers = torch.tensor([here.messages, here.floats, *here.of((len(self.seeds),)).tolist()], dtype=torch.float64)
        messages, floats, *sent = observer.total(numbers).tolist()
        seconds = float(observer.agreed(torch.tensor(seconds, dtype=torch.float64)))
        running = [status is Status.RUNNING for status in self.ended]
        self.judge(k, loss, seconds)
        for b, seed in enumerate(self.seeds):
            if not running[b]:
                continue
            row = Record(
                method=self.method, instance=self.first + b, seed=seed, k=k, rounds=here.rounds, messages=round(messages),
                floats=round(floats), bytes=round(sent[b]), seconds=seconds, loss=float(loss[b]),
                gap=float(loss[b]) - float(self.optimum[b]), consensus=consensus[b], status=self.ended[b],
                metrics={name: values[b] for name, values in metrics.items()},
            )  # fmt: skip
            self.rows[b].append(row)

    def interrupt(self) -> None:
        """The user stopped the run: what is unfinished says so in its last row."""
        for b, rows in enumerate(self.rows):
            if self.ended[b] is Status.RUNNING and rows:
                rows[-1] = replace(rows[-1], status=Status.INTERRUPTED)

    @property
    def records(self) -> list[Record]:
        return [row for rows in self.rows for row in rows]


@torch.no_grad()
def record(
    algorithm: Algorithm, problem: Problem, net: Network, recorder: Recorder, limits: Limits,
    progress: Callable[[float], None] | None = None, keeper: Keeper | None = None, watch: Stopwatch | None = None,
) -> Recorder:  # fmt: skip
    """Runs until every instance has ended. On Ctrl-C the recorder keeps what it saw, and KeyboardInterrupt goes on up.

    A keeper goes on after the state it kept; the records and the seconds up to there are its business too.
    """
    if algorithm.longest is not None:
        limits = limits.model_copy(update={"iterations": min(limits.iterations, algorithm.longest)})
    watch = watch or Stopwatch(problem.device)
    k, after = 0, None
    try:
        if keeper:
            after = keeper.last(next(iterate(algorithm, problem, net)))
            k = after[0] if after else 0
        recorder.begin(limits)
        states = iterate(algorithm, problem, net, after=after)
        watch.start()
        state = next(states)
        for target in (due for due in sample_times(limits.iterations, limits.samples_per_decade) if due >= k):
            while k < target:
                state = next(states)
                k += 1
                if keeper and k < target:
                    watch.stop()
                    keeper.keep(k, state)
                    watch.start()
                if progress and k % 64 == 0:
                    progress(k / limits.iterations)
            watch.stop()
            if not (after and k == after[0]):  # what was kept has been looked at
                recorder.look(k, state.x, watch.seconds)
                if keeper:
                    keeper.keep(k, state)
            if all(status is not Status.RUNNING for status in recorder.ended):
                break
            watch.start()
    except KeyboardInterrupt:
        recorder.interrupt()
        raise
    return recorder
