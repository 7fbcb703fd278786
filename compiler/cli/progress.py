"""Progress at a terminal: of the steps of a compilation, and of work that is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import Progress as Live
from rich.progress import ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from mxc.compiler.cli.report_table import bytes_text
from mxc.compiler.cli.terminal import shortened
from mxc.compiler.steps import CompileStep, Progress

#: Called with the amount that is done, the total, and what is at work.
Advance = Callable[[int, int, str], None]
#: Most characters of the name of what is at work.
_NAME = 32


@contextmanager
def showing(console: Console) -> Iterator[Progress]:
    """Print a line for each finished step; on a terminal, show the running step with a spinner.

    While weights are packed, the line has the bytes done, the rate, and the time left.
    """
    live = _live(console)
    shown = _Shown(console, live)
    with live:
        yield Progress(step=shown.step, packed=shown.packed)


@contextmanager
def counting(what: str, *, tokens: bool = False) -> Iterator[Advance]:
    """Show on a terminal how much of some work is done, its rate, and the time left.

    Amounts are bytes, or tokens.
    """
    live = _live(Console(stderr=True), tokens=tokens)
    with live:
        task = live.add_task(what, total=None, name="")
        yield lambda done, total, name: live.update(task, completed=done, total=total, name=name)


def _live(console: Console, *, tokens: bool = False) -> Live:
    return Live(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        _Amount(tokens=tokens),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class _Amount(ProgressColumn):
    """As "1.2 GiB of 4 GiB at 310 MiB/s, 0:00:09 left, TENSOR"; empty without a total."""

    def __init__(self, *, tokens: bool) -> None:
        super().__init__(Column(no_wrap=True))
        self._tokens = tokens

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        text = f"{self._text(task.completed)} of {self._text(task.total)}"
        if self._tokens:
            text += " tokens"
        if task.speed is not None:
            text += f" at {self._text(task.speed)}/s"
        if task.time_remaining is not None:
            text += f", {timedelta(seconds=round(task.time_remaining))} left"
        name = task.fields["name"]
        return Text(f"{text}, {shortened(name, _NAME)}" if name else text)

    def _text(self, amount: float) -> str:
        return f"{amount:,.0f}" if self._tokens else bytes_text(round(amount))


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
            self.task = self.live.add_task(str(step), total=None, name="")
            self.start, self.detail = time.perf_counter(), ""
            return
        line = f"  {step!s:<30} {step.seconds:8.2f} s  {self.detail}"
        self.console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)

    def packed(self, done: int, total: int, tensor: str) -> None:
        """Show the bytes of weights that are packed, and the total."""
        rate = done / max(time.perf_counter() - self.start, 1e-6)
        self.detail = f"{bytes_text(total)} at {bytes_text(round(rate))}/s"
        if self.task is not None:
            self.live.update(self.task, completed=done, total=total, name=tensor)
