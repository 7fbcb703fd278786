"""`mxc convert`: writes a checkpoint in another dialect without changing a value."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mxc.compiler.cli.repository import Revision
from mxc.compiler.cli.terminal import print_notes, table_console
from mxc.compiler.cli.workers import Dask, Processes, Threads, note


def command(
    source: Annotated[
        Path, typer.Argument(help="A checkpoint of any dialect, or ORG/NAME.", show_default=False)
    ],
    to: Annotated[
        str,
        typer.Option(
            help="gpt-oss, quark, compressed-tensors, gguf, modelopt, torchao.", show_default=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder, or .gguf file, to write.")
    ],
    revision: Revision = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a checkpoint that mxc wrote.")
    ] = False,
    workers: Processes = 1,
    threads: Threads = None,
    dask: Dask = None,
) -> None:
    """Write a checkpoint in another dialect, where every value can be kept exactly.

    Example: mxc convert gpt-oss-20b --to gguf --output gpt-oss-20b.gguf
    """
    from mxc.compiler.checkpoints.hub import located
    from mxc.compiler.cli.progress import counting
    from mxc.compiler.cli.report_table import bytes_text
    from mxc.compiler.cli.signals import ending_cleanly
    from mxc.compiler.convert.checkpoint import convert
    from mxc.compiler.pieces.workers import Workers

    source = located(source, revision)
    with ending_cleanly(), counting("convert") as advance:
        chosen = Workers(processes=workers, threads=threads, dask=dask, say=note)
        found = convert(source, to, output, force=force, workers=chosen, progress=advance)
    typer.echo(
        f"{output}: {found.tensors} tensors, {bytes_text(found.bytes)} in the dialect "
        f"{found.dialect}"
    )
    print_notes(table_console(), found.notes)
