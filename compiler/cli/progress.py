"""Progress of a compilation on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Live
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from mxc.compiler.cli.report_table import bytes_text
from mxc.compiler.steps import CompileStep, Progress


@contextmanager
def showing(console: Console) -> Iterator[Progress]:
    """Print a line for each finished step; on a terminal, show the running step with a spinner.

    While weights are packed, the line has the bytes done and the rate.
    """
    live = Live(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", table_column=Column(no_wrap=True)),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    shown = _Shown(console, live)
    with live:
        yield Progress(step=shown.step, packed=shown.packed)


class _Shown:
    def __init__(self, console: Console, live: Live) -> None:
        self.console, self.live = console, live
        self.task: TaskID | None = None
        self.start = 0.0
        self.detail = ""

    def step(self, step: CompileStep) -> None:
        """Show a step that begins or is done."""
        if self.task is not None:
            self.live.remove_task(self.task)
            self.task = None
        if step.seconds is None:
            self.task = self.live.add_task(str(step), total=None, detail="")
            self.start, self.detail = time.perf_counter(), ""
            return
        line = f"  {step!s:<30} {step.seconds:8.2f} s  {self.detail}"
        self.console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)

    def packed(self, done: int, total: int, tensor: str) -> None:
        """Show the bytes of weights that are packed, and the total."""
        rate = done / max(time.perf_counter() - self.start, 1e-6)
        size, speed = bytes_text(total), bytes_text(round(rate))
        self.detail = f"{size} at {speed}/s"
        if self.task is not None:
            detail = f"{bytes_text(done)} of {size} at {speed}/s, {tensor}"
            self.live.update(self.task, detail=detail)
