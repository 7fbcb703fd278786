"""Options of commands that compute in pieces: number of processes, or a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from mxc.compiler.cli.terminal import print_notes, table_console

Processes = Annotated[
    int,
    typer.Option(
        "--workers",
        min=1,
        help="Processes that compute. After a kill the same command goes on where it stopped.",
        show_default="this process, with threads",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads of one process.", show_default="one a CPU"),
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Compute on a Dask cluster that sees the same files: the address of its scheduler, "
        "as in tcp://HOST:8786.",
        show_default=False,
    ),
]


def note(line: str) -> None:
    """Print a line for the user while a command runs."""
    print_notes(table_console(stderr=True), [line])
