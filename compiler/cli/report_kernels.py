"""Table of the kernels of a GPU artifact: hot loop, resources, and the issue model's estimates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from mxc.compiler.cli.report_table import bytes_text
from mxc.compiler.cli.terminal import Name, Prose, fits
from mxc.compiler.report import Matmul, Report, Reports
from mxc.compiler.report.assembly import KernelCode

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
#: Columns of the census: heading, and the kinds of `loops.KINDS` that are summed.
_CENSUS = {
    "matrix": ("matrix",),
    "LDS rd": ("ds_read",),
    "wr": ("ds_write",),
    "to LDS": ("load_to_lds",),
    "loads": ("global_load",),
    "stores": ("global_store",),
    "VALU": ("valu", "convert", "accvgpr"),
    "perm": ("v_perm",),
    "waits": ("wait",),
    "bar.": ("barrier",),
    "scratch": ("scratch",),
}
#: Explanation of the columns.
_LEGEND = (
    "hot loop: instructions of the innermost loop with the most matrix instructions, else loads; "
    "(all): the kernel has none. waves: on a SIMD, and what limits them. B/load: of a lane.",
    "busy: share of the time in which the matrix cores work, and the pipe that works most, by the "
    "issue model (docs/gpu-quality.md). in flight: bytes asked of memory, a compute unit.",
)


@dataclass(frozen=True)
class _Row:
    """Kernels that differ in name only: their operations, number of calls, and first product."""

    kernel: KernelCode
    names: tuple[str, ...]
    calls: int
    product: Matmul | None
    count: int = field(default=1)


def show_kernels(console: Console, reports: Reports, *, every: bool) -> None:
    """Print the kernels of a GPU report: those of contractions, or with `every` all.

    Nothing is printed for a CPU.
    """
    for report in reports.levels.values():
        table = render_kernels(report, console, every=every)
        if table is not None:
            console.print(table)


def render_kernels(report: Report, console: Console, *, every: bool = False) -> Group | None:
    """Return the table, or lines if it does not fit, and a legend; None without GPU kernels."""
    rows = _rows(report)
    gpu = [row for row in rows if row.kernel.vgpr is not None]
    chosen = [row for row in gpu if every or row.product is not None]
    if not gpu:
        return None
    grouped = _grouped(chosen)
    left = len(gpu) - len(chosen)
    lines = [Prose(line, "dim") for line in _LEGEND]
    lines += [Prose(f"{left} kernels without a contraction: --kernels shows them")] if left else []
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.title, table.title_justify = f"hot loops of kernels for {report.target}", "left"
    table.add_column("operation")
    for heading in (
        *_CENSUS,
        "VGPR",
        "SGPR",
        "spills",
        "LDS",
        "waves",
        "B/load",
        "busy",
        "",
        "in flight",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("of min.", justify="right", no_wrap=True)
    for row in grouped:
        table.add_row(*_cells(row))
    if fits(console, table):
        return Group(table, *lines)
    return Group(*(Prose(_sentence(row)) for row in grouped), *lines)


def _rows(report: Report) -> list[_Row]:
    """Return the kernels in the order in which the program first calls them."""
    names: dict[str, list[str]] = {}
    kernels = {kernel.name: kernel for kernel in report.kernels}
    for kernel, operations in report.calls.items():
        rows = kernels[kernel].from_rows
        suffix = f", from {rows} rows on" if rows else ""
        names[kernel] = [operation.name + suffix for operation in operations]
    products: dict[str, Matmul] = {}
    for matmul in report.matmuls:
        products.setdefault(matmul.kernel, matmul)
    order = [name for name in names if name in kernels]
    order += [name for name in kernels if name not in names]
    return [
        _Row(
            kernels[name],
            tuple(dict.fromkeys(_NUMBER.sub("*", each) for each in names.get(name, [name]))),
            len(names.get(name, [])),
            products.get(kernels[name].entry),
        )
        for name in order
    ]


def _grouped(rows: Sequence[_Row]) -> list[_Row]:
    """Merge kernels with equal names and figures into one row."""
    groups: dict[tuple[object, ...], _Row] = {}
    for row in rows:
        figures = replace(row.kernel, name="", instructions={})
        moved = row.product and (row.product.bytes_moved, row.product.bytes_minimum)
        key = (row.names, repr(figures), moved)
        same = groups.get(key)
        groups[key] = (
            row
            if same is None
            else replace(same, calls=same.calls + row.calls, count=same.count + 1)
        )
    return list(groups.values())


def _title(row: _Row) -> str:
    notes = [f"{row.calls} calls"] if row.calls > 1 else []
    notes += [f"{row.count} kernels"] if row.count > 1 else []
    return ", ".join(row.names) + (f" ({', '.join(notes)})" if notes else "")


def _sentence(row: _Row) -> str:
    """Return a row as a line, for terminals too narrow for the table."""
    kernel, loop = row.kernel, row.kernel.hot_loop
    parts = [] if loop is None else [", ".join(f"{n} {kind}" for kind, n in loop.census.items())]
    parts.append(f"{kernel.vgpr} VGPR, {kernel.spills} spills, {kernel.lds_bytes} bytes of LDS")
    if kernel.occupancy is not None:
        parts.append(f"{kernel.occupancy.waves_per_simd} waves ({kernel.occupancy.limited_by})")
    if loop is not None and loop.matrix_share is not None:
        parts.append(f"busy {loop.matrix_share:.2f} ({loop.bound_by})")
    return f"{_title(row)}: " + "; ".join(parts)


def _cells(row: _Row) -> list[RenderableType]:
    kernel, loop = row.kernel, row.kernel.hot_loop
    cells: list[RenderableType] = [Name(_title(row))]
    for kinds in _CENSUS.values():
        cells.append("" if loop is None else str(sum(loop.census.get(k, 0) for k in kinds) or ""))
    if loop is not None and not loop.is_loop:
        cells[1] = f"(all) {cells[1]}".strip()
    spills = f"{kernel.spills}" + (f" +{kernel.scratch_bytes} B" if kernel.scratch_bytes else "")
    accumulators = f" ({kernel.agpr}a)" if kernel.agpr else ""
    held = kernel.occupancy
    share = None if loop is None else loop.matrix_share
    flight = None if loop is None else loop.bytes_in_flight
    ratio = ""
    if row.product is not None and row.product.bytes_moved and row.product.bytes_minimum:
        ratio = f"{row.product.bytes_moved / row.product.bytes_minimum:.2f}"
    troubled = bool(kernel.spills or kernel.scratch_bytes)
    return [
        *cells,
        f"{kernel.vgpr}{accumulators}",
        str(kernel.sgpr),
        Text(spills, style="bold red" if troubled else ""),
        bytes_text(kernel.lds_bytes) if kernel.lds_bytes else "",
        f"{held.waves_per_simd} {held.limited_by}" if held else "",
        "" if loop is None or loop.load_bytes is None else f"{loop.load_bytes:g}",
        "" if share is None else f"{share:.2f}",
        (loop.bound_by or "") if loop else "",
        "" if flight is None else bytes_text(flight),
        ratio,
    ]
