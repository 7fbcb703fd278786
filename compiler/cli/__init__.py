"""The `mxc` command. Each subcommand imports its modules when it runs.

`mxc generate` therefore starts without the compiler. Errors of the user are printed as one line.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from mxc.artifact.versions import iree_version, mxc_version
from mxc.compiler.cli import (
    bench,
    catalogue,
    chat,
    convert,
    doctor,
    eval,
    generate,
    quantize,
    report,
    run,
    serve,
    tune,
    verify_gpu,
)
from mxc.compiler.cli.limits import PhaseTimeout
from mxc.compiler.cli.repository import Revision
from mxc.compiler.cli.signals import interrupts_outside_imports
from mxc.compiler.cli.terminal import Wide
from mxc.compiler.cli.workers import Dask, Processes, note
from mxc.errors import MxcError

#: Exit status after an interrupt (128 + SIGINT), as in shells.
INTERRUPTED = 130

#: Errors of the system when a disk, a quota or a file size limit is exhausted: no bugs of mxc.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Refusals(typer.core.TyperGroup):
    """Prints an MxcError as one line and exits with status 1; bugs of mxc keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand."""
        try:
            with interrupts_outside_imports():
                result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()  # an error at Python's exit could not be reported
            return result
        except MxcError as error:
            if ctx.params.get("verbose"):
                raise
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(1) from None
        except OSError as error:
            if error.errno not in _NO_ROOM or ctx.params.get("verbose"):
                raise
            place = "the output" if error.filename is None else error.filename
            typer.echo(f"error: {place}: cannot be written ({error.strerror})", err=True)
            _drop_unwritten()
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            if ctx.params.get("verbose"):
                raise
            # The newline ends the line in which the terminal has printed ^C.
            typer.echo("\ninterrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Refusals,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line of this process and exit."""
    # Model output may have characters that the terminal cannot encode: print their numbers.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    app(prog_name="mxc")


