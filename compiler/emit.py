"""The assembly of the kernels of a program, each in a text of its own, named by what it computes.

A GPU kernel comes with all that an assembler needs, below a head that says what the report knows
of it, and with its hot loop marked. Of a CPU it is the function alone: what stands beside it there
is the run time.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxc.artifact.kernel_names import called_as, case_name
from mxc.compiler.levels import compile_level, targets_of, unit_of
from mxc.compiler.report import Matmul, Operation, Report
from mxc.compiler.report.assembly import Kernel, bodies_of
from mxc.compiler.report.loops import hot_loop, read_line
from mxc.compiler.road import opened
from mxc.compiler.steps import Progress, Recorder, Request, require_timeout
from mxc.errors import ArtifactError, RequestError

#: What `--emit` may be.
KINDS = ("asm",)
#: How the name of one file ends; any other output is a folder.
SUFFIX = ".s"
_MARK = "; ---- hot loop {} " + "-" * 40


@dataclass(frozen=True)
class Listing:
    """One kernel: a name that is good for a file, its symbol, its text."""

    name: str
    kernel: str
    text: str


def emit_assembly(
    source: str | Path,
    target: str,
    *,
    dump_ir: Path | None = None,
    schedule: Path | None = None,
    phase_timeout: float | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> list[Listing]:
    """Compile a checkpoint or a program for one target, and keep its kernels only.

    options: those of a model, as `road.compile` takes them. No weights are read but their headers.
    Raises MxcError with the place and the cure.
    """
    source = Path(source)
    ((level, record),) = targets_of(target).items()
    road = Recorder(progress or Progress())
    with road.step("reading"):
        model = opened(source, options, unit=unit_of([record]))
    with road.step("building"):
        code = source.read_bytes() if model is None else model.program(grouped=record.is_gpu)
    with tempfile.TemporaryDirectory(prefix="mxc-emit-") as folder:
        request = Request(
            program=code,
            place=str(source),
            target="",
            module=Path(folder),
            parameters=model is not None,
            dump_dir=dump_ir,
            schedules="" if schedule is None else str(schedule.absolute()),
            assembly=True,
            phase_timeout=require_timeout(phase_timeout),
        )
        compiled = compile_level(request, level, record, road, several=False).compiled
    return listings(Report.from_dict(compiled.report), compiled.assembly)


def listings(report: Report, texts: Iterable[str]) -> list[Listing]:
    """A listing of each kernel of the report, in the order in which the program first calls them.

    texts: the files of assembly. A kernel that is in none of them is left out.
    """
    bodies = {name: (body, text) for text in texts for name, body in bodies_of(text).items()}
    kernels = {kernel.name: kernel for kernel in report.kernels}
    names: Counter[str] = Counter()
    found = []
    for symbol, operations in report.calls.items():
        if symbol not in bodies:
            continue
        body, text = bodies[symbol]
        name = _file_name(operations[0], symbol)
        names[name] += 1
        name = name if names[name] == 1 else f"{name}-{names[name]}"
        called = called_as(symbol)[0]
        product = next((one for one in report.matmuls if one.kernel == called), None)
        gpu = kernels[symbol].vgpr is not None
        head = "\n".join(
            f"{';' if gpu else '#'} {line}" for line in _head(operations, kernels[symbol], product)
        )
        code = text.replace(body, _marked(body)) if gpu else f"{symbol}:{body}"
        found.append(Listing(name, symbol, f"{head}\n{code.rstrip()}\n"))
    return found


def write(found: Sequence[Listing], output: Path) -> list[Path]:
    """Write all to the file `output` where it ends in `SUFFIX`, else one file each to that folder.

    Files of the same name are replaced. Raises ArtifactError where they cannot be written.
    """
    one = output.suffix == SUFFIX
    texts = (
        {output: "\n".join(each.text for each in found)}
        if one
        else {output / f"{each.name}{SUFFIX}": each.text for each in found}
    )
    try:
        if not one:
            output.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            file.write_text(text)
    except OSError as error:
        place = error.filename or output
        raise ArtifactError(
            f"{place}: cannot be written ({error.strerror}); choose another --output"
        ) from error
    return list(texts)


def require_kind(emit: str) -> None:
    """Raise RequestError where `emit` is none of `KINDS`."""
    if emit not in KINDS:
        raise RequestError(f"--emit {emit}: not known; give {' or '.join(KINDS)}")


def _file_name(operation: Operation, symbol: str) -> str:
    called, rows = called_as(symbol)
    name = called if operation.name == called else f"{operation.function}.{operation.name}"
    name = case_name(name, rows) if rows else name
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "kernel"


def _head(operations: Sequence[Operation], kernel: Kernel, product: Matmul | None) -> list[str]:
    first = operations[0]
    more = f", and {len(operations) - 1} more" if len(operations) > 1 else ""
    lines = [f"{first.name} in @{first.function}{more}", f"kernel {kernel.name}"]
    if product is not None:
        size = f"{product.m}x{product.n}x{product.k}".replace("-1", "?")
        size = size if product.batch == 1 else f"{product.batch} x {size}"
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
            lines.append(f"by the issue model: {loop.clocks:.0f} clocks a turn; busy: {busy}")
    return lines


def _marked(body: str) -> str:
    """The text of a kernel with its hot loop between two comments."""
    loop = hot_loop(body)
    if not loop.is_loop:
        return body
    lines: list[str] = []
    number = 0
    pending = -1  # where the label of the next instruction stands
    for text in body.splitlines():
        if read_line(text) is not None:
            if number == loop.first:
                lines.insert(pending if pending >= 0 else len(lines), _MARK.format("begins"))
            number += 1
            pending = -1
        elif re.match(r"^\.?\w+:", text):
            pending = len(lines)
        lines.append(text)
        if number == loop.first + len(loop.lines) and read_line(text) is not None:
            lines.append(_MARK.format("ends"))
    return "\n".join(lines) + "\n"
