"""Assembly of each kernel of a report as a separate text, named by what the kernel computes.

The text of a GPU kernel can be assembled. Its header has the figures of the report, and its hot
loop is marked. The text of a CPU kernel is its function only, with the hot loop marked: the rest of
the file is the run time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mxc.artifact.kernel_names import case_name
from mxc.compiler.report import Matmul, Report, ReportOperation
from mxc.compiler.report.assembly import KernelCode, bodies_of
from mxc.compiler.report.cpu_loops import hot_cpu_loop
from mxc.compiler.report.loops import Loop, hot_loop, read_line

_MARK = "{} ---- hot loop {} " + "-" * 40


@dataclass(frozen=True)
class KernelListing:
    """One kernel: a name that is valid as a file name, its symbol, and its text."""

    name: str
    kernel: str
    text: str


def listings(report: Report, texts: Iterable[str]) -> list[KernelListing]:
    """Return a listing of each kernel of the report, in the order of its first call in the program.

    texts: the assembly files. A kernel that is in none of them is left out.
    """
    bodies = {name: (body, text) for text in texts for name, body in bodies_of(text).items()}
    kernels = {kernel.name: kernel for kernel in report.kernels}
    names: Counter[str] = Counter()
    found = []
    for symbol, operations in report.calls.items():
        if symbol not in bodies:
            continue
        body, text = bodies[symbol]
        kernel = kernels[symbol]
        name = _file_name(operations[0], kernel)
        names[name] += 1
        name = name if names[name] == 1 else f"{name}-{names[name]}"
        product = next((one for one in report.matmuls if one.kernel == kernel.entry), None)
        gpu = kernel.vgpr is not None
        lines = _head(operations, kernel, product)
        sign = ";" if gpu else "#"
        head = "\n".join(f"{sign} {line}" for line in lines)
        marked = _marked(body, hot_loop(body) if gpu else hot_cpu_loop(body), sign)
        code = text.replace(body, marked) if gpu else f"{symbol}:{marked}"
        found.append(KernelListing(name, symbol, f"{head}\n{code.rstrip()}\n"))
    return found


def _file_name(operation: ReportOperation, kernel: KernelCode) -> str:
    entry, rows = kernel.entry, kernel.from_rows
    name = entry if operation.name == entry else f"{operation.function}.{operation.name}"
    name = case_name(name, rows) if rows else name
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "kernel"


def _head(
    operations: Sequence[ReportOperation], kernel: KernelCode, product: Matmul | None
) -> list[str]:
    first = operations[0]
    more = f", and {len(operations) - 1} more" if len(operations) > 1 else ""
    lines = [f"{first.name} in @{first.function}{more}", f"kernel {kernel.name}"]
    if product is not None:
        size = f"{product.m}x{product.n}x{product.k}"
        size = size if product.batch == 1 else f"{product.batch} x {size}"
        size = size.replace("-1", "?")
        lines.append(f"{size}, {product.lhs} x {product.rhs} -> {product.out}: {product.lowering}")
        lines += [f"fallback: {product.fallback}"] if product.fallback else []
    lines.append(f"{kernel.spills} spills, {kernel.scratch_bytes} bytes of scratch")
    if kernel.vgpr is not None:
        lines[-1] = (
            f"{kernel.vgpr} VGPR (of them {kernel.agpr} AGPR), {kernel.sgpr} SGPR, {lines[-1]}, "
            f"{kernel.lds_bytes} bytes of LDS, workgroups of {kernel.workgroup_size}"
        )
    if kernel.occupancy is not None:
        held = kernel.occupancy
        lines.append(f"{held.waves_per_simd} waves a SIMD, limited by {held.limited_by}")
    if kernel.hot_loop is not None and kernel.hot_loop.is_loop:
        loop = kernel.hot_loop
        lines.append("hot loop: " + ", ".join(f"{n} {kind}" for kind, n in loop.census.items()))
        if loop.shares is not None:
            busy = ", ".join(f"{pipe} {share:.2f}" for pipe, share in loop.shares.items())
            lines.append(f"by the issue model: {loop.clocks:.0f} clocks an iteration; busy: {busy}")
    return lines


def _marked(body: str, loop: Loop, sign: str) -> str:
    """Return the text of a kernel with comments, which begin with `sign`, around its hot loop."""
    if not loop.is_loop:
        return body
    lines: list[str] = []
    number = 0
    pending = -1  # index of the label before the next instruction; -1: none
    for text in body.splitlines():
        if read_line(text) is not None:
            if number == loop.first:
                lines.insert(pending if pending >= 0 else len(lines), _MARK.format(sign, "begins"))
            number += 1
            pending = -1
        elif re.match(r"^\.?\w+:", text):
            pending = len(lines)
        lines.append(text)
        if number == loop.first + len(loop.lines) and read_line(text) is not None:
            lines.append(_MARK.format(sign, "ends"))
    return "\n".join(lines) + "\n"
