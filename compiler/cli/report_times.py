"""Table of the kernels of a GPU artifact by estimated time, with their bounds, and totals
per call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table

from mxc.compiler.cli.report_table import bytes_text
from mxc.compiler.cli.terminal import Name, Prose
from mxc.compiler.report import Report, ReportOperation, Reports
from mxc.compiler.report.kernel_time import Time

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
#: Number of rows of the table by default.
_MOST = 12
_LEGEND = (
    "us: of one call, estimated, without the time between kernels. bound: the share of it that "
    "memory or the matrix cores take at least. tail: the share of the units' time in which the "
    "last round leaves them without a workgroup. model: docs/gpu-verify.md."
)


@dataclass(frozen=True)
class _Row:
    """Operations that differ in the layer only."""

    name: str
    time: Time
    calls: int

    @property
    def seconds(self) -> float:
        return self.time.seconds * self.calls


def show_times(console: Console, reports: Reports, *, every: bool) -> None:
    """Print the table of each GPU report: the longest operations, or with `every` all."""
    for report in reports.levels.values():
        for sample in ("", *(each.name for each in report.samples)):
            shown = render_times(at_sample(report, sample), sample, every=every)
            if shown is not None:
                console.print(shown)


def at_sample(report: Report, sample: str) -> Report:
    """Return the report with operations at a sample; "": of functions without samples."""
    if not sample:
        own = [each for each in report.operations if not each.samples]
    else:
        own = [
            replace(
                each,
                bytes_moved=each.samples[sample].bytes_moved,
                flops=each.samples[sample].flops,
                time=each.samples[sample].time,
            )
            for each in report.operations
            if sample in each.samples
        ]
    return replace(report, operations=tuple(own))


def render_times(report: Report, sample: str = "", *, every: bool = False) -> Group | None:
    """Return the table, its legend, and a line per function; None without estimates."""
    rows = _rows(report.operations)
    if not rows:
        return None
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    at = f", {sample}" if sample else ""
    table.title, table.title_justify = f"estimated times for {report.target}{at}", "left"
    table.add_column("operation")
    for heading in ("calls", "us", "bound", "by", "tail", "model"):
        table.add_column(heading, justify="right", no_wrap=True)
    chosen = rows if every else rows[:_MOST]
    for row in chosen:
        tail = "" if row.time.tail is None else f"{row.time.tail:.2f}"
        cells = (str(row.calls), f"{1e6 * row.time.seconds:.3g}", f"{row.time.share:.2f}")
        table.add_row(Name(row.name), *cells, row.time.bound_by, tail, row.time.model)
    lines = [Prose(_LEGEND, "dim")]
    if len(chosen) < len(rows):
        lines.append(Prose(f"{len(rows) - len(chosen)} shorter ones: --kernels shows them"))
    names = dict.fromkeys(operation.function for operation in report.operations)
    lines += [Prose(_function(report, name)) for name in names]
    return Group(table, *lines)


def _rows(operations: Sequence[ReportOperation]) -> list[_Row]:
    """Return rows sorted by the total time of their calls, longest first."""
    counts: dict[tuple[str, Time], int] = {}
    for operation in operations:
        if operation.time is not None:
            name = f"{operation.function}:{_NUMBER.sub('*', operation.name)}"
            counts[name, operation.time] = counts.get((name, operation.time), 0) + 1
    rows = [_Row(name, time, calls) for (name, time), calls in counts.items()]
    return sorted(rows, key=lambda row: -row.seconds)


def _function(report: Report, name: str) -> str:
    own = [operation for operation in report.operations if operation.function == name]
    times = [operation.time for operation in own if operation.time is not None]
    moved = sum(operation.bytes_moved or 0 for operation in own)
    seconds = sum(time.seconds for time in times)
    unknown = len(own) - len(times)
    more = f", and {unknown} of unknown sizes" if unknown else ""
    return f"{name}: {len(times)} kernels, {1e6 * seconds:.4g} us, {bytes_text(moved)}{more}"
