"""Progress bars: one line a task, with the time left and where it ended."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


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
        )

    def __enter__(self) -> Bars:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def __call__(self, task: str, fraction: float, detail: str) -> None:
        if task not in self.tasks:
            self.tasks[task] = self.bars.add_task(task, total=1.0, detail="")
        self.bars.update(self.tasks[task], completed=fraction, detail=detail)
        if not self.console.is_terminal and fraction >= 1 and self.said.get(task, 0) < 1:
            self.console.print(f"{task}: {detail or 'done'}", highlight=False, markup=False, soft_wrap=True)
        self.said[task] = fraction
