"""`mxc quantize`: quantizes a checkpoint to MX, and prints the error of each tensor."""

from __future__ import annotations

import json as json_text
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from mxc.compiler.cli.calibrate import DEFAULT_TOKENS, calibrate
from mxc.compiler.cli.progress import counting
from mxc.compiler.cli.report_table import bytes_text
from mxc.compiler.cli.repository import Revision
from mxc.compiler.cli.signals import ending_cleanly
from mxc.compiler.cli.terminal import Name, Prose, Wide, table_console
from mxc.compiler.cli.workers import Dask, Processes, Threads, note
from mxc.errors import CheckpointError

if TYPE_CHECKING:
    from mxc.compiler.quantize.checkpoint import QuantizationResult
    from mxc.compiler.quantize.loss import Loss

#: Number of rows in the table of errors by default: the worst tensors.
_WORST = 20


def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint folder, a .safetensors or .gguf file, or ORG/NAME.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Checkpoint folder to write; of gguf a file.")
    ],
    format: Annotated[
        str, typer.Option(help="mxfp4, mxfp8e4m3, ...: `mxc list formats` has them all.")
    ],
    recipe: Annotated[
        str | None,
        typer.Option(
            help="How scales are chosen: `mxc list recipes`, or search: of each block the scale of "
            "least error; gptq: then columns are rounded so that each makes up for errors of those "
            "before, which needs --calibrate. nvfp4 takes search and gptq alone.",
            show_default="that of least error; with --calibrate search",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            "--calibrate",
            metavar="FILE",
            help="Run the model on this text first, to choose scales by the error of the outputs "
            "of layers, not by that of weights.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option("--calibrate-tokens", min=16, help="Take the first tokens of the text.")
    ] = DEFAULT_TOKENS,
    rotate: Annotated[
        bool,
        typer.Option(
            "--rotate",
            help="Rotate hidden states by a Hadamard matrix first, folded into weights: the same "
            "model, with fewer outliers. It helps nvfp4 only with --recipe gptq.",
        ),
    ] = False,
    dialect: Annotated[
        str | None,
        typer.Option(
            help="quark, compressed-tensors, gpt-oss, gguf, modelopt or torchao: how names, files "
            "and config are written.",
            show_default="quark; nvfp4: compressed-tensors",
        ),
    ] = None,
    ties: Annotated[
        str | None,
        typer.Option(
            help="even, zero or away: where an element goes that lies halfway between two.",
            show_default="that of the dialect's own library",
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            help="Quantize these tensors alone: a pattern with *, or re: and a regular expression. "
            "May be given several times.",
            show_default="matrices but embeddings, head and routers",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Leave these as they are, patterns as for --include.")
    ] = None,
    revision: Revision = None,
    workers: Processes = 1,
    threads: Threads = None,
    dask: Dask = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the error of each layer to this .png file.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show all tensors, not the worst.")] = False,
    wide: Wide = False,
    json: Annotated[bool, typer.Option("--json", help="Print it for programs.")] = False,
) -> None:
    """Quantize the weights of a checkpoint and say what is lost.

    Example: mxc quantize model-bf16 --output model-mxfp4 --format mxfp4 --recipe even
    """
    from mxc.compiler.checkpoints.hub import located
    from mxc.compiler.leftovers import partial_folder
    from mxc.compiler.pieces.workers import Workers
    from mxc.compiler.quantize.checkpoint import quantize_checkpoint
    from mxc.compiler.quantize.plot import plot as draw
    from mxc.compiler.quantize.rotate import write_rotated
    from mxc.compiler.quantize.search import FEEDBACK

    if plot is not None:
        _require_place(plot)
    source = located(source, revision)
    with ending_cleanly(), ExitStack() as stack:
        calibration = None
        if text is not None:
            scratch = stack.enter_context(partial_folder(output))
            feedback = recipe == FEEDBACK
            place = source
            if rotate and source.is_dir():
                place = scratch / "rotated"
                write_rotated(source, place)
            calibration = calibrate(place, text, tokens, scratch, feedback=feedback)
        advance = stack.enter_context(counting("quantize"))
        result = quantize_checkpoint(
            source,
            output,
            format,
            recipe=recipe,
            ties=ties,
            dialect=dialect,
            include=include or (),
            exclude=exclude or (),
            calibration=calibration,
            rotate=rotate,
            workers=Workers(processes=workers, threads=threads, dask=dask, say=note),
            progress=advance,
        )
    if plot is not None:
        try:
            draw(result.losses, _title(result), plot)
        except OSError as error:
            raise CheckpointError(
                f"{plot}: cannot be written ({error.strerror}); {result.output} is complete"
            ) from error
    if json:
        print(json_text.dumps(result.to_json(), indent=1))
        return
    _show(result, full=full, wide=wide)


def _show(result: QuantizationResult, *, full: bool, wide: bool) -> None:
    from mxc.compiler.quantize.search import FEEDBACK

    console = table_console(wide=wide)
    known = [(name, loss) for name, loss in result.losses.items()]
    shown = known
    if not full and len(known) > _WORST:
        shown = sorted(known, key=lambda each: each[1].sqnr or float("inf"))[:_WORST]
    table = Table(box=SIMPLE_HEAD)
    table.add_column("tensor")
    calibrated = result.calibration is not None
    outputs = ("outputs dB",) if calibrated else ()
    for heading in ("elements", "SQNR dB", *outputs, "saturated"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, loss in shown:
        table.add_row(Name(name), *_cells(loss, calibrated))
    table.add_section()
    table.add_row(f"all {len(known)}", *_cells(result.total, calibrated))
    console.print(table)
    if len(shown) < len(known):
        console.print(f"the {len(shown)} worst of {len(known)}; --full shows all", highlight=False)
    if result.uncalibrated:
        first, *others = result.uncalibrated
        more = f" and {len(others)} more" if others else ""
        told = f"quantized without inputs, of which the text has none: {first}{more}"
        console.print(Prose(told))
    kept: dict[str, int] = {}
    for item in result.items:
        if item.parts is None:
            kept[item.kept] = kept.get(item.kept, 0) + 1
    if kept:
        reasons = ", ".join(f"{count} {reason}" for reason, count in kept.items())
        console.print(Prose(f"as they were: {reasons}"))
    rate = bytes_text(round(result.bytes_read / max(result.seconds, 1e-9)))
    # Not folded to the width, so that the path can be copied.
    print(
        f"{_title(result)}, dialect {result.dialect}, {bytes_text(result.bytes_read)} in "
        f"{result.seconds:.1f} s ({rate}/s)"
    )
    print(f"wrote {result.output} ({bytes_text(result.bytes_written)})")
    if result.rotation is not None and result.format == "nvfp4" and result.recipe != FEEDBACK:
        print(
            "note: --rotate usually makes nvfp4 less accurate, unless --recipe gptq is given: its "
            "small blocks keep outliers apart already"
        )


def _cells(loss: Loss, calibrated: bool) -> list[str]:
    weights = "exact" if loss.sqnr is None else f"{loss.sqnr:.2f}"
    outputs = ["-" if loss.output_sqnr is None else f"{loss.output_sqnr:.2f}"] if calibrated else []
    return [f"{loss.elements:,}", weights, *outputs, f"{loss.saturated_share:.3%}"]


def _title(result: QuantizationResult) -> str:
    recipe = "" if result.recipe is None else f", recipe {result.recipe}"
    if result.rotation is not None:
        recipe += f", rotated by {result.rotation}"
    if result.calibration is not None:
        said = result.calibration
        recipe += f", calibrated with {said['tokens']:,} tokens of {said['text']}"
    return f"{result.format}{recipe}, ties {result.ties}"


def _require_place(picture: Path) -> None:
    """Raise CheckpointError if the picture cannot be written, before hours of work."""
    if picture.is_dir():
        raise CheckpointError(f"{picture}: is a folder; give the --plot a name ending in .png")
    if picture.suffix.lower() != ".png":
        raise CheckpointError(f"{picture}: a PNG is drawn; give the --plot a name ending in .png")
    if not picture.parent.is_dir() or not os.access(picture.parent, os.W_OK):
        raise CheckpointError(f"{picture}: cannot be written; choose another --plot")
