"""The option that limits how long the compiler may take, for the commands that run it."""

from __future__ import annotations

from typing import Annotated

import typer

from mxc.compiler.steps import PHASE_TIMEOUT

PhaseTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="The longest that a pass or a phase of the compiler may take.",
        show_default=f"{PHASE_TIMEOUT:g}",
    ),
]
