"""Progress bars: one line a task, with the time left and where it ended."""

from __future__ import annotations

import math
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from milodo.cli.terminal import visible

QUIET = 60.0
"""Seconds after which a task says where it is, where there is no terminal to show a bar."""


class Bars:
    """Made to be handed to a Benchmark; shows bars on a terminal and plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.tasks: dict[str, TaskID] = {}
        self.said: dict[str, float] = {}
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[detail]}", style="dim", markup=False),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=600,  # seconds: a batch of a training may take longer than rich's half minute
        )

    def __enter__(self) -> Bars:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def __call__(self, task: str, fraction: float, detail: str) -> None:
        task, detail = visible(task), visible(detail)
        if task not in self.tasks:
            self.tasks[task] = self.bars.add_task(task, total=1.0, detail="")
        self.bars.update(self.tasks[task], completed=fraction, detail=detail)
        if not self.console.is_terminal:
            now = time.monotonic()
            since = self.said.setdefault(task, now)
            if since < math.inf and (fraction >= 1 or now - since > QUIET):
                where = detail or "done" if fraction >= 1 else f"{fraction:.0%}, {detail}"
                self.console.print(f"{task}: {where}", highlight=False, markup=False, soft_wrap=True)
                self.said[task] = math.inf if fraction >= 1 else now