def _drop_unwritten() -> None:
    """Discard the unwritten rest if standard output fails: Python would try again at its exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mxc {mxc_version()}, IREE {iree_version()}")
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the trace of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions.")
    ] = False,
) -> None:
    """Compile models with microscaled weights ahead of time, and run them.

    `mxc demo` shows the whole of it on a small random model.
    """


@app.command("compile")
def _compile(
    source: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint folder, .gguf, .mlir, .stablehlo, .pt2 or .onnx, or ORG/NAME (hub).",
            show_default=False,
        ),
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="cpu, cpu:NAME, gfx950, ...: `mxc list targets` has them all. Given several "
            "times, for CPUs: one artifact that runs the best one that the machine may run.",
            show_default="cpu",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Artifact folder to write.", show_default=False),
    ] = None,
    max_sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens that a sequence may hold, prompt included.")
    ] = None,
    activations: Annotated[
        str | None,
        typer.Option(
            help="f32, bf16, i8, mxfp4, mxfp6, mxfp6e3m2, mxfp8, mxint8 or nvfp4: what activations "
            "are rounded to before they are multiplied by weights.",
            show_default="as the checkpoint's dense weights",
        ),
    ] = None,
    quantize_dense: Annotated[
        str | None,
        typer.Option(
            help="mxfp8 or mxint8: quantize the plain weights of attention and LM head.",
            show_default="as they are",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="How scales of --quantize-dense are chosen: `mxc list recipes`.",
            show_default="rceil",
        ),
    ] = None,
    kv_cache: Annotated[
        str | None,
        typer.Option(
            help="bf16, f32, fp8, mxint8 or mxfp8: the format of keys and values.",
            show_default="bf16, or f32 where activations are",
        ),
    ] = None,
    devices: Annotated[
        int,
        typer.Option(
            help="Number of devices that compute the model together, each with a share of it."
        ),
    ] = 1,
    weights: Annotated[
        str, typer.Option(help="packed, or none: code only, to be inspected but not run.")
    ] = "packed",
    revision: Revision = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail where a contraction falls back or a kernel spills, as docs/report.md says.",
        ),
    ] = False,
    allow_nan_scales: Annotated[
        bool, typer.Option("--allow-nan-scales", help="Accept blocks whose scale is NaN.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an artifact that exists.")
    ] = False,
    schedule: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Schedules of products, as JSON: of CPUs what --tune wrote, of GPUs as "
            "mxc-choose-gpu-schedule says.",
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Measure up to eight schedules of each product on this CPU, and keep the fastest.",
        ),
    ] = False,
    dump_ir: Annotated[
        Path | None, typer.Option(help="Write the IR after each pass and phase to this folder.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the report as one HTML page, with assembly, and IR if --dump-ir is given.",
        ),
    ] = None,
    phase_timeout: PhaseTimeout = None,
    cache: Annotated[
        bool,
        typer.Option(
            help="Take a program that was compiled before, with the same options by the same mxc "
            "and IREE, from the compile cache (`mxc doctor` says where it is)."
        ),
    ] = True,
    workers: Processes = 1,
    dask: Dask = None,
    emit: Annotated[
        str | None,
        typer.Option(
            help="asm: no artifact, but the assembly of the kernels, to standard output, to "
            "--output FILE.s, or one file each to the folder --output.",
            show_default=False,
        ),
    ] = None,
    wide: Wide = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report for programs.")] = False,
) -> None:
    """Compile a checkpoint into an artifact.

    Example: mxc compile gpt-oss-20b --target cpu --output gpt-oss-20b.mxc
    """
    from mxc.compiler.cli.compile import command
    from mxc.compiler.pieces.workers import Workers

    if output is None and emit is None:
        raise typer.BadParameter("Missing option '--output' / '-o'.")
    command(
        source,
        target=target or ["cpu"],
        output=output,
        max_sequence_length=max_sequence_length,
        activations=activations,
        quantize_dense=quantize_dense,
        recipe=recipe,
        kv_cache=kv_cache,
        devices=devices,
        weights=weights,
        revision=revision,
        strict=strict,
        allow_nan_scales=allow_nan_scales,
        force=force,
        dump_ir=dump_ir,
        html=html,
        schedule=schedule,
        tune=tune,
        phase_timeout=phase_timeout,
        cache=cache,
        workers=Workers(processes=workers, dask=dask, say=note),
        emit=emit,
        wide=wide,
        json=json,
    )


app.command("quantize")(quantize.command)
app.command("generate")(generate.command)
app.command("chat")(chat.command)
app.command("serve")(serve.command)
app.command("run")(run.command)
app.command("bench")(bench.command)
app.command("eval")(eval.command)
app.command("report")(report.command)
app.command("tune")(tune.command)
app.command("verify-gpu")(verify_gpu.command)


@app.command("inspect")
def _inspect(
    path: Annotated[
        Path,
        typer.Argument(help="A checkpoint, tensor file, artifact or ORG/NAME.", show_default=False),
    ],
    tensor: Annotated[
        str | None, typer.Argument(help="One tensor of it.", show_default=False)
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            help="Of an artifact with several levels of CPU features, whose weights to show.",
            show_default="the one that runs here",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Compare with this checkpoint, of whatever dialect.", show_default=False),
    ] = None,
    revision: Revision = None,
    wide: Wide = False,
    json: Annotated[bool, typer.Option("--json", help="Print it for programs.")] = False,
) -> None:
    """Show what a checkpoint of any dialect, a tensor file or an artifact holds.

    With a tensor: its first numbers, its scales, and how many are NaN, zero or at the limit.
    With --against: same bytes, same values, or where they differ (and then status 1).
    """
    from mxc.compiler.checkpoints.hub import located
    from mxc.compiler.cli.inspect import command

    if against is not None:
        against = located(against)
    status = command(located(path, revision), tensor, level, against, json=json, wide=wide)
    raise typer.Exit(status)


app.command("convert")(convert.command)


@app.command("opt")
def _opt(
    file: Annotated[Path, typer.Argument(help="A .mlir file, - for stdin.", show_default=False)],
    passes: Annotated[
        str | None, typer.Option(help="Passes to run, e.g. 'mxc-a{x=1},canonicalize'.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Run the pipeline of this target instead.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="The last stage of that pipeline to run.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write here, not to standard output.")
    ] = None,
    split_input_file: Annotated[
        bool, typer.Option("--split-input-file", help="Programs end at lines `// -----`.")
    ] = False,
    verify_diagnostics: Annotated[
        bool, typer.Option("--verify-diagnostics", help="Check the `expected-error` comments.")
    ] = False,
    dump_ir: Annotated[
        Path | None, typer.Option(help="Write the IR after each pass to this folder.")
    ] = None,
    print_kernels: Annotated[
        bool, typer.Option("--print-kernels", help="Write the kernels as nests, not the IR.")
    ] = False,
    phase_timeout: PhaseTimeout = None,
) -> None:
    """Run passes over a file of IR.

    Example: mxc opt program.mlir --target gfx950 --to normalize
    """
    from mxc.compiler.opt import command

    status = command(
        file,
        passes=passes,
        target=target,
        to=to,
        output=output,
        split_input_file=split_input_file,
        verify_diagnostics=verify_diagnostics,
        dump_ir=dump_ir,
        print_kernels=print_kernels,
        phase_timeout=phase_timeout,
    )
    raise typer.Exit(status)


app.command("list")(catalogue.command)
app.command("doctor")(doctor.command)


@app.command("demo")
def _demo(
    directory: Annotated[
        Path | None, typer.Option(help="Keep checkpoint and artifact here.", show_default=False)
    ] = None,
    wide: Wide = False,
) -> None:
    """Write a small checkpoint, compile it for this CPU, generate, and show the report."""
    from mxc.compiler.cli.demo import command

    command(directory, wide=wide)
