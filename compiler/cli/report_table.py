"""The report as a table for a terminal: equal contractions of many layers are one row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mxc.compiler.assembly import Kernel
from mxc.compiler.report import Matmul, Report

_DISPATCH = re.compile(r"_dispatch_\d+")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True)
class Row:
    """Contractions that differ in name only: how many, the first, and a name for all."""

    name: str
    count: int
    first: Matmul


def group(matmuls: Sequence[Matmul]) -> list[Row]:
    """Rows in the order of their first contraction. `model.layers.3.q` and `.4.q` share a row."""
    groups: dict[tuple[object, ...], list[Matmul]] = {}
    for each in matmuls:
        pattern = _NUMBER.sub("*", each.name)
        numbers = (each.batch, each.m, each.n, each.k, each.kernels, each.bytes_moved)
        texts = (each.function, each.lhs, each.rhs, each.out, each.lowering)
        # The reason may name a dispatch, which is another one in each layer.
        groups.setdefault((pattern, *texts, *numbers, each.fallback is None), []).append(each)
    return [
        Row(_NUMBER.sub("*", same[0].name) if len(same) > 1 else same[0].name, len(same), same[0])
        for same in groups.values()
    ]


def render(report: Report) -> Group:
    """Contractions, reasons of fallbacks, weights in memory, spilling kernels, and the totals."""
    rows = group(report.matmuls)
    table = Table(title=f"contractions for {report.target}", title_justify="left")
    for heading in ("function", "contraction"):
        table.add_column(heading, overflow="fold")
    table.add_column("count", justify="right")
    table.add_column("m x n x k", overflow="fold")
    for heading in ("types", "lowering"):
        table.add_column(heading, overflow="fold")
    for heading in ("kernels", "bytes", "of minimum"):
        table.add_column(heading, justify="right")
    table.add_column("fallback")
    reasons: dict[str, int] = {}
    for row in rows:
        one = row.first
        note = ""
        if one.fallback is not None:
            note = f"[{reasons.setdefault(one.fallback, len(reasons) + 1)}]"
        table.add_row(
            one.function,
            Text(row.name),
            str(row.count),
            _shape(one),
            f"{one.lhs} x {one.rhs} -> {one.out}",
            one.lowering,
            str(one.kernels),
            bytes_text(one.bytes_moved),
            _ratio(one),
            Text(note, style="bold red"),
        )
    lines = [Text(f"[{number}] {reason}") for reason, number in reasons.items()]
    lines += [Text(f"note: {finding}") for finding in report.findings]
    lines += [Text(line) for line in _troubles(report.kernels)]
    return Group(table, *lines, Text(_totals(report)))


def bytes_text(size: int | None) -> str:
    """A size with a binary unit, three digits: "290 KiB"; "?" where it is dynamic."""
    if size is None:
        return "?"
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def _shape(one: Matmul) -> str:
    sizes = "x".join("?" if size < 0 else str(size) for size in (one.m, one.n, one.k))
    return sizes if one.batch == 1 else f"{'?' if one.batch < 0 else one.batch} x {sizes}"


def _ratio(one: Matmul) -> str:
    if one.bytes_moved is None or not one.bytes_minimum:
        return "?"
    return f"{one.bytes_moved / one.bytes_minimum:.2f}"


def _spills(kernel: Kernel) -> bool:
    """Whether a GPU kernel keeps registers in memory; on a CPU the stack is in the cache."""
    return kernel.vgpr is not None and bool(kernel.spills or kernel.scratch_bytes)


def _troubles(kernels: Sequence[Kernel]) -> list[str]:
    """A line for the kernels that spill; those that differ in the number of their dispatch are one.

    "prefill_dispatch_*_matmul_like_64x8x8x191x64 (12 kernels): 12 spills, ..".
    """
    same: Counter[tuple[str, str]] = Counter()
    for kernel in kernels:
        if _spills(kernel):
            cost = (
                f"{kernel.spills} spills, {kernel.scratch_bytes} bytes of scratch, "
                f"{kernel.vgpr} VGPR"
            )
            same[_DISPATCH.sub("_dispatch_*", kernel.name), cost] += 1
    return [
        f"{name}{f' ({count} kernels)' if count > 1 else ''}: {cost}"
        for (name, cost), count in same.items()
    ]


def _totals(report: Report) -> str:
    dynamic = sum(function.dynamic_transients for function in report.functions)
    return (
        f"{len(report.matmuls)} contractions, {len(report.fallbacks)} fell back; "
        f"{report.dispatches} dispatches; transient memory {bytes_text(report.transient_bytes)}"
        + (f" and {dynamic} buffers of dynamic size" if dynamic else "")
    )
