"""The report as a table for a terminal; equal contractions of different layers share a row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from mxc.artifact.manifest import ModelRecord
from mxc.compiler.cli.terminal import Name, Prose, fits
from mxc.compiler.report import (
    Matmul,
    MatmulCost,
    Report,
    ReportOperation,
    Reports,
    Transfers,
)
from mxc.compiler.report.assembly import KernelCode
from mxc.targets.target import TARGETS

_DISPATCH = re.compile(r"_dispatch_\d+")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True)
class ReportRow:
    """Contractions that differ in the layer only: common name, number, and the first one."""

    name: str
    count: int
    first: Matmul


def group(matmuls: Sequence[Matmul]) -> list[ReportRow]:
    """Return rows in the order of first occurrence; `model.layers.3.q` and `.4.q` share a row."""
    groups: dict[tuple[object, ...], list[Matmul]] = {}
    for each in matmuls:
        pattern = _NUMBER.sub("*", each.name)
        numbers = (each.batch, each.m, each.n, each.k, each.kernels, each.bytes_moved)
        texts = (each.function, each.lhs, each.rhs, each.out, each.lowering)
        # The reason is not compared: it may name a dispatch, which differs by layer.
        groups.setdefault((pattern, *texts, *numbers, each.fallback is None), []).append(each)
    return [
        ReportRow(
            _NUMBER.sub("*", same[0].name) if len(same) > 1 else same[0].name, len(same), same[0]
        )
        for same in groups.values()
    ]


def show_report(console: Console, reports: Reports) -> None:
    """Print the report, or that of each level under its name."""
    for name, each in reports.levels.items():
        if name:
            console.print(f"level {name}", style="bold", highlight=False)
        console.print(render(each, console))
    for archive in reports.archives:
        readers = " and ".join(archive.levels)
        console.print(Prose(f"{archive.name}: {bytes_text(archive.bytes)}, read by {readers}"))
    for number, device in enumerate(reports.devices):
        console.print(
            Prose(
                f"device {number}: {bytes_text(device.bytes)} of weights, "
                f"{bytes_text(device.on_every_device)} of these on every device"
            )
        )


def render(report: Report, console: Console) -> Group:
    """Return the table of contractions, reasons of fallbacks, notes, spilling kernels and totals.

    If the whole table does not fit the console, shapes and types are below the name, function names
    above their rows, and only the figures that tell good from bad remain.
    """
    rows = group(report.matmuls)
    reasons: dict[str, int] = {}
    notes = [
        ""
        if row.first.fallback is None
        else f"[{reasons.setdefault(row.first.fallback, len(reasons) + 1)}]"
        for row in rows
    ]
    whole = _wide(rows, notes)
    table = whole if fits(console, whole) else _narrow(rows, notes)
    table.title, table.title_justify = f"contractions for {report.target}", "left"
    lines = [Prose(f"[{number}] {reason}") for reason, number in reasons.items()]
    lines += [Prose(f"IREE's code generator: {line}") for line in _where(rows, _stock)]
    lines += [Prose(line) for line in _where(rows, lambda one: one.choice)]
    lines += [Prose(line) for line in _places(_choices(report.operations))]
    lines += [Prose(f"schedule: {line}") for line in _where(rows, lambda one: one.schedule)]
    lines += [Prose(f"what follows is another kernel: {line}") for line in _where(rows, _unfused)]
    lines += [Prose(f"note: {finding}") for finding in report.findings]
    record = TARGETS.get(report.target)
    if record is not None and record.gpu is not None and record.gpu.unverified:
        lines.append(Prose(f"note: {record.gpu.unverified}"))
    lines += [Prose(line, "bold red") for line in _troubles(report.spilling)]
    lines += [Prose(_between(each)) for each in report.transfers]
    return Group(table, *lines, Prose(_totals(report)))


def _wide(rows: Sequence[ReportRow], notes: Sequence[str]) -> Table:
    table = Table()
    for heading in ("function", "contraction"):
        table.add_column(heading)
    table.add_column("count", justify="right")
    for heading in ("m x n x k", "types", "lowering"):
        table.add_column(heading, no_wrap=True)
    for heading in ("kernels", "bytes", "of minimum"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("fallback")
    for row, note in zip(rows, notes, strict=True):
        one = row.first
        table.add_row(
            one.function,
            Name(row.name),
            str(row.count),
            _shape(one),
            _types(one),
            one.lowering,
            str(one.kernels),
            _each(one, lambda cost: bytes_text(cost.bytes_moved)),
            _each(one, _ratio),
            Text(note, style="bold red"),
        )
    return table


def _narrow(rows: Sequence[ReportRow], notes: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("contraction")
    table.add_column("lowering", no_wrap=True)
    table.add_column("of min.", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    function = ""
    for row, note in zip(rows, notes, strict=True):
        one = row.first
        if one.function != function:
            function = one.function
            table.add_row(Name(function, "bold"))
        times = f"{row.count} times " if row.count > 1 else ""
        lowering = one.lowering.replace(" + ", " +\n")
        table.add_row(
            Group(Name(row.name), Text(f"  {times}{_shape(one)}\n  {_types(one)}")),
            lowering + (f"\n({one.kernels} kernels)" if one.kernels > 1 else ""),
            _each(one, _ratio),
            Text(note, style="bold red"),
        )
    return table


def print_memory(console: Console, model: ModelRecord | None) -> None:
    """Print the memory per sequence of a language model."""
    if model is None:
        return
    kinds = " ".join(dict.fromkeys(page.format or page.dtype for page in model.pages))
    text = f"a sequence keeps {bytes_text(model.bytes_per_token)} a token (cache, {kinds})"
    if model.states:
        names = ", ".join(model.states)
        text += f", and {bytes_text(model.bytes_per_sequence)} whatever its length ({names})"
    console.print(Prose(text))


def bytes_text(size: int | None) -> str:
    """Return a size with a binary unit and three digits: "290 KiB"; "?" for None."""
    if size is None:
        return "?"
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def _costs(one: Matmul) -> list[Matmul | MatmulCost]:
    """Return the distinct costs at the samples, smallest first; for static sizes the
    contraction."""
    if min(one.batch, one.m) >= 0 or not one.samples:
        return [one]
    return sorted(set(one.samples.values()), key=lambda cost: (cost.batch, cost.m))


def _each(one: Matmul, cell: Callable[[Matmul | MatmulCost], str]) -> str:
    return " / ".join(dict.fromkeys(map(cell, _costs(one))))


def _shape(one: Matmul) -> str:
    batch, m = (
        "/".join(dict.fromkeys(_number(size) for size in sizes))
        for sizes in zip(*((cost.batch, cost.m) for cost in _costs(one)), strict=True)
    )
    sizes = f"{m}x{_number(one.n)}x{_number(one.k)}"
    return sizes if batch == "1" else f"{batch} x {sizes}"


def _number(size: int) -> str:
    return "?" if size < 0 else str(size)


def _types(one: Matmul) -> str:
    return f"{one.lhs} x {one.rhs} -> {one.out}"


def _ratio(one: Matmul | MatmulCost) -> str:
    if one.bytes_moved is None or not one.bytes_minimum:
        return "?"
    return f"{one.bytes_moved / one.bytes_minimum:.2f}"


def _troubles(kernels: Sequence[KernelCode]) -> list[str]:
    """Return a line for each group of spilling kernels that differ in the dispatch number only.

    "prefill_dispatch_*_matmul_like_64x8x8x191x64 (12 kernels): 12 spills, ..".
    """
    same: Counter[tuple[str, str]] = Counter()
    for kernel in kernels:
        vgpr = "" if kernel.vgpr is None else f", {kernel.vgpr} VGPR"
        cost = f"{kernel.spilling}{vgpr}"
        same[_DISPATCH.sub("_dispatch_*", kernel.name), cost] += 1
    return [
        f"{name}{f' ({count} kernels)' if count > 1 else ''}: {cost}"
        for (name, cost), count in same.items()
    ]


def _stock(one: Matmul) -> str | None:
    """Return the reason why no kernel of mxc computes a contraction of plain operands."""
    return one.reason if one.fallback is None else None


def _unfused(one: Matmul) -> str | None:
    """Return why the operation after a contraction is not fused, if it is a kernel of its own."""
    return one.unfused if one.kernels > 1 else None


def _where(rows: Sequence[ReportRow], said: Callable[[Matmul], str | None]) -> list[str]:
    """Return a line for each text that `said` returns, with the contractions it applies to."""
    return _places((f"{row.first.function}:{row.name}", said(row.first)) for row in rows)


def _choices(operations: Sequence[ReportOperation]) -> dict[tuple[str, str | None], None]:
    """Return the place and choice of each operation; those of different layers are one."""
    return dict.fromkeys(
        (f"{each.function}:{_NUMBER.sub('*', each.name)}", each.choice) for each in operations
    )


def _places(said: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return a line for each text, with the places that it applies to."""
    found: dict[str, list[str]] = {}
    for place, text in said:
        if text is not None:
            found.setdefault(text, []).append(place)
    return [
        f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: {text}"
        for text, names in found.items()
    ]


def _between(sent: Transfers) -> str:
    """Return a line on the transfers between devices."""
    return (
        f"{sent.function} sends from device to device, in {sent.count} transfers, "
        f"{bytes_text(sent.bytes_per_row)} a row, {bytes_text(sent.bytes_per_logits)} a row of "
        f"logits, {bytes_text(sent.bytes_per_run)} a run"
    )


def _totals(report: Report) -> str:
    dynamic = sum(function.dynamic_transients for function in report.functions)
    return (
        f"{len(report.matmuls)} contractions, {len(report.fallbacks)} fell back; "
        f"{report.dispatches} dispatches; transient memory {bytes_text(report.transient_bytes)}"
        + (f" and {dynamic} buffers of dynamic size" if dynamic else "")
    )
