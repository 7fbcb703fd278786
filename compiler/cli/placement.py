"""Options for threads, device and level, for the commands that run a model."""

from __future__ import annotations

from typing import Annotated

import typer

Threads = Annotated[
    int | None, typer.Option(help="CPU threads of each device.", show_default="all physical cores")
]
Device = Annotated[
    str | None, typer.Option(help="IREE device URI, e.g. hip://1; several: hip://0,hip://1.")
]
DeviceOrSimulator = Annotated[
    str | None,
    typer.Option(
        help="IREE device URI, e.g. hip://1; or simulator, for gfx950 and gfx942 without one."
    ),
]
Level = Annotated[
    str | None,
    typer.Option(
        help="Of an artifact with several levels of CPU features, the one to run.",
        show_default="the best that may run here",
    ),
]
