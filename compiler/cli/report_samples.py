"""Table of the bytes that a call moves at each sample; equal operations of layers share a row."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table

from mxc.compiler.cli.report_table import bytes_text
from mxc.compiler.cli.terminal import Name, Prose
from mxc.compiler.report import Report, ReportOperation, Reports, ReportSample

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def show_samples(console: Console, reports: Reports) -> None:
    """Print the table of each report that has samples."""
    for report in reports.levels.values():
        shown = render_samples(report)
        if shown is not None:
            console.print(shown)


def render_samples(report: Report) -> Group | None:
    """Return the table and a description of the samples; None without samples."""
    if not report.samples:
        return None
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.title, table.title_justify = f"bytes of a call on {report.target}", "left"
    table.add_column("operation")
    table.add_column("launches", justify="right", no_wrap=True)
    for sample in report.samples:
        table.add_column(sample.name, justify="right", no_wrap=True)
    groups: dict[str, list[ReportOperation]] = {}
    for operation in report.operations:
        if operation.samples:
            groups.setdefault(_NUMBER.sub("*", operation.name), []).append(operation)
    every = [each for group in groups.values() for each in group]
    for name, group in groups.items():
        table.add_row(Name(name), str(len(group)), *_bytes(group, report.samples))
    table.add_row("all", str(len(every)), *_bytes(every, report.samples), style="bold")
    said = "; ".join(
        f"{each.name}: {each.rows} row{'s' if each.rows > 1 else ''} of {each.function}, "
        f"of a sequence of {each.positions}"
        for each in report.samples
    )
    return Group(table, Prose(said, "dim"))


def _bytes(group: Sequence[ReportOperation], samples: Sequence[ReportSample]) -> list[str]:
    """Return the bytes of all calls of a group by sample; "?" if one of them is unknown."""
    cells = []
    for sample in samples:
        moved = [each.samples[sample.name].bytes_moved for each in group]
        known = [each for each in moved if each is not None]
        cells.append(bytes_text(sum(known) if len(known) == len(moved) else None))
    return cells
