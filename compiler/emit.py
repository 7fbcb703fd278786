"""`mxc compile --emit asm`: compile a program only for the assembly of its kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mxc.compiler.compilation import opened, require_no_options
from mxc.compiler.levels import compile_level, targets_of, unit_of
from mxc.compiler.programs.opening import foreign_program, imported
from mxc.compiler.report import Report
from mxc.compiler.report.listings import KernelListing, listings
from mxc.compiler.steps import CompileRequest, Progress, Recorder, require_timeout
from mxc.errors import ArtifactError, RequestError

#: Accepted values of `--emit`.
KINDS = ("asm",)
#: Suffix of an output that is one file; any other output is a folder.
SUFFIX = ".s"


def emit_assembly(
    source: Any,
    target: str,
    *,
    dump_ir: Path | None = None,
    schedule: Path | None = None,
    phase_timeout: float | None = None,
    cache: bool = True,
    progress: Progress | None = None,
    **options: Any,
) -> list[KernelListing]:
    """Compile a checkpoint or a program for one target and return the assembly of its kernels.

    `options` are those of a model, as in `compilation.compile`. Weights are not read. Raises
    MxcError.
    """
    foreign = foreign_program(source)
    source = Path(source if foreign is None else foreign.place)
    timeout = require_timeout(phase_timeout)
    ((level, record),) = targets_of(target).items()
    recorder = Recorder(progress or Progress())
    with recorder.step("reading"):
        model = None if foreign is not None else opened(source, options, unit=unit_of([record]))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mxc-emit-"))
        if foreign is not None:
            require_no_options(options, source)
            code = stack.enter_context(imported(foreign, timeout, recorder)).program
        else:
            with recorder.step("building"):
                code = source.read_bytes() if model is None else model.program(record.group_rows)
        request = CompileRequest(
            program=code,
            place=str(source),
            target="",
            module=Path(folder),
            parameters=model is not None or foreign is not None,
            dump_dir=dump_ir,
            schedules="" if schedule is None else str(schedule.absolute()),
            assembly=True,
            phase_timeout=timeout,
            cached=cache,
            devices=1 if model is None else model.options.devices,
        )
        compiled = compile_level(request, level, record, recorder, several=False).compiled
    return listings(Report.from_dict(compiled.report), compiled.assembly)


def write(found: Sequence[KernelListing], output: Path) -> list[Path]:
    """Write the listings to the file `output` if it ends in `SUFFIX`, else one file each to that
    folder; return the files.

    Existing files are replaced. Raises ArtifactError if a file cannot be written.
    """
    one = output.suffix == SUFFIX
    texts = (
        {output: "\n".join(each.text for each in found)}
        if one
        else {output / f"{each.name}{SUFFIX}": each.text for each in found}
    )
    try:
        (output.parent if one else output).mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            file.write_text(text)
    except OSError as error:
        place = error.filename or output
        raise ArtifactError(
            f"{place}: cannot be written ({error.strerror}); choose another --output"
        ) from error
    return list(texts)


def require_kind(emit: str) -> None:
    """Raise RequestError if `emit` is not in `KINDS`."""
    if emit not in KINDS:
        raise RequestError(f"--emit {emit}: not known; give {' or '.join(KINDS)}")
