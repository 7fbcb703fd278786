"""`mxc compile`: compiles, shows the steps, and prints the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from json import loads
from pathlib import Path
from typing import Any

from rich.console import Console

from mxc.artifact.manifest import REPORT, SCHEDULES
from mxc.compiler import compilation
from mxc.compiler.artifact import Artifact, require_free
from mxc.compiler.checkpoints.hub import located
from mxc.compiler.cli.progress import showing
from mxc.compiler.cli.report_samples import show_samples
from mxc.compiler.cli.report_table import bytes_text, show_report
from mxc.compiler.cli.signals import ending_cleanly
from mxc.compiler.cli.terminal import print_notes, table_console
from mxc.compiler.cli.tune import NOTHING, measured_schedules
from mxc.compiler.emit import emit_assembly, require_kind, write
from mxc.compiler.pieces.workers import Workers
from mxc.compiler.report import Reports
from mxc.errors import RequestError


def command(
    source: Path,
    *,
    target: Sequence[str],
    output: Path | None,
    max_sequence_length: int | None,
    activations: str | None,
    quantize_dense: str | None,
    recipe: str | None,
    kv_cache: str | None,
    devices: int,
    weights: str,
    revision: str | None,
    strict: bool,
    allow_nan_scales: bool,
    force: bool,
    dump_ir: Path | None,
    html: Path | None,
    schedule: Path | None,
    tune: bool,
    phase_timeout: float | None,
    cache: bool,
    workers: Workers,
    emit: str | None,
    wide: bool,
    json: bool,
) -> None:
    """Compile `source` and print the report: a table, or report.json with `json`.

    With `emit` no artifact is written: the assembly of the kernels is printed or written.
    """
    source = located(source, revision)  # before the steps: downloads show their own
    if tune:
        _require_tunable(target, weights=weights, schedule=schedule, emit=emit)
    if emit is not None:
        if html is not None:
            raise RequestError("--html shows an artifact, and --emit writes none; give one of both")
        _emit(
            emit,
            source,
            target,
            output,
            dump_ir,
            schedule,
            phase_timeout=phase_timeout,
            cache=cache,
            max_sequence_length=max_sequence_length,
            activations=activations,
            quantize_dense=quantize_dense,
            recipe=recipe,
            kv_cache=kv_cache,
            devices=None if devices == 1 else devices,
        )
        return
    with ending_cleanly(), showing(Console(stderr=True)) as progress:
        compile = partial(
            compilation.compile,
            source,
            target,
            max_sequence_length=max_sequence_length,
            activations=activations,
            quantize_dense=quantize_dense,
            recipe=recipe,
            kv_cache=kv_cache,
            devices=devices,
            weights=weights,
            strict=strict,
            allow_nan_scales=allow_nan_scales,
            phase_timeout=phase_timeout,
            cache=cache,
            workers=workers,
            progress=progress,
            force=force,
        )
        make = partial(_tuned, compile, force=force) if tune else compile
        artifact = make(output=output, dump_ir=dump_ir, html=html, schedule=schedule)
    show_artifact(artifact, json=json, wide=wide)
    if tune and not (artifact.path / SCHEDULES).exists():
        print_notes(table_console(stderr=True), [f"--tune {NOTHING}"])


def _require_tunable(
    target: Sequence[str], *, weights: str, schedule: Path | None, emit: str | None
) -> None:
    """Raise RequestError if the options leave nothing to measure or to choose."""
    if schedule is not None or emit is not None or weights == "none" or len(target) != 1:
        raise RequestError(
            "--tune measures an artifact for one target with its weights; leave out --schedule, "
            "--emit, --weights none and further targets"
        )


def _tuned(
    compile: Callable[..., Artifact], *, output: Path, force: bool, schedule: None, **options: Any
) -> Artifact:
    """Return the artifact with the schedules that are fastest on this machine."""
    require_free(output, force=force)
    with measured_schedules(compile, output) as file:
        return compile(output=output, schedule=file, **options)


def _emit(
    kind: str,
    source: Path,
    target: Sequence[str],
    output: Path | None,
    dump_ir: Path | None,
    schedule: Path | None,
    phase_timeout: float | None,
    cache: bool,
    **options: Any,
) -> None:
    require_kind(kind)
    if len(target) != 1:
        raise RequestError(f"--emit {kind} is for one target; found {', '.join(target)}")
    with ending_cleanly(), showing(Console(stderr=True)) as progress:
        found = emit_assembly(
            source,
            target[0],
            dump_ir=dump_ir,
            schedule=schedule,
            phase_timeout=phase_timeout,
            cache=cache,
            progress=progress,
            **options,
        )
    if not found:
        raise RequestError(f"{source}: the program calls no kernel, so there is no assembly")
    if output is None:
        print("\n".join(each.text for each in found), end="")
        return
    written = write(found, output)
    print(f"wrote {len(found)} kernels to {written[0] if len(written) == 1 else output}")


def show_artifact(artifact: Artifact, *, json: bool = False, wide: bool = False) -> None:
    """Print the report of a finished artifact, and its notes."""
    text = (artifact.path / REPORT).read_text()
    if json:
        print(text, end="")
        return
    console = table_console(wide=wide)
    reports = Reports.from_dict(loads(text), REPORT)
    show_report(console, reports)
    show_samples(console, reports)
    print_notes(console, artifact.manifest.notes)
    total = sum(file.bytes for file in artifact.manifest.files.values())
    # Not folded to the width, so that the path can be copied.
    print(f"wrote {artifact.path} ({bytes_text(total)})")
