"""`mxc compile`: the road with its steps shown, and the report at its end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from json import loads
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from mxc.compiler import road
from mxc.compiler.artifact import Artifact
from mxc.compiler.cli.report_table import render
from mxc.compiler.report import Report
from mxc.compiler.steps import Step
from mxc.dialects.manifest import REPORT

#: Columns of a table that goes to a file or a pipe.
_LOG_WIDTH = 200


def command(
    source: Path,
    *,
    target: str,
    output: Path,
    max_sequence_length: int | None,
    prefill_chunk: int | None,
    activations: str | None,
    weights: str,
    strict: bool,
    allow_nan_scales: bool,
    force: bool,
    dump_ir: Path | None,
    json: bool,
) -> None:
    """Compile `source` and print the report: a table, or report.json with `json`."""
    with _interruptible(), showing(Console(stderr=True)) as progress:
        artifact = road.compile(
            source,
            target,
            output,
            max_sequence_length=max_sequence_length,
            prefill_chunk=prefill_chunk,
            activations=activations,
            weights=weights,
            strict=strict,
            allow_nan_scales=allow_nan_scales,
            force=force,
            dump_ir=dump_ir,
            progress=progress,
        )
    show_artifact(artifact, json=json)


def show_artifact(artifact: Artifact, *, json: bool = False) -> None:
    """Print the report of a finished artifact, and its notes."""
    text = (artifact.path / REPORT).read_text()
    if json:
        print(text, end="")
        return
    console = table_console()
    console.print(render(Report.from_dict(loads(text))))
    for note in artifact.manifest.notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False)
    total = sum(file.bytes for file in artifact.manifest.files.values())
    console.print(f"wrote {artifact.path} ({total / 2**20:.1f} MiB)", markup=False, highlight=False)


def table_console() -> Console:
    """Standard output; wide where it is no terminal, so that a table in a log is legible."""
    console = Console()
    return console if console.is_terminal else Console(width=_LOG_WIDTH)


@contextmanager
def showing(console: Console) -> Iterator[road.Progress]:
    """A live line for the step that runs, a bar with bytes and rate while weights are packed.

    Without a terminal each step is a line when it is done.
    """
    live = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    bar = Progress(
        TextColumn("packing"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("{task.fields[tensor]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    running: dict[str, TaskID] = {}
    packing: list[TaskID] = []

    def step(now: Step) -> None:
        if now.seconds is None:
            if now.name == "packing":
                live.stop()
                bar.start()
            else:
                running[now.name] = live.add_task(_title(now), total=None)
            return
        if now.name in running:
            live.remove_task(running.pop(now.name))
        if now.name == "packing":
            bar.stop()
            live.start()
        console.print(f"  {_title(now):<32} {now.seconds:8.2f} s", highlight=False, markup=False)

    def packed(done: int, total: int, tensor: str) -> None:
        if not packing:
            packing.append(bar.add_task("packing", total=total, tensor=tensor))
        bar.update(packing[0], completed=done, tensor=tensor)

    live.start()
    try:
        yield road.Progress(step=step, packed=packed)
    finally:
        live.stop()
        bar.stop()


def _title(step: Step) -> str:
    titles = {"stage": "passes", "phase": "IREE", "road": "", "report": ""}
    return f"{titles[step.kind]} {step.name}".strip()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let a request to terminate unwind the stack, so that nothing half-written stays."""

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
